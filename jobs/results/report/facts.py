"""Facts of recorded runs that open a report: what was measured, where, when and at which commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jobs.records.environment import short_sha
from jobs.results.analysis.robust import DEFAULT_OUTLIER_Z
from jobs.results.disk.json_safe import json_safe
from jobs.results.disk.recorded_run import RecordedRun

_MAX_NAMES = 6
_UNKNOWN = "not recorded"


def title(runs: Sequence[RecordedRun]) -> str:
    """The cases and the devices in one line."""
    names = _listed(row.case.label for run in runs for row in run.rows) or "no rows"
    members, device = runs[0].members, runs[0].device_kind
    return f"cmkernel: {names}" + (f" on {len(members)} x {device}" if device else "")


def facts(runs: Sequence[RecordedRun]) -> list[tuple[str, str]]:
    """Names and values, for all runs together."""
    rows = [row for run in runs for row in run.rows]
    times = sorted(row.time for row in rows if row.time)
    cases = list(dict.fromkeys(row.case for row in rows))
    ranks = sorted({case.num_ranks for case in cases})
    what = [
        f"{len(cases)} case{'' if len(cases) == 1 else 's'} in {_listed(case.types for case in cases)}",
        f"D = {_listed(map(str, ranks))} rank{'' if ranks == [1] else 's'}",
        _listed((row.implementation for row in rows), 12),
    ]
    commits = dict.fromkeys(run.environment.git_sha for run in runs)
    several = [("Runs", _listed((str(run.path) for run in runs), 12))] if len(runs) > 1 else []
    return [
        *several,
        ("What", "; ".join(what) if rows else "no rows"),
        ("Where", "; ".join(dict.fromkeys(map(_place, runs)))),
        ("When", f"{_minute(times[0])} to {_minute(times[-1])} UTC" if times else _UNKNOWN),
        ("Commit", _listed(short_sha(sha) if sha else _UNKNOWN for sha in commits)),
    ]


def command(run: RecordedRun) -> str:
    """The command line of the job."""
    return run.environment.command or _UNKNOWN


def outlier_z(run: RecordedRun) -> float:
    """The z-score above which the job called an island or a rank an outlier."""
    return run.environment.outlier_z or DEFAULT_OUTLIER_Z


def environment(run: RecordedRun) -> list[tuple[str, Any]]:
    """All of ``environment.json`` as names and values, nested ones under dotted names."""
    return [(name, value) for name, value in _leaves(json_safe(run.environment.to_json())) if value is not None]


def _place(run: RecordedRun) -> str:
    """Devices, hosts and the software that decides about times."""
    members = run.members
    if not members:
        return _UNKNOWN
    kinds = Counter(member.device_kind for member in members)
    hosts = list(dict.fromkeys(member.host for member in members))
    devices = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    versions = members[0].versions
    software = [f"{name} {versions[name]}" for name in ("jax", "nccl") if name in versions]
    if driver := members[0].driver_version:
        software.append(f"driver {driver}")
    where = f"{devices} on {len(hosts)} host{'' if len(hosts) == 1 else 's'} ({_listed(hosts)})"
    return ", ".join([where, *software])


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _listed(values: Iterable[str], most: int = _MAX_NAMES) -> str:
    """Distinct ``values``, the first ``most`` of them."""
    names = list(dict.fromkeys(values))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        items = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    else:
        return [(name, value)]
    return [leaf for key, item in items for leaf in _leaves(item, key)]
