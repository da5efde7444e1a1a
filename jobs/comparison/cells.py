"""Columns shared by the terminal table and the Markdown."""

from __future__ import annotations

import math

from jobs.comparison.comparison import ComparedRow

_CASE = ("case", "m_shard", "k", "n_shard", "type", "D", "implementation")
TITLES = (*_CASE, "BASE (us)", "NEW (us)", "change", "interval", "runs", "verdict")
LEFT_ALIGNED = ("case", "type", "implementation", "verdict")


def cells(row: ComparedRow) -> list[str]:
    """One cell for each of ``TITLES``."""
    key, change = row.key, row.change
    return [
        row.case_name,
        str(key.m_shard),
        str(key.k),
        str(key.n_shard),
        key.types,
        str(key.num_ranks),
        key.implementation,
        f"{change.base_us:.2f}",
        f"{change.new_us:.2f}",
        _percent(change.relative),
        f"{_percent(change.low)} to {_percent(change.high)}" if math.isfinite(change.high) else "unknown",
        f"{row.num_base} + {row.num_new}",
        row.verdict.value,
    ]


def _percent(relative: float) -> str:
    return f"{100 * relative:+.1f} %"
