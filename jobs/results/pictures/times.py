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
from jobs.records.op import Op
from jobs.records.row import HEADLINE, Row
from jobs.results.pictures import selection, style
from jobs.results.pictures.selection import Shown

_LOCAL: dict[str, Any] = {"color": "black", "linestyle": "-", "linewidth": 1.2}
_BOUND: dict[str, Any] = {"color": "black", "linestyle": (0, (3, 2)), "linewidth": 1.2}
_WIDTH_INCHES = 9.0
_LETTER_INCHES = 0.06


def figure(rows: Sequence[Row], device_kind: str | None) -> Figure | None:
    """Bars from zero to the headline time of the slowest rank in microseconds; ``None`` where no row has one.

    With islands a bar each for the fastest and the slowest one.
    """
    if all(row.headline_us is None for row in rows):
        return None
    rows, left_out = selection.first_cases(rows)
    by_case = selection.shown_rows(rows)
    labels = selection.case_labels(list(by_case))
    everything = [shown for of_case in by_case.values() for shown in of_case]
    num_columns = 1 if len(by_case) == 1 or any(shown.place for shown in everything) else 2
    left, right = style.label_width(map(_name, everything)), 0.15
    drawing, axes = style.panels(
        len(by_case),
        num_columns=num_columns,
        height=0.24 * max(map(len, by_case.values())) + 0.1,
        width=_WIDTH_INCHES,
        left=left,
        right=right,
        gap=0.62,
    )
    for ax, (case, of_case) in zip(axes, by_case.items(), strict=True):
        _bars(ax, case, of_case, inches=_WIDTH_INCHES / num_columns - left - right)
        ax.set_title(labels[case])
    for ax in axes[-2:]:
        ax.set_xlabel("time of a call (µs)")
    has_gather = any(case.op is Op.all_gather_matmul for case in by_case)
    has_bounds = any(ax.get_lines() for ax in axes)
    style.head(
        drawing,
        "Time against the bound",
        selection.about(rows, device_kind, f"{HEADLINE} of the slowest rank", *left_out),
        [
            Line2D([], [], label="local: the work without communication, the fastest one", **_LOCAL),
            *([Line2D([], [], label="JAX tutorial's bound: local + 6 µs · (D - 1)", **_BOUND)] if has_gather else []),
        ]
        if has_bounds
        else [],
    )
    return drawing


def _bars(ax: Axes, case: Case, shown: Sequence[Shown], *, inches: float) -> None:
    """The bars of a case in axes ``inches`` wide."""
    local_us = min(
        (bar.row.headline_us for bar in shown if bar.row.implementation in LOCALS and bar.row.headline_us), default=None
    )
    has_bound = case.num_ranks > 1 and case.op is Op.all_gather_matmul
    bound_us = cost.article_bound_us(local_us, case.num_ranks) if local_us and has_bound else local_us
    # The halo keeps a line visible on a dark bar.
    for line_us, line in ((local_us, _LOCAL), (bound_us, _BOUND)):
        if line_us is not None:
            ax.axvline(line_us, path_effects=[withStroke(linewidth=2.6, foreground="white")], zorder=3, **line)
    texts = [_text(bar, local_us) for bar in shown]
    for place, (bar, text) in enumerate(zip(shown, texts, strict=True)):
        time_us = bar.row.headline_us
        if time_us is not None:
            colour = style.look(bar.row.implementation).colour
            ax.barh(place, time_us, 0.74, color=colour, edgecolor="#333333", linewidth=0.5)
        ax.annotate(
            text,
            (time_us or 0, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="black" if time_us is not None else style.FAILED_COLOUR,
            fontweight="normal" if time_us is not None else "bold",
            # Above the lines, which it interrupts.
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    longest_us = max([bar.row.headline_us or 0 for bar in shown] + [bound_us or 0]) or 1.0
    text_inches = min(0.1 + _LETTER_INCHES * max(map(len, texts)), 0.7 * inches)
    ax.set_xlim(0, longest_us * inches / (inches - text_inches))
    ax.set_yticks(range(len(shown)), [_name(bar) for bar in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


def _name(bar: Shown) -> str:
    return f"{bar.row.implementation}, {bar.place}" if bar.place else bar.row.implementation


def _text(bar: Shown, local_us: float | None) -> str:
    """The label at the end of a bar."""
    row, time_us = bar.row, bar.row.headline_us
    island = [style.cut(row.island)] if bar.place and row.island else []
    if time_us is None:
        return ", ".join([f"FAILED: {row.check.num_wrong} elements wrong" if row.check else "not run", *island])
    value = f"{time_us:.0f}" if time_us >= 1000 else f"{time_us:.1f}"
    # An island's ratio, as tables have it, is to its own local, not to the line.
    ratio = [f"{time_us / local_us:.2f}x local"] if local_us and not bar.place else []
    return ", ".join([f"{value} µs", *ratio, *island])
