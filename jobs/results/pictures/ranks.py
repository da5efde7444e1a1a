"""The samples of each rank: a column for each implementation, a block for each case, a line for each rank."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jobs.records.case import Case
from jobs.records.row import HEADLINE, Row
from jobs.results.pictures import selection, style

# What lies outside the middle 98 % of all samples is drawn at the edge: one stall would hide all skew.
_OUTER_PERCENT = 1
# Least half width of the axis in percent: below, it would show the clock's own noise.
_LEAST_LIMIT = 1.0
# Up to so many lines of ranks, each has its number.
_MAX_NUMBERED = 64


def figure(rows: Sequence[Row], device_kind: str | None) -> Figure | None:
    """Deviation of every sample from the median over all ranks, in percent; ``None`` where there are no samples."""
    rows, left_out = selection.first_cases(rows)
    by_case = {
        case: found
        for case, of_case in selection.fastest_rows(rows).items()
        if (found := {row.implementation: _deviations(row) for row in of_case if selection.samples_us(row)})
    }
    names = sorted({name for of_case in by_case.values() for name in of_case}, key=style.rank_of)
    if not names:
        return None
    limit = _limit(
        [value for of_case in by_case.values() for ranks in of_case.values() for rank in ranks for value in rank]
    )
    labels = selection.case_labels(list(by_case))
    num_lines = sum(case.num_ranks + 1 for case in by_case)
    margin = style.label_width(labels.values()) + 0.2
    drawing, axes = style.panels(
        len(names),
        num_columns=len(names),
        height=max(0.8, min(0.15 * num_lines, 14.0)),
        width=margin + max(2.1 * len(names), 5.5) + 0.2,
        margin=margin,
        left=0.08,
        right=0.15,
    )
    for ax, name in zip(axes, names, strict=True):
        _column(ax, by_case, name, labels, limit)
        ax.set_title(name)
        ax.tick_params(axis="y", left=False, labelleft=ax is axes[0])
    axes[len(axes) // 2].set_xlabel("deviation from the median of all ranks (%)")
    if num_lines <= _MAX_NUMBERED:
        _number_ranks(axes[0], list(by_case))
    style.head(
        drawing,
        "Samples of each rank",
        selection.about(rows, device_kind, f"{HEADLINE}; a line for each rank, from rank 0 down", *left_out),
        [
            Line2D([], [], linestyle="none", marker="o", markersize=4, label="sample", **_DOT),
            Line2D([], [], linestyle="none", marker=">", markersize=4, label="sample beyond the axis", **_DOT),
            Line2D(
                [], [], linestyle="none", marker="|", markersize=9, markeredgewidth=2, color="black", label="median"
            ),
        ],
    )
    return drawing


_DOT: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": "#555555"}


def _deviations(row: Row) -> list[list[float]]:
    ranks = selection.samples_us(row)
    centre = statistics.median(value for rank in ranks for value in rank)
    return [[100 * (value / centre - 1) for value in rank] for rank in ranks]


def _limit(values: Sequence[float]) -> float:
    if len(values) < 2:
        return _LEAST_LIMIT
    cuts = statistics.quantiles(values, n=100 // _OUTER_PERCENT, method="inclusive")
    return max(_LEAST_LIMIT, 1.1 * abs(cuts[0]), 1.1 * abs(cuts[-1]))


def _column(
    ax: Axes, by_case: dict[Case, dict[str, list[list[float]]]], name: str, labels: dict[Case, str], limit: float
) -> None:
    ticks, medians = [], []
    # By marker: those within the axis, and those drawn at its edges.
    samples: dict[str, list[tuple[float, float]]] = {"o": [], "<": [], ">": []}
    top = 0
    for case, of_case in by_case.items():
        for place, values in enumerate(of_case.get(name, ()), start=top):
            for value in values:
                marker = "o" if abs(value) <= limit else ">" if value > 0 else "<"
                samples[marker].append((max(-limit, min(value, limit)), place))
            medians.append((statistics.median(values), place))
        ticks.append(top + (case.num_ranks - 1) / 2)
        ax.axhline(top + case.num_ranks, color="#bbbbbb", linewidth=0.6)
        top += case.num_ranks + 1
    for marker, points in samples.items():
        ax.plot(*_columns(points), marker, markersize=3 if marker == "o" else 4, clip_on=False, **_DOT)
    ax.plot(*_columns(medians), "|", color="black", markersize=8, markeredgewidth=2, clip_on=False)
    ax.axvline(0, color="#888888", linewidth=0.8, zorder=0)
    ax.set_xlim(-limit, limit)
    ax.set_ylim(top - 1, -1)
    ax.set_yticks(ticks, [labels[case] for case in by_case])
    ax.grid(axis="x")


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _number_ranks(ax: Axes, cases: Sequence[Case]) -> None:
    ax.tick_params(axis="y", pad=16)
    top = 0
    for case in cases:
        for rank in range(case.num_ranks):
            ax.text(
                *(-0.03, top + rank, str(rank)), transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7
            )
        top += case.num_ranks + 1
