"""The samples of each rank: a column for each implementation, a block for each case, a line for each rank."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jobs.records.case import Case
from jobs.records.row import HEADLINE, Row
from jobs.results.pictures import selection, style
from jobs.results.pictures.selection import Shown

# Samples outside the middle 98 % are drawn at the edge: one stall would hide all skew.
_OUTER_PERCENT = 1
# Smallest half width of the axis in percent: a narrower one shows the clock's own noise.
_LEAST_LIMIT = 1.0
# Most lines with room for a rank's number on each.
_MAX_NUMBERED = 64


def figure(rows: Sequence[Row], device_kind: str | None) -> Figure | None:
    """Deviation of every sample from the median over all ranks, in percent; ``None`` where there are no samples."""
    rows, left_out = selection.first_cases(rows)
    blocks = _blocks(selection.shown_rows(rows))
    names = sorted({name for block in blocks for name in block.deviations}, key=style.rank_of)
    if not names:
        return None
    limit = _limit(
        [value for block in blocks for ranks in block.deviations.values() for rank in ranks for value in rank]
    )
    num_lines = sum(block.num_ranks + 1 for block in blocks)
    margin = style.label_width(block.label for block in blocks) + 0.2
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
        _column(ax, blocks, name, limit)
        ax.set_title(name)
        ax.tick_params(axis="y", left=False, labelleft=ax is axes[0])
    axes[len(axes) // 2].set_xlabel("deviation from the median of all ranks (%)")
    if num_lines <= _MAX_NUMBERED:
        _number_ranks(axes[0], blocks)
    style.head(
        drawing,
        "Samples of each rank",
        selection.about(rows, device_kind, f"{HEADLINE}; a line for each rank, from rank 0 down", *left_out),
        [
            Line2D([], [], linestyle="none", marker="o", markersize=4, label="sample", **style.SAMPLE),
            Line2D([], [], linestyle="none", marker=">", markersize=4, label="sample beyond the axis", **style.SAMPLE),
            Line2D(
                [], [], linestyle="none", marker="|", markersize=9, markeredgewidth=2, color="black", label="median"
            ),
        ],
    )
    return drawing


@dataclasses.dataclass
class _Block:
    """A case, or one island of it: a line for each rank."""

    label: str
    num_ranks: int
    deviations: dict[str, list[list[float]]]
    """Samples in percent over the median, by implementation: ``[rank][sample]``."""


def _blocks(by_case: Mapping[Case, Sequence[Shown]]) -> list[_Block]:
    """Blocks with samples. Both islands of an implementation are compared with the median over both."""
    labels = selection.case_labels(list(by_case))
    blocks: dict[tuple[Case, str], _Block] = {}
    for case, of_case in by_case.items():
        pooled: dict[str, list[float]] = defaultdict(list)
        for one in of_case:
            pooled[one.row.implementation] += itertools.chain.from_iterable(selection.samples_us(one.row))
        for one in of_case:
            if ranks := selection.samples_us(one.row):
                centre = statistics.median(pooled[one.row.implementation])
                label = ", ".join(filter(None, (labels[case], one.place and f"{one.place} island")))
                block = blocks.setdefault((case, one.place), _Block(label, case.num_ranks, {}))
                block.deviations[one.row.implementation] = [
                    [100 * (value / centre - 1) for value in rank] for rank in ranks
                ]
    return list(blocks.values())


def _limit(values: Sequence[float]) -> float:
    if len(values) < 2:
        return _LEAST_LIMIT
    cuts = statistics.quantiles(values, n=100 // _OUTER_PERCENT, method="inclusive")
    return max(_LEAST_LIMIT, 1.1 * abs(cuts[0]), 1.1 * abs(cuts[-1]))


def _column(ax: Axes, blocks: Sequence[_Block], name: str, limit: float) -> None:
    """All blocks of the implementation ``name``, one below the other."""
    ticks, medians = [], []
    # By marker: samples within the axis, and those drawn at its edges.
    samples: dict[str, list[tuple[float, float]]] = {"o": [], "<": [], ">": []}
    top = 0
    for block in blocks:
        for place, values in enumerate(block.deviations.get(name, ()), start=top):
            for value in values:
                marker = "o" if abs(value) <= limit else ">" if value > 0 else "<"
                samples[marker].append((max(-limit, min(value, limit)), place))
            medians.append((statistics.median(values), place))
        ticks.append(top + (block.num_ranks - 1) / 2)
        ax.axhline(top + block.num_ranks, color="#bbbbbb", linewidth=0.6)
        top += block.num_ranks + 1
    for marker, points in samples.items():
        ax.plot(*_columns(points), marker, markersize=3 if marker == "o" else 4, clip_on=False, **style.SAMPLE)
    ax.plot(
        *_columns(medians), "|", color=style.look(name).colour, markersize=9, markeredgewidth=3, zorder=3, clip_on=False
    )
    ax.axvline(0, color="#888888", linewidth=0.8, zorder=0)
    ax.set_xlim(-limit, limit)
    ax.set_ylim(top - 1, -1)
    ax.set_yticks(ticks, [block.label for block in blocks])
    ax.grid(axis="x")


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _number_ranks(ax: Axes, blocks: Sequence[_Block]) -> None:
    ax.tick_params(axis="y", pad=16)
    top = 0
    for block in blocks:
        for rank in range(block.num_ranks):
            ax.text(
                *(-0.03, top + rank, str(rank)), transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7
            )
        top += block.num_ranks + 1
