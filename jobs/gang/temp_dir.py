"""Folder for the sockets and logs of a local Ray: short, writable, and gone after the job unless an error names it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jobs.errors import InfrastructureError

logger = logging.getLogger(__name__)

_PREFIX = "ray-"
# The path of a Unix socket has at most 107 bytes. Below this folder Ray adds /session_<date>_<time>_<us>_<pid>/sockets/
# plasma_store, and mkdtemp the last 8 characters of the folder's own name.
_MAX_BASE_BYTES = 107 - len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store") - len(f"/{_PREFIX}") - 8
_OTHERS = ("/tmp", "/var/tmp", "/dev/shm")
# Processes that are ending may still write.
_REMOVAL_TIMEOUT_S, _INTERVAL_S = 2.0, 0.1
_LOG_LINES = 3
# Ray's lines of severity error, critical and fatal, without the frames of a stack; and what C++ prints when it aborts.
_ERROR = re.compile(r"^E\d{4} | [ECF] \d+ (?!.*@ +0x)|what\(\):")


class TempDir:
    """A new folder below ``RAY_TMPDIR`` or ``TMPDIR``, or where these don't serve, below another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keeps = False
        """Keep the folder, because an error names a file in it."""

    @classmethod
    def make(cls) -> TempDir:
        """Make the folder; a warning says why a variable's folder isn't taken.

        Raises:
          InfrastructureError: there is no folder to make it in.
        """
        refusals = []
        for option, base in _bases():
            try:
                if len(os.fsencode(base)) > _MAX_BASE_BYTES:
                    raise OSError(0, f"longer than {_MAX_BASE_BYTES} bytes, too long for Ray's sockets")
                path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            except OSError as error:
                refusals.append(f"{option}{base}: {error.strerror}")
                continue
            if refusals:
                logger.warning("%s; the files of the local Ray go to %s", "; ".join(refusals), path)
            return cls(path)
        raise InfrastructureError(
            f"no folder for the files of a local Ray: {'; '.join(refusals)}; set RAY_TMPDIR to a writable folder with "
            f"a path of at most {_MAX_BASE_BYTES} bytes"
        )

    def log_errors(self) -> str:
        """First errors in the logs of the raylet, or of the GCS, with its name; empty without any."""
        for name in ("raylet.err", "raylet.out", "gcs_server.err", "gcs_server.out"):
            for path in self.path.glob(f"session_2*/logs/{name}"):
                with contextlib.suppress(OSError):
                    errors = [line for line in path.read_text(errors="replace").splitlines() if _ERROR.search(line)]
                    if errors:
                        return f"{name}: {' / '.join(errors[:_LOG_LINES])}"
        return ""

    def remove(self) -> None:
        """Remove the folder, unless it is to be kept."""
        deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
        while not self.keeps and self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            if time.monotonic() >= deadline:
                return
            time.sleep(_INTERVAL_S)


def _bases() -> Iterator[tuple[str, str]]:
    """Folders to try, in order, each with the variable that names it."""
    for name in ("RAY_TMPDIR", "TMPDIR"):
        if base := os.environ.get(name):
            yield f"{name}=", base
            break
    yield from (("", base) for base in _OTHERS)
