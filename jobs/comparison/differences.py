"""What else differs between two sets of runs, and may be the reason for what the times show."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from jobs.comparison.loading import Run
from jobs.comparison.matching import Pair

_UNKNOWN = "unknown"
# Relative difference of the clocks of two sides that is worth a word: times follow the clock.
_CLOCK_TOLERANCE = 0.02


def differences(base: Sequence[Run], new: Sequence[Run]) -> list[str]:
    """A line for each fact of devices, versions and timing that isn't the same in all runs, and for other clocks."""
    sides = [[_facts(run) for run in runs] for runs in (base, new)]
    names = dict.fromkeys(name for side in sides for facts in side for name in facts)
    lines = [f"{run.path} has no environment.json: its devices and versions are unknown" for run in _bare(base, new)]
    for name in names:
        values = [sorted({facts[name] for facts in side if name in facts}) for side in sides]
        if len({value for side in values for value in side}) > 1:
            in_base, in_new = (" and ".join(side) or _UNKNOWN for side in values)
            lines.append(f"{name} differs: BASE {in_base}, NEW {in_new}")
    return lines + _clock_difference(base, new)


def config_differences(pair: Pair) -> str | None:
    """The tiles that changed from BASE to NEW, such as ``tile_n 128 -> 256``; ``None`` where none did."""
    if pair.base_configs == pair.new_configs:
        return None
    options = dict.fromkeys(name for config in (*pair.base_configs, *pair.new_configs) for name in config)
    changes = []
    for option in options:
        base, new = (_values(configs, option) for configs in (pair.base_configs, pair.new_configs))
        if base != new:
            changes.append(f"{option} {base} -> {new}")
    return f"{pair.key}: {', '.join(changes)}" if changes else None


def _values(configs: Sequence[dict[str, Any]], option: str) -> str:
    return " or ".join(dict.fromkeys(str(config.get(option)) for config in configs)) or "none"


def _clock_difference(base: Sequence[Run], new: Sequence[Run]) -> list[str]:
    """Hot GPUs run slower: a difference of clocks is none of the program."""
    in_base, in_new = (_clock_mhz(runs) for runs in (base, new))
    if in_base is None or in_new is None or abs(in_new / in_base - 1) <= _CLOCK_TOLERANCE:
        return []
    return [f"the slowest rank's SM clock differs: BASE {in_base:.0f} MHz, NEW {in_new:.0f} MHz (medians over rows)"]


def _clock_mhz(runs: Sequence[Run]) -> float | None:
    clocks = [min(rank.sm_clock_mhz for rank in row.telemetry) for run in runs for row in run.rows if row.telemetry]
    return statistics.median(clocks) if clocks else None


def _bare(base: Sequence[Run], new: Sequence[Run]) -> list[Run]:
    return [run for run in (*base, *new) if run.environment is None]


def _facts(run: Run) -> dict[str, str]:
    """What is known of a run."""
    environment = run.environment or {}
    facts = {"device": run.device_kinds}
    for versions in (environment.get("versions", {}), *(member.get("versions", {}) for member in run.members)):
        for name, version in versions.items():
            facts.setdefault(name, set()).add(str(version))
    facts["driver"] = {str(member["driver_version"]) for member in run.members if member.get("driver_version")}
    facts |= {f"timing.{name}": {str(value)} for name, value in run.timing.items()}
    return {name: " and ".join(sorted(values)) for name, values in facts.items() if values}
