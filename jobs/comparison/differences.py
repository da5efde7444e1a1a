"""Differences between two sets of runs other than their times: each may explain a change."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from jobs.comparison.loading import Run
from jobs.comparison.matching import Pair

_UNKNOWN = "unknown"
# Relative difference of clocks that is worth a warning: times follow the clock.
_CLOCK_TOLERANCE = 0.02


def differences(base: Sequence[Run], new: Sequence[Run]) -> list[str]:
    """A line for each device, version or timing option that isn't the same in all runs, and for different clocks."""
    lines = [
        f"{run.path}: devices and versions are unknown: it has no environment.json"
        for run in (*base, *new)
        if not run.device_kinds
    ]
    for name in dict.fromkeys(name for run in (*base, *new) for name in run.facts):
        sides = [set().union(*(run.facts.get(name, set()) for run in runs)) for runs in (base, new)]
        if len(sides[0] | sides[1]) > 1:
            in_base, in_new = (" and ".join(sorted(side)) or _UNKNOWN for side in sides)
            lines.append(f"{name} differs: BASE {in_base}, NEW {in_new}")
    return lines + _clock_difference(base, new)


def config_differences(pair: Pair) -> str | None:
    """The tiles that changed from BASE to NEW, such as ``tile_n 128 -> 256``; ``None`` where none changed."""
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
    """Compare the clocks: hot GPUs run slower, whatever the program does."""
    in_base, in_new = (_clock_mhz(runs) for runs in (base, new))
    if in_base is None or in_new is None or abs(in_new / in_base - 1) <= _CLOCK_TOLERANCE:
        return []
    return [f"the slowest rank's SM clock differs: BASE {in_base:.0f} MHz, NEW {in_new:.0f} MHz (medians over rows)"]


def _clock_mhz(runs: Sequence[Run]) -> float | None:
    clocks = [min(rank.sm_clock_mhz for rank in row.telemetry) for run in runs for row in run.rows if row.telemetry]
    return statistics.median(clocks) if clocks else None
