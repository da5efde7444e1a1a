"""The runs of one side, with their devices, versions and timing options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from jobs.errors import UsageError
from jobs.records.environment import Environment
from jobs.records.row import Row
from jobs.results.disk.journal import JOURNAL_NAME, read
from jobs.results.disk.recorded_run import RecordedRun, read_run, run_dirs

# in_graph_us is the time of a program over its number of calls: other values make another quantity.
_TIMING = ("chain_length", "chain_repeats")
DEVICE = "device"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of ``jobs.bench``."""

    path: Path
    """Run directory, or a journal that stands alone."""
    rows: tuple[Row, ...]
    facts: dict[str, set[str]]
    """Known devices, versions and timing options by name: their values over all ranks."""
    commit: str | None

    @property
    def journal(self) -> Path:
        """File that the rows were read from."""
        return self.path if self.path.is_file() else self.path / JOURNAL_NAME

    @property
    def device_kinds(self) -> set[str]:
        """Names of the devices as jax has them; empty where unknown."""
        return self.facts.get(DEVICE, set())


def load_side(name: str, paths: Sequence[str]) -> list[Run]:
    """Load the runs of one side; error messages call it ``name``.

    A path is a run directory, a folder of run directories, or a journal. Files beside a journal are read only where it
    is called results.jsonl: beside another name they may belong to another run.

    Raises:
      UsageError: a path has no journal, a journal has no row, or a file can't be read.
    """
    runs = []
    for path in map(Path, paths):
        if not path.exists():
            raise UsageError(f"{name}={path}: no such run directory or journal")
        if path.is_dir():
            recorded = [read_run(folder) for folder in run_dirs(name, path)]
        elif path.name == JOURNAL_NAME:
            recorded = [read_run(path.parent)]
        else:
            recorded = [RecordedRun(path, tuple(read(path)), Environment(), "")]
        runs += [_run(name, run) for run in recorded]
    return runs


def refuse_repeated(base: Sequence[Run], new: Sequence[Run]) -> None:
    """Refuse a run that is named twice: it would count as two.

    Raises:
      UsageError: a journal was named twice.
    """
    seen: dict[Path, Path] = {}
    for run in (*base, *new):
        journal = run.journal.resolve()
        if journal in seen:
            raise UsageError(f"{run.path} is the same run as {seen[journal]}; each run counts once")
        seen[journal] = run.path


def _run(name: str, recorded: RecordedRun) -> Run:
    if not recorded.rows:
        raise UsageError(f"{name}={recorded.path}: {JOURNAL_NAME} holds no row: the job ended before its first one")
    facts = _facts(recorded.environment)
    try:
        facts |= _timing(recorded.config)
    except Exception as error:  # omegaconf's and yaml's errors share no class
        raise UsageError(
            f"{recorded.path}: its config.yaml isn't one of jobs.bench ({type(error).__name__}: {error})"
        ) from error
    return Run(path=recorded.path, rows=recorded.rows, facts=facts, commit=recorded.environment.git_sha)


def _facts(environment: Environment) -> dict[str, set[str]]:
    members = environment.all_members
    facts = {
        DEVICE: {member.device_kind for member in members},
        "driver": {member.driver_version for member in members if member.driver_version},
    }
    for versions in (environment.versions, *(member.versions for member in members)):
        for software, version in versions.items():
            facts.setdefault(software, set()).add(version)
    return {fact: values for fact, values in facts.items() if values}


def _timing(config: str) -> dict[str, set[str]]:
    if not config:
        return {}
    timing = OmegaConf.create(config).timing
    return {f"timing.{option}": {str(timing[option])} for option in _TIMING}
