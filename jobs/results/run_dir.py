"""The run directory: one folder a job, with everything that the job leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jobs.errors import InfrastructureError, UsageError
from jobs.results.journal import JOURNAL_NAME
from jobs.results.json_safe import json_safe
from jobs.settings import Settings

DEFAULT_BASE = "~/cmkernel_runs"
# No fault of the option's value: another folder on the same disk would fail too.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@dataclasses.dataclass(frozen=True)
class RunDir:
    """A folder that exists, is absolute and was written to."""

    path: Path

    @classmethod
    def create(cls, settings_run_dir: str | None, *, submission_id: str | None) -> RunDir:
        """The folder that ``run_dir=`` names, or a new one below ``~/cmkernel_runs`` that no other job has.

        Raises:
          UsageError: the folder can't be made or written to, holds the results of another job, or is relative to the
            working directory of a submitted job.
          InfrastructureError: the disk is full or broken.
        """
        name = settings_run_dir or f"{DEFAULT_BASE}/{_own_name(submission_id)}"
        if settings_run_dir and submission_id and not name.startswith(("/", "~")):
            raise UsageError(f"run_dir={name} must be absolute: a submitted job's working directory vanishes with it")
        with _refusing(name):
            # abspath, not resolve(): the path stays as the user knows it, symbolic links included.
            path = Path(os.path.abspath(Path(name).expanduser()))
        with _refusing(path):
            if settings_run_dir is None:
                path = _make_new(path)
            else:
                _make_or_take(path)
            probe = path / f".probe-{os.getpid()}"
            probe.write_bytes(b"is it writable?\n")
            probe.unlink()
        return cls(path)

    @property
    def journal_path(self) -> Path:
        """Rows, one JSON object a line."""
        return self.path / JOURNAL_NAME

    @property
    def log_path(self) -> Path:
        """The driver's log."""
        return self.path / "bench.log"

    def write_config(self, settings: Settings) -> None:
        """Write the resolved config to ``config.yaml``: enums by name; a W&B key is never part of the settings.

        Raises:
          InfrastructureError: the file can't be written.
        """
        self._write("config.yaml", OmegaConf.to_yaml(OmegaConf.structured(settings)))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write what the job ran on to ``environment.json``.

        Raises:
          InfrastructureError: the file can't be written.
        """
        self._write("environment.json", json.dumps(json_safe(environment), indent=2, allow_nan=False) + "\n")

    def write_examination(self, examination: Mapping[str, Any]) -> None:
        """Write what the doctor saw and found to ``doctor.json``.

        Raises:
          InfrastructureError: the file can't be written.
        """
        self._write("doctor.json", json.dumps(json_safe(examination), indent=2, allow_nan=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        try:
            path.write_text(text)
        except OSError as error:
            raise InfrastructureError(f"{path}: can't be written ({error.strerror})") from error


def _own_name(submission_id: str | None) -> str:
    """Ray lets users choose submission ids: what isn't good for a file name is replaced."""
    name = re.sub(r"[^\w.-]", "_", submission_id or "").lstrip(".")
    return name or time.strftime("%Y%m%d-%H%M%S")


def _make_new(wanted: Path) -> Path:
    """A folder that this call made; jobs that start in the same second get ``-2``, ``-3``, ..."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("count() is endless")


def _make_or_take(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    journal = path / JOURNAL_NAME
    # An empty journal is what a job leaves that failed before its first row.
    if journal.exists() and journal.stat().st_size:
        raise UsageError(
            f"run_dir={path} already holds a {JOURNAL_NAME}, and a run needs a folder of its own: name another one, or "
            f"leave run_dir out for a new one below {DEFAULT_BASE}"
        )


@contextlib.contextmanager
def _refusing(path: Path | str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # expanduser() finds no home
        raise UsageError(f"run_dir={path}: {error}") from error
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise InfrastructureError(f"run_dir={path}: {error.strerror}") from error
        reason = "a file is in the way" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        raise UsageError(f"run_dir={path}: not writable ({reason}); name a folder the driver may write to") from error
