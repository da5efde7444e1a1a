"""Tuning landscape: time by each option of the kernel's config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jobs.records.case import Case
from jobs.records.row import HEADLINE, Row
from jobs.results.pictures import selection, style

_MIN_CONFIGS = 3
_FASTEST = style.look("mosaic_gpu").colour


def figure(rows: Sequence[Row], device_kind: str | None) -> Figure | None:
    """A line of panels for each case and implementation with at least 3 configs, a panel for each option that varies.

    A point is a config; the line joins the fastest one of each value. ``None`` where no case has 3 configs.
    """
    groups = {key: group for key, group in _groups(rows).items() if len(_distinct(group)) >= _MIN_CONFIGS}
    groups = dict(list(groups.items())[: style.MAX_CASES])
    if not groups:
        return None
    shown = [row for group in groups.values() for row in group]
    num_columns = max(len(_varying(group)) for group in groups.values())
    labels = selection.case_labels([case for case, _ in groups])
    drawing, axes = style.panels(
        len(groups) * num_columns,
        num_columns=num_columns,
        height=1.7,
        width=max(9.0, 0.4 + 2.5 * num_columns),
        left=0.8,
        gap=0.95,
    )
    for number, ((case, implementation), group) in enumerate(groups.items()):
        line, options = axes[number * num_columns : (number + 1) * num_columns], _varying(group)
        for ax, option in zip(line, options, strict=False):
            _panel(ax, group, option)
        for ax in line[len(options) :]:
            ax.remove()
        line[0].set_title(f"{implementation}, {labels[case]}: {len(_distinct(group))} configs", pad=8)
        line[0].set_ylabel("time (µs)")
    style.head(
        drawing,
        "Tuning landscape",
        selection.shared(shown, device_kind, f"{HEADLINE} of the slowest rank"),
        [
            Line2D([], [], linestyle="none", marker="o", markersize=4, label="a config", **style.SAMPLE),
            Line2D([], [], color=_FASTEST, linewidth=1.2, label="fastest config with this value"),
            Line2D([], [], linestyle="none", marker="o", markersize=7, color=_FASTEST, label="fastest of all"),
        ],
    )
    return drawing


def _groups(rows: Sequence[Row]) -> dict[tuple[Case, str], list[Row]]:
    groups: dict[tuple[Case, str], list[Row]] = {}
    for row in rows:
        if row.config and row.headline_us is not None:
            groups.setdefault((row.case, row.implementation), []).append(row)
    return groups


def _distinct(group: Sequence[Row]) -> set[str]:
    return {str(sorted((row.config or {}).items())) for row in group}


def _varying(group: Sequence[Row]) -> list[str]:
    options = dict.fromkeys(option for row in group for option in row.config or {})
    return [option for option in options if len({str(_value(row, option)) for row in group}) > 1]


def _value(row: Row, option: str) -> Any:
    return (row.config or {}).get(option)


def _panel(ax: Axes, group: Sequence[Row], option: str) -> None:
    values = sorted({_value(row, option) for row in group}, key=lambda value: (isinstance(value, str), value or 0))
    best: dict[int, float] = {}
    for row in group:
        place, time_us = values.index(_value(row, option)), row.headline_us
        assert time_us is not None
        ax.plot([place], [time_us], "o", markersize=4, **style.SAMPLE)
        best[place] = min(time_us, best.get(place, time_us))
    ax.plot(sorted(best), [best[place] for place in sorted(best)], color=_FASTEST, linewidth=1.2)
    fastest = min(best, key=lambda place: best[place])
    ax.plot([fastest], [best[fastest]], "o", color=_FASTEST, markersize=7, clip_on=False)
    ax.set_xticks(range(len(values)), [str(value) for value in values])
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_xlabel(option)
    # Times that hardly differ would be written as differences from an offset.
    ax.ticklabel_format(axis="y", style="plain", useOffset=False)
    ax.grid(axis="y")
