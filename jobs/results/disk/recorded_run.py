"""A run directory, read back: what pictures and reports are made of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.errors import UsageError
from jobs.records.row import Row
from jobs.results.analysis.robust import DEFAULT_OUTLIER_Z
from jobs.results.analysis.soaking import Point
from jobs.results.disk.journal import JOURNAL_NAME, SOAK_NAME, iterate_soak, read


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """What a job left behind; a run that ended early may lack all but its path."""

    path: Path
    rows: tuple[Row, ...]
    environment: dict[str, Any]
    """``environment.json``; empty where there is none."""
    config: str
    """``config.yaml`` as it was written; empty where there is none."""
    soak: tuple[Point, ...] = ()
    """The slices of its soak, where it had one."""

    @property
    def members(self) -> list[dict[str, Any]]:
        """The ranks of the last gang, in their order; with islands, of each one's."""
        gangs = self.environment.get("islands", [self.environment])
        return [member for gang in gangs for member in gang.get("members", ())]

    def members_of(self, row: Row) -> list[dict[str, Any]]:
        """The ranks of the gang that measured ``row``; a job that never lost one may not number it."""
        islands = self.environment.get("islands", [self.environment])
        gangs = [
            gang
            for island in islands
            if island.get("island") == row.island
            for gang in [island, *island.get("earlier_attempts", ())]
        ]
        return next((gang.get("members", []) for gang in gangs if gang.get("attempt", 1) == row.attempt), [])

    @property
    def device_kind(self) -> str | None:
        """Name of the devices in jax; ``None`` where it wasn't recorded."""
        return self.members[0].get("device_kind") if self.members else None


def read_run(path: Path) -> RecordedRun:
    """The run in the directory ``path``.

    Raises:
      UsageError: its journal can't be read, or its environment isn't JSON or none of a job.
    """
    rows = tuple(read(path / JOURNAL_NAME))
    try:
        environment = json.loads(_text(path / "environment.json") or "{}")
    except ValueError as error:
        raise UsageError(f"{path / 'environment.json'}: no JSON ({error})") from error
    run = RecordedRun(path, rows, environment, _text(path / "config.yaml"))
    try:
        for member in run.members:
            member.get("device_kind")
    except (TypeError, AttributeError) as error:
        raise UsageError(f"{path / 'environment.json'}: not of a job ({type(error).__name__}: {error})") from error
    outlier_z = environment.get("outlier_z", DEFAULT_OUTLIER_Z)
    soak = tuple(Point.of(found, outlier_z=outlier_z) for found in iterate_soak(path / SOAK_NAME))
    return dataclasses.replace(run, soak=soak)


def read_runs(paths: Sequence[Path]) -> list[RecordedRun]:
    """The runs in the directories ``paths``; a folder of run directories, as a multirun makes it, stands for these.

    Raises:
      UsageError: a path is neither, a run can't be read, or the runs are of different devices.
    """
    runs = [read_run(folder) for path in paths for folder in run_dirs("RUN_DIR", path)]
    kinds = sorted({str(run.device_kind) for run in runs})
    if len(kinds) > 1:
        raise UsageError(f"the runs are of different devices ({', '.join(kinds)}), which no bound is common to")
    return runs


def run_dirs(option: str, path: Path) -> list[Path]:
    """``path``, where it is a run directory; else the run directories in it, in the order of a multirun's points.

    ``option`` is what messages call it.

    Raises:
      UsageError: there is none.
    """
    if (path / JOURNAL_NAME).is_file():
        return [path]
    # Points of a multirun are numbered.
    below = sorted(path.glob(f"*/{JOURNAL_NAME}"), key=lambda found: (len(found.parent.name), found.parent.name))
    if not below:
        raise UsageError(f"{option}={path} holds neither a {JOURNAL_NAME} nor folders with one")
    return [found.parent for found in below]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error
