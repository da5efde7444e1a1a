"""Recorded runs: run directories, read back for pictures and reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from jobs.errors import UsageError
from jobs.records.environment import ENVIRONMENT_NAME, Environment
from jobs.records.member import Member
from jobs.records.row import Row
from jobs.results.analysis.robust import DEFAULT_OUTLIER_Z
from jobs.results.analysis.soaking import Point
from jobs.results.disk.journal import JOURNAL_NAME, SOAK_NAME, iterate_soak, one_line, read


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """Content of a run directory; a run that ended early may lack all but its path."""

    path: Path
    rows: tuple[Row, ...]
    environment: Environment
    """``environment.json``; all fields are unknown without the file."""
    config: str
    """Text of ``config.yaml``; empty without the file."""
    soak: tuple[Point, ...] = ()
    """Slices of the soak; empty without one."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Ranks of the last gang, island by island."""
        return self.environment.members

    def members_of(self, row: Row) -> tuple[Member, ...]:
        """Ranks of the gang that measured ``row``; empty if they weren't recorded."""
        return self.environment.members_of(row)

    @property
    def device_kind(self) -> str | None:
        """Name of the devices in jax; ``None`` if it wasn't recorded."""
        members = self.members
        return members[0].device_kind if members else None


def read_run(path: Path) -> RecordedRun:
    """Read the run in the directory ``path``.

    Raises:
      UsageError: the journal can't be read, or ``environment.json`` isn't JSON of a job.
    """
    rows = tuple(read(path / JOURNAL_NAME))
    environment = read_environment(path)
    outlier_z = environment.outlier_z or DEFAULT_OUTLIER_Z
    soak = tuple(Point.of(one, outlier_z=outlier_z) for one in iterate_soak(path / SOAK_NAME))
    return RecordedRun(path, rows, environment, _text(path / "config.yaml"), soak)


def read_environment(folder: Path) -> Environment:
    """Read ``environment.json`` of a run directory; a run that ended early may lack it.

    Raises:
      UsageError: the file can't be read, isn't JSON or isn't of a job.
    """
    path = folder / ENVIRONMENT_NAME
    text = _text(path)
    if not text:
        return Environment()
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    try:
        return Environment.from_json(data)
    except ValueError as error:
        raise UsageError(f"{path}: not written by a job ({one_line(error)})") from error


def read_runs(paths: Sequence[Path]) -> list[RecordedRun]:
    """Read the runs in the directories ``paths``; a multirun's folder stands for the run directories in it.

    Raises:
      UsageError: a path has no run, a run can't be read, or the runs are of different devices.
    """
    runs = [read_run(folder) for path in paths for folder in run_dirs("RUN_DIR", path)]
    kinds = sorted({str(run.device_kind) for run in runs})
    if len(kinds) > 1:
        raise UsageError(f"the runs are of different devices ({', '.join(kinds)}), which have no bound in common")
    return runs


def run_dirs(option: str, path: Path) -> list[Path]:
    """``path`` if it is a run directory; else the run directories in it, in the order of a multirun's points.

    Raises:
      UsageError: there is no run directory; the message names ``option``.
    """
    if (path / JOURNAL_NAME).is_file():
        return [path]
    # Points of a multirun are numbered.
    below = sorted(path.glob(f"*/{JOURNAL_NAME}"), key=lambda file: (len(file.parent.name), file.parent.name))
    if not below:
        raise UsageError(f"{option}={path} holds neither a {JOURNAL_NAME} nor folders with one")
    return [file.parent for file in below]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error
