"""Opening of a job: final settings, run directory, and every refusal that needs no cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from omegaconf import DictConfig

from cmkernel import Table
from jobs.config.problem import expand, resolve_problem
from jobs.config.resume import continued
from jobs.config.rules import recorded_settings, to_settings
from jobs.config.schema import Settings
from jobs.config.tuned_table import read_table
from jobs.driver.kind import Kind
from jobs.driver.naming import Naming
from jobs.results.disk.journal import iterate
from jobs.results.disk.run_dir import RunDir, absolute, refuse_unwritable
from jobs.results.wandb import rules

TABLE_NAME = "tuned.jsonl"


@dataclasses.dataclass(frozen=True)
class Job:
    """A job before it connects to a cluster; immutable."""

    settings: Settings
    kind: Kind
    naming: Naming
    run_dir: RunDir
    table: Table | None
    """Tuned configs from ``kernel.table``; ``None``: the table that ships with cmkernel."""

    @property
    def winners_path(self) -> Path:
        """Table that gets the winners of a tuning: ``tuning.table``, or one in the run directory."""
        return Path(self.settings.tuning.table or self.run_dir.path / TABLE_NAME)


def open_job(config: DictConfig, kind: Kind, naming: Naming) -> Job:
    """Open the job of a composed config, with its run directory.

    A new job's mistakes are refused before its run directory is made.

    Raises:
      UsageError: an option breaks its rule, contradicts the job that is resumed, or names a file that can't be used.
      InfrastructureError: the disk is full or broken.
    """
    settings = to_settings(config)
    if settings.resume is None:
        settings, table = _accepted_as_new(settings, kind, naming)
        run_dir = RunDir.create(naming.below(settings.run_dir), submission_id=naming.own_run_dir)
    else:
        run_dir = RunDir.reopen(settings.resume, submission_id=naming.submission)
        stored = recorded_settings(run_dir.config_path)
        settings = continued(stored, settings, naming.overrides, num_ranks=_recorded_ranks(run_dir))
        settings, table = _accepted(settings, kind, naming)
    job = Job(settings, kind, naming, run_dir, table)
    if kind.writes_table:
        _refuse_unwritable_table(job.winners_path)
    return job


def refuse_mistakes(config: DictConfig, kind: Kind, naming: Naming) -> None:
    """Refuse what ``open_job`` would refuse of a new job before it makes a run directory.

    Raises:
      UsageError: an option breaks its rule, or names a file that can't be used.
    """
    settings = to_settings(config)
    if settings.resume is None:
        _accepted_as_new(settings, kind, naming)


def _accepted_as_new(settings: Settings, kind: Kind, naming: Naming) -> tuple[Settings, Table | None]:
    # The number of ranks may still be unknown; the sizes are not.
    expand(resolve_problem(settings.problem, on_gpus=False), settings.cluster.num_ranks or 1)
    return _accepted(settings, kind, naming)


def _accepted(settings: Settings, kind: Kind, naming: Naming) -> tuple[Settings, Table | None]:
    """Settings that W&B and the kind of job accept, with absolute paths of tables, and the table ``kernel.table``."""
    kind.refuse(settings)
    wandb = rules.accepted(settings.wandb, is_resumed=settings.resume is not None)
    kernel, tuning = settings.kernel, settings.tuning
    if kernel.table is not None:
        kernel = dataclasses.replace(kernel, table=str(Path(kernel.table).expanduser().absolute()))
    if kind.writes_table and tuning.table is not None:
        path = absolute("tuning.table", tuning.table, naming.submission)
        _refuse_unwritable_table(path)
        tuning = dataclasses.replace(tuning, table=str(path))
    settings = dataclasses.replace(settings, kernel=kernel, tuning=tuning, wandb=wandb)
    settings = with_junit_path(settings, submission_id=naming.submission, point=naming.point)
    return settings, read_table("kernel.table", kernel.table)


def with_junit_path(settings: Settings, *, submission_id: str | None, point: str | None = None) -> Settings:
    """Settings with the absolute path of ``results.junit``, which has the number of a multirun's point in its name.

    Raises:
      UsageError: the file can't be written.
    """
    if settings.results.junit is None:
        return settings
    path = absolute("results.junit", settings.results.junit, submission_id)
    if point is not None:
        path = path.with_stem(f"{path.stem}-{point}")
    refuse_unwritable("results.junit", path)
    return dataclasses.replace(settings, results=dataclasses.replace(settings.results, junit=str(path)))


def _recorded_ranks(run_dir: RunDir) -> int | None:
    """Number of ranks of the job to resume; ``None`` if it has no row."""
    first = next(iterate(run_dir.journal_path), None) if run_dir.journal_path.exists() else None
    return None if first is None else first.case.num_ranks


def _refuse_unwritable_table(path: Path) -> None:
    """Reject an unwritable table up front rather than after the first case has been measured."""
    refuse_unwritable("tuning.table", path)
    if path.exists():
        read_table("tuning.table", str(path))
