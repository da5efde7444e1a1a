"""Opening of a job: final settings, run directory, and every refusal that needs no cluster."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

from omegaconf import DictConfig

from cmkernel import Table
from jobs.config.resume import continued
from jobs.config.rules import recorded_settings, to_settings
from jobs.config.schema import Settings
from jobs.config.tuned_table import read_table
from jobs.driver.kind import Kind
from jobs.driver.naming import Naming
from jobs.errors import UsageError
from jobs.results.disk.journal import iterate
from jobs.results.disk.run_dir import RunDir, absolute

TABLE_NAME = "tuned.jsonl"


@dataclasses.dataclass(frozen=True)
class Job:
    """A job before it connects to a cluster; immutable."""

    settings: Settings
    kind: Kind
    naming: Naming
    run_dir: RunDir
    table: Table | None
    """Tuned configs of ``kernel.table``; ``None``: the table that ships with cmkernel."""


def open_job(config: DictConfig, kind: Kind, naming: Naming) -> Job:
    """Open the job of a composed config, with its run directory.

    Raises:
      UsageError: an option breaks its rule, contradicts the job that is resumed, or names a file that can't be used.
      InfrastructureError: the disk is full or broken.
    """
    settings = to_settings(config)
    kind.refuse(settings)
    if settings.resume is None:
        run_dir = RunDir.create(naming.below(settings.run_dir), submission_id=naming.own_run_dir)
    else:
        run_dir = RunDir.reopen(settings.resume, submission_id=naming.submission)
        stored = recorded_settings(run_dir.config_path)
        settings = continued(stored, settings, naming.overrides, num_ranks=_recorded_ranks(run_dir))
    settings = _with_absolute_paths(settings, run_dir, naming)
    return Job(settings, kind, naming, run_dir, read_table("kernel.table", settings.kernel.table))


def _recorded_ranks(run_dir: RunDir) -> int | None:
    """Number of ranks of the job to resume; ``None`` if it has no row."""
    first = next(iterate(run_dir.journal_path), None) if run_dir.journal_path.exists() else None
    return None if first is None else first.case.num_ranks


def _with_absolute_paths(settings: Settings, run_dir: RunDir, naming: Naming) -> Settings:
    """Settings with absolute paths of tables, so that they hold wherever the job is resumed."""
    kernel, tuning = settings.kernel, settings.tuning
    if kernel.table is not None:
        kernel = dataclasses.replace(kernel, table=str(Path(kernel.table).expanduser().absolute()))
    path = absolute("tuning.table", tuning.table or str(run_dir.path / TABLE_NAME), naming.submission)
    if tuning.table is not None:
        _refuse_unwritable(path)
    return dataclasses.replace(settings, kernel=kernel, tuning=dataclasses.replace(tuning, table=str(path)))


def _refuse_unwritable(path: Path) -> None:
    """Refuse a table that can't be written now, rather than after the first case has been measured."""
    if not path.parent.is_dir():
        raise UsageError(f"tuning.table={path}: {path.parent} isn't a folder")
    if path.exists():
        read_table("tuning.table", str(path))
        if not os.access(path, os.W_OK):
            raise UsageError(f"tuning.table={path}: the file isn't writable")
    try:
        tempfile.NamedTemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UsageError(f"tuning.table={path}: {path.parent} isn't writable ({error.strerror})") from error
