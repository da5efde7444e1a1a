"""One revolution of the ring: when each rank receives and multiplies each shard, measured or modelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cmkernel import performance_model, ring
from cmkernel.config import KernelConfig, MatmulDimension
from cmkernel.modelled_timeline import modelled_timeline
from cmkernel.timeline import Interval, StepTimes
from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import Row
from jobs.results.pictures import selection, style
from jobs.results.pictures.selection import Shown

# All ranks do the same at the same time: more of them only make the picture longer.
_MAX_CASES, _MAX_RANKS, _LEAST_RANKS = 4, 8, 2
_KERNEL = "mosaic_gpu"
# Steps alternate between two blues, so that their ends show.
_MULTIPLY = (style.look(_KERNEL).colour, "#3d94c8")
_ARRIVAL = "#f2c879"


def figure(rows: Sequence[Row], device_kind: str | None) -> Figure | None:
    """The timeline of ``mosaic_gpu``, from the rows that have one; where none has, the model's on H200s.

    ``None`` with one rank, without a 2-byte type, or without an all-gather matmul. With islands, the fastest and the
    slowest one's.
    """
    candidates = [
        row
        for row in rows
        if row.case.op is Op.all_gather_matmul and row.case.num_ranks > 1 and row.case.dtype != "float32"
    ]
    measured = [row for row in candidates if row.timeline]
    shapes = _shapes(measured or candidates)
    shown = shapes[:_MAX_CASES]
    if not shown:
        return None
    labels = selection.case_labels([one.row.case for one in shapes])
    num_ranks = max(one.row.case.num_ranks for one in shown)
    num_lanes = min(num_ranks, max(_MAX_RANKS // len(shown), _LEAST_RANKS))
    drawing, axes = style.panels(len(shown), num_columns=1, height=0.62 * num_lanes, left=1.35, gap=0.62)
    for ax, one in zip(axes, shown, strict=True):
        row = one.row
        ranks, tiles = (_measured(row), "one call") if measured else _modelled(row)
        _lanes(ax, row.case, ranks[:num_lanes])
        wait_us = sum(step.wait_us for rank in ranks for step in rank) / len(ranks)
        who = "loading warp" if measured else "CTA"
        where = f", {one.place} island {style.cut(row.island or '-')}" if measured and one.place else ""
        ax.set_title(f"{labels[row.case]}{where}; {tiles}; waits for pieces: {wait_us:.1f} µs of a {who} on average")
    axes[-1].set_xlabel("time from the start of the rank's kernel (µs)")
    notes = [f"the first {len(shown)} of {len(shapes)} shapes"] if len(shapes) > len(shown) else []
    alike = "" if measured else ", the others alike"
    notes += [f"ranks 0 to {num_lanes - 1} of {num_ranks}{alike}"] if num_lanes < num_ranks else []
    shared = selection.shared([one.row for one in shapes], device_kind if measured else None, *notes)
    about = "by the GPUs' clocks" if measured else "on NVIDIA H200s, not measured"
    style.head(
        drawing,
        f"One revolution of the ring: {'measured' if measured else 'MODELLED'}",
        f"mosaic_gpu {about}; {shared}",
        [
            Patch(facecolor=_MULTIPLY[0], edgecolor="black", label="multiplies a shard"),
            Patch(facecolor=_ARRIVAL, edgecolor="black", label="a shard arrives"),
        ],
    )
    return drawing


def _shapes(rows: Sequence[Row]) -> list[Shown]:
    """One row of each shape, with timelines of several islands two; rows of the kernel itself are preferred."""
    everything = [one for of_case in selection.shown_rows(rows).values() for one in of_case]
    shapes: dict[tuple[object, ...], Shown] = {}
    for one in sorted(everything, key=lambda one: one.row.implementation != _KERNEL):
        case = one.row.case
        place = one.place if one.row.timeline else ""
        shapes.setdefault((case.m_shard, case.k, case.n_shard, case.num_ranks, place), one)
    return list(shapes.values())


def _measured(row: Row) -> list[list[StepTimes]]:
    """Each rank's steps."""
    return [[StepTimes.from_json(step) for step in steps] for steps in row.timeline]


def _modelled(row: Row) -> tuple[list[tuple[StepTimes, ...]], str]:
    """Each rank's steps, and the origin of the config: the row's where the model knows it, else the heuristic's."""
    case = row.case
    sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard, "num_ranks": case.num_ranks}
    sizes["num_sms"] = performance_model.H200_NUM_SMS
    if row.implementation == _KERNEL and row.config:
        known = {field.name for field in dataclasses.fields(KernelConfig)}
        options = {name: value for name, value in row.config.items() if name in known}
        try:
            config = KernelConfig(**{**options, "wg_dimension": MatmulDimension[options["wg_dimension"]]})
            return [modelled_timeline(config, **sizes)] * case.num_ranks, "measured config"
        except (KeyError, ValueError):
            pass
    config = performance_model.heuristic_config(**sizes)
    return [modelled_timeline(config, **sizes)] * case.num_ranks, "the heuristic's config"


def _lanes(ax: Axes, case: Case, ranks: Sequence[Sequence[StepTimes]]) -> None:
    """Draw two lanes for each of the ``ranks``, each in two halves: a step overlaps the one before it."""
    end_us = max(step.multiply.end_us for steps in ranks for step in steps)
    ticks: dict[float, str] = {}
    for rank, steps in enumerate(ranks):
        ticks |= {rank - 0.22: f"rank {rank} multiplies", rank + 0.22: "receives"}
        for step in steps:
            shard = ring.source_shard(rank, step.step, case.num_ranks)
            half = 0.2 * (step.step % 2)
            _bar(ax, rank - 0.42 + half, step.multiply, shard, end_us, facecolor=_MULTIPLY[step.step % 2])
            if step.arrival:
                _bar(ax, rank + 0.02 + half, step.arrival, shard, end_us, facecolor=_ARRIVAL)
        ax.axhline(rank + 0.5, color="#bbbbbb", linewidth=0.6)
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.set_ylim(len(ranks) - 0.5, -0.5)
    ax.set_xlim(min(0, *(step.arrival.start_us for steps in ranks for step in steps if step.arrival)), end_us * 1.01)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


def _bar(ax: Axes, bottom: float, interval: Interval, shard: int, whole_us: float, **fill: Any) -> None:
    length_us = interval.end_us - interval.start_us
    ax.barh(bottom, length_us, 0.2, left=interval.start_us, align="edge", edgecolor="black", linewidth=0.5, **fill)
    if length_us > 0.06 * whole_us:
        middle_us = (interval.start_us + interval.end_us) / 2
        colour = "white" if fill["facecolor"] in _MULTIPLY else "black"
        ax.text(middle_us, bottom + 0.1, f"shard {shard}", ha="center", va="center_baseline", fontsize=7, color=colour)
