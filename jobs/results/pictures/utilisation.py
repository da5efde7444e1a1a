"""Utilisation against size: a panel for each weight, points by the rows of a shard, and the cost model's line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cmkernel import cost, performance_model, scatter_model
from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import HEADLINE, Row
from jobs.records.work import expected_time, flops
from jobs.results.pictures import selection, style
from jobs.results.pictures.selection import Shown

# The device that cmkernel.performance_model was fitted to.
_MODELLED_DEVICE = "NVIDIA H200"
# The model's line extends beyond the measured sizes by this factor: a single size gets a line, too.
_BEYOND = 4
_POINTS_PER_DOUBLING = 2


def figure(rows: Sequence[Row], device_kind: str | None) -> Figure | None:
    """Share of the tensor cores' peak in percent, or TFLOP/s of a rank where none is known; ``None`` without times."""
    shown = [one for of_case in selection.shown_rows(rows).values() for one in of_case if one.row.derived]
    if not shown:
        return None
    labels = selection.case_labels([one.row.case for one in shown], without="m_shard")
    # A weight of one type on one number of ranks: only m_shard varies within.
    groups: dict[str, list[Shown]] = {}
    for one in shown:
        groups.setdefault(labels[one.row.case], []).append(one)
    all_groups, groups = groups, dict(list(groups.items())[: style.MAX_CASES])
    left_out = [f"the first {len(groups)} of {len(all_groups)} weights"] if len(all_groups) > len(groups) else []
    has_peak = all(_utilisation(one) is not None for one in shown)
    drawing, axes = style.panels(
        len(groups), num_columns=1 if len(groups) == 1 else 2, height=2.3, left=0.7, right=0.2, gap=0.85
    )
    for ax, (label, group) in zip(axes, groups.items(), strict=True):
        for name in sorted({one.row.implementation for one in group}, key=style.rank_of):
            _points(ax, name, [one for one in group if one.row.implementation == name], has_peak)
        if device_kind and has_peak:
            _model_lines(ax, [one.row.case for one in group], device_kind)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel("m_shard (rows)")
        ax.set_ylabel("utilisation of peak (%)" if has_peak else "TFLOP/s of a rank")
        ax.set_ylim(0, 105 if has_peak else 1.1 * max(_value(one, has_peak) for one in group))
        ax.set_title(label)
        ax.grid()
    # All panels have the lines, not all need have all implementations.
    handles = {handle.get_label(): handle for ax in axes for handle in ax.get_legend_handles_labels()[0]}
    about = selection.about(rows, device_kind, f"from {HEADLINE} of the slowest rank", *left_out)
    style.head(drawing, "Utilisation against size", about, list(handles.values()))
    return drawing


def _points(ax: Axes, name: str, shown: Sequence[Shown], has_peak: bool) -> None:
    """A line through the fastest rows of an implementation, and hollow points for its slowest islands."""
    look = style.look(name)
    for slowest in (False, True):
        points = sorted(
            (one.row.case.m_shard, _value(one, has_peak)) for one in shown if (one.place == "slowest") == slowest
        )
        if points:
            ax.plot(
                *zip(*points, strict=True),
                color=look.colour,
                linestyle="none" if slowest else "-",
                linewidth=1.4,
                marker=look.marker,
                markersize=6.5,
                markerfacecolor="none" if slowest else look.colour,
                markeredgecolor=look.colour if slowest else "#333333",
                markeredgewidth=1.2 if slowest else 0.5,
                label=f"{name}, slowest island" if slowest else name,
            )


def _utilisation(shown: Shown) -> float | None:
    return shown.row.derived.utilisation if shown.row.derived else None


def _value(shown: Shown, has_peak: bool) -> float:
    assert shown.row.derived
    return 100 * (_utilisation(shown) or 0) if has_peak else shown.row.derived.tflops_per_gpu


def _model_lines(ax: Axes, cases: Sequence[Case], device_kind: str) -> None:
    """The roofline of the ring from the datasheet; on H200s also what ``auto`` goes by."""
    device, case = cost.device_model(device_kind), cases[0]
    assert device
    first, last = min(case.m_shard for case in cases) / _BEYOND, max(case.m_shard for case in cases) * _BEYOND
    m_shards = [max(round(first), 1)]
    while m_shards[-1] < last:
        m_shards.append(max(round(m_shards[-1] * 2 ** (1 / _POINTS_PER_DOUBLING)), m_shards[-1] + 1))
    of_sizes = [dataclasses.replace(case, m_shard=m_shard) for m_shard in m_shards]
    lines = {"MODELLED: roofline of the ring": ([expected_time(one, device).overlapped_us for one in of_sizes], "--")}
    if device_kind == _MODELLED_DEVICE and not case.op.is_layer:
        lines["MODELLED: mosaic_gpu"] = ([_modelled_us(one) for one in of_sizes], "-")
    for label, (times_us, linestyle) in lines.items():
        values = [100 * flops(one) / us * 1e-6 / device.peak_tflops for one, us in zip(of_sizes, times_us, strict=True)]
        ax.plot(m_shards, values, color="black", linewidth=1.0, linestyle=linestyle, label=label, zorder=1)


def _modelled_us(case: Case) -> float:
    sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard, "num_ranks": case.num_ranks}
    sizes["num_sms"] = performance_model.H200_NUM_SMS
    if case.op is Op.all_gather_matmul:
        config = performance_model.heuristic_config(**sizes)
        return performance_model.modelled_calls_us(config, **sizes)["mosaic_gpu"]
    sizes["partial_bytes"] = cost.ITEMSIZE[case.sent_dtype]
    scatter_config = scatter_model.scatter_heuristic_config(**sizes)
    return scatter_model.modelled_scatter_calls_us(scatter_config, **sizes)["mosaic_gpu"]
