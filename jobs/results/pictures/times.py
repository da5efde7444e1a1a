"""Time against the bound: a panel for each case, a bar for each implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from cmkernel import cost
from jobs.config.implementations import LOCALS
from jobs.records.case import Case
from jobs.records.row import HEADLINE, Row
from jobs.results.analysis.derive import fastest_us
from jobs.results.pictures import selection, style

_LOCAL: dict[str, Any] = {"color": "black", "linestyle": "-", "linewidth": 1.3}
_ARTICLE: dict[str, Any] = {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1.3}


def figure(rows: Sequence[Row], device_kind: str | None) -> Figure | None:
    """Bars from zero to the headline time of the slowest rank in microseconds; ``None`` where no row has one."""
    if all(row.headline_us is None for row in rows):
        return None
    rows, left_out = selection.first_cases(rows)
    by_case = selection.fastest_rows(rows)
    labels = selection.case_labels(list(by_case))
    num_bars = max(map(len, by_case.values()))
    drawing, axes = style.panels(
        len(by_case),
        num_columns=1 if len(by_case) == 1 else 2,
        height=0.24 * num_bars + 0.1,
        left=style.label_width(row.implementation for row in rows),
        right=1.3,
        gap=0.62,
    )
    for ax, (case, of_case) in zip(axes, by_case.items(), strict=True):
        _bars(ax, case, of_case)
        ax.set_title(labels[case])
    for ax in axes[-2:]:
        ax.set_xlabel("time of a call (µs)")
    has_bounds = any(ax.get_lines() for ax in axes)
    style.head(
        drawing,
        "Time against the bound",
        selection.about(rows, device_kind, f"{HEADLINE} of the slowest rank", *left_out),
        [
            Line2D([], [], label="local: the multiply alone, the faster one", **_LOCAL),
            Line2D([], [], label="article's bound: local + 6 µs · (D - 1)", **_ARTICLE),
        ]
        if has_bounds
        else [],
    )
    return drawing


def _bars(ax: Axes, case: Case, rows: Sequence[Row]) -> None:
    local_us = fastest_us(LOCALS, {row.implementation: row.headline_us for row in rows})
    bound_us = cost.article_bound_us(local_us, case.num_ranks) if local_us and case.num_ranks > 1 else local_us
    times_us = [time_us for time_us in (*(row.headline_us for row in rows), bound_us) if time_us is not None]
    for place, row in enumerate(rows):
        look = style.look(row.implementation)
        time_us = row.headline_us
        if time_us is None:
            text = f"FAILED: {row.check.num_wrong} elements wrong" if row.check else "not run"
            ax.text(
                *(0, place, f" {text}"),
                va="center",
                color=style.FAILED_COLOUR,
                fontweight="bold",
                fontsize=8,
                # Above the lines.
                zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )
            continue
        ax.barh(place, time_us, 0.72, color=look.fill, hatch=look.hatch, edgecolor="black", linewidth=0.6)
        ratio = f",  {time_us / local_us:.2f}x local" if local_us else ""
        # In a column right of the axes, where no line is in the way.
        ax.text(1.02, place, f"{_told(time_us)}{ratio}", va="center", fontsize=8, transform=ax.get_yaxis_transform())
    for line_us, line in ((local_us, _LOCAL), (bound_us, _ARTICLE)):
        if line_us is not None:
            # The halo keeps it visible on dark bars.
            ax.axvline(line_us, path_effects=[withStroke(linewidth=2.6, foreground="white")], zorder=3, **line)
    ax.set_xlim(0, 1.03 * max(times_us, default=1.0))
    ax.set_yticks(range(len(rows)), [row.implementation for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


def _told(time_us: float) -> str:
    return f"{time_us:.0f}" if time_us >= 1000 else f"{time_us:.1f}"
