"""Run directory: the folder of a job, with all files that it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jobs.config.schema import Settings
from jobs.errors import InfrastructureError, UsageError
from jobs.health.facts import EXAMINATION_NAME
from jobs.records.environment import ENVIRONMENT_NAME, Environment
from jobs.results.disk.journal import JOURNAL_NAME, SOAK_NAME
from jobs.results.disk.json_safe import json_safe

DEFAULT_BASE = "~/cmkernel_runs"
CONFIG_NAME = "config.yaml"
# Not a mistake of the user's: another folder on the same disk would fail too.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@dataclasses.dataclass(frozen=True)
class RunDir:
    """Folder that exists, has an absolute path and is writable."""

    path: Path

    @classmethod
    def create(cls, settings_run_dir: str | None, *, submission_id: str | None) -> RunDir:
        """Create the folder that ``run_dir=`` names, or a new one below ``~/cmkernel_runs`` that no other job has.

        Raises:
          UsageError: the folder can't be made or written to, holds the results of another job, or is relative to the
            working directory of a submitted job.
          InfrastructureError: the disk is full or broken.
        """
        name = settings_run_dir or f"{DEFAULT_BASE}/{_own_name(submission_id)}"
        path = absolute("run_dir", name, submission_id if settings_run_dir else None)
        with _refusing("run_dir", path):
            if settings_run_dir is None:
                path = _make_new(path)
            else:
                _make_or_take(path)
            _probe(path)
        return cls(path)

    @classmethod
    def reopen(cls, name: str, *, submission_id: str | None) -> RunDir:
        """Open the folder of an earlier job, which ``resume=`` names.

        Raises:
          UsageError: it isn't an earlier job's, can't be written to, or is relative to the working directory of a
            submitted job.
          InfrastructureError: the disk is full or broken.
        """
        path = absolute("resume", name, submission_id)
        if not (path / CONFIG_NAME).is_file():
            raise UsageError(f"resume={path} must be the run directory of an earlier job, with its {CONFIG_NAME}")
        with _refusing("resume", path):
            _probe(path)
        return cls(path)

    @property
    def journal_path(self) -> Path:
        """Path of the rows, one JSON object a line."""
        return self.path / JOURNAL_NAME

    @property
    def soak_path(self) -> Path:
        """Path of the soak's slices, one JSON object a line."""
        return self.path / SOAK_NAME

    @property
    def config_path(self) -> Path:
        """Path of the resolved config."""
        return self.path / CONFIG_NAME

    @property
    def log_path(self) -> Path:
        """Path of the driver's log."""
        return self.path / "bench.log"

    def write_config(self, settings: Settings) -> None:
        """Write the resolved config to ``config.yaml``; a W&B key is never part of the settings.

        Raises:
          InfrastructureError: the file can't be written.
        """
        self._write(CONFIG_NAME, OmegaConf.to_yaml(OmegaConf.structured(settings)))

    def write_environment(self, environment: Environment) -> None:
        """Write ``environment.json``.

        Raises:
          InfrastructureError: the file can't be written.
        """
        self._write_json(ENVIRONMENT_NAME, environment.to_json())

    def write_examination(self, examination: Mapping[str, Any]) -> None:
        """Write the doctor's facts and findings to ``doctor.json``.

        Raises:
          InfrastructureError: the file can't be written.
        """
        self._write_json(EXAMINATION_NAME, examination)

    def _write_json(self, name: str, data: Mapping[str, Any]) -> None:
        self._write(name, json.dumps(json_safe(data), indent=2, allow_nan=False) + "\n")

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        new = path.with_name(f".{name}.new")
        try:
            # On a full disk the old file stays as it was.
            new.write_text(text)
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise InfrastructureError(f"{path}: can't be written ({error.strerror})") from error


def absolute(option: str, name: str, submission_id: str | None) -> Path:
    """Absolute path of ``name``, the value of ``option``; the file outlives the job.

    Raises:
      UsageError: the path is relative to the working directory of a submitted job, or to a home that can't be found.
    """
    if submission_id and not name.startswith(("/", "~")):
        raise UsageError(f"{option}={name} must be absolute: a submitted job's working directory vanishes with it")
    with _refusing(option, name):
        # abspath, not resolve(): symbolic links stay as the user wrote them.
        return Path(os.path.abspath(Path(name).expanduser()))


def refuse_unwritable(option: str, path: Path) -> None:
    """Raise ``UsageError`` if the file at ``path``, the value of ``option``, can't be written or made."""
    if not path.parent.is_dir():
        raise UsageError(f"{option}={path}: {path.parent} isn't a folder")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option}={path} must be a file, and is a folder or a device")
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{option}={path}: the file isn't writable")
    try:
        tempfile.NamedTemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(f"{option}={path}: {path.parent} isn't writable ({error.strerror})") from error


def _probe(path: Path) -> None:
    probe = path / f".probe-{os.getpid()}"
    probe.write_bytes(b"is it writable?\n")
    probe.unlink()


def _own_name(submission_id: str | None) -> str:
    """Name of the folder: the submission id, its unsafe characters replaced as users choose it; else the time."""
    name = re.sub(r"[^\w.-]", "_", submission_id or "").lstrip(".")
    return name or time.strftime("%Y%m%d-%H%M%S")


def _make_new(wanted: Path) -> Path:
    """Make a new folder; jobs that start in the same second get ``-2``, ``-3``, ..."""
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
    # A job that fails before its first row leaves an empty journal.
    if journal.exists() and journal.stat().st_size:
        raise UsageError(
            f"run_dir={path} already holds a {JOURNAL_NAME}, and a run needs a folder of its own: name another one, "
            f"leave run_dir out for a new one below {DEFAULT_BASE}, or continue that job with resume={path}"
        )


@contextlib.contextmanager
def _refusing(option: str, path: Path | str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # expanduser() finds no home
        raise UsageError(f"{option}={path}: {error}") from error
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise InfrastructureError(f"{option}={path}: {error.strerror}") from error
        reason = "a file is in the way" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        raise UsageError(f"{option}={path}: not writable ({reason}); name a folder the driver may write to") from error
