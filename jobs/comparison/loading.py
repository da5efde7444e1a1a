"""One run, as it left its folder: rows, environment, the config that its times depend on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jobs.errors import UsageError
from jobs.records import Row
from jobs.results.journal import JOURNAL_NAME, read

# in_graph_us is a share of this many calls: with other values it is another quantity.
_TIMING = ("chain_length", "chain_repeats")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of ``jobs.bench``."""

    path: Path
    """As the user named it: a run directory or a journal."""
    rows: tuple[Row, ...]
    environment: dict[str, Any] | None
    """What environment.json holds; ``None`` where there is none."""
    timing: dict[str, Any]
    """Of config.yaml, what defines a time; empty where there is none."""

    @property
    def members(self) -> list[dict[str, Any]]:
        """Its ranks, of all gangs that the job had; empty where they aren't known."""
        return _members(self.environment or {})

    @property
    def device_kinds(self) -> set[str]:
        """Names that jax gives its devices; empty where they aren't known."""
        return {member["device_kind"] for member in self.members}


def load_side(name: str, paths: Sequence[str]) -> list[Run]:
    """The runs of one side, which messages call ``name``.

    Raises:
      UsageError: a path has no journal, or a file can't be read.
    """
    return [_load(name, Path(path)) for path in paths]


def refuse_repeated(base: Sequence[Run], new: Sequence[Run]) -> None:
    """One run counted twice would pass for two.

    Raises:
      UsageError: a journal was named twice.
    """
    seen: dict[Path, Path] = {}
    for run in (*base, *new):
        journal = _journal(run.path).resolve()
        if journal in seen:
            raise UsageError(f"{run.path} is the same run as {seen[journal]}; each run counts once")
        seen[journal] = run.path


def _load(name: str, path: Path) -> Run:
    journal = _journal(path)
    if not journal.is_file():
        raise UsageError(f"{name}={path}: {_why_no_journal(path)}")
    rows = tuple(read(journal))
    if not rows:
        raise UsageError(f"{name}={path}: {journal.name} holds no row: the job ended before its first one")
    # A journal of another name was moved here: the files beside it may be another run's.
    folder = journal.parent if journal.name == JOURNAL_NAME else None
    return Run(
        path=path,
        rows=rows,
        environment=_environment(folder / "environment.json") if folder else None,
        timing=_timing(folder / "config.yaml") if folder else {},
    )


def _journal(path: Path) -> Path:
    return path / JOURNAL_NAME if path.is_dir() else path


def _why_no_journal(path: Path) -> str:
    if not path.exists():
        return "no such run directory or journal"
    points = sorted(path.glob(f"*/{JOURNAL_NAME}"))
    if not points:
        return f"no {JOURNAL_NAME} in it"
    return f"no {JOURNAL_NAME} in it, but in {len(points)} folders below: name {path}/*"


def _environment(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        environment = json.loads(path.read_text())
        dict(environment["versions"])
        [member["device_kind"] for member in _members(environment)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not an environment.json of jobs.bench ({type(error).__name__}: {error})") from error
    assert isinstance(environment, dict)
    return environment


def _members(environment: dict[str, Any]) -> list[dict[str, Any]]:
    attempts = [environment, *environment.get("earlier_attempts", ())]
    return [dict(member) for attempt in attempts for member in attempt.get("members", ())]


def _timing(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(config, dict)
        return {name: config["timing"][name] for name in _TIMING}
    except Exception as error:  # of omegaconf and yaml alike, which have no class in common
        raise UsageError(f"{path}: not a config.yaml of jobs.bench ({type(error).__name__}: {error})") from error
