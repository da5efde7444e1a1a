"""The data of the pictures, for W&B's own charts."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import HEADLINE, RowSummary
from jobs.results.wandb import per_rank
from jobs.results.wandb.metrics import case_name

# The picture of a landscape has the same limit.
MIN_CONFIGS = 3


@dataclasses.dataclass(frozen=True)
class Chart:
    """One chart and its table."""

    name: str
    """Name of the picture with the same data."""
    kind: Literal["bar", "line", "scatter"]
    title: str
    x: str
    """Column of the labels, or of the horizontal axis."""
    y: str
    columns: tuple[str, ...]
    lines: Sequence[Sequence[Any]]
    stroke: str | None = None
    """Column that names the curve."""


def charts(
    by_case: Mapping[Case, Mapping[str, RowSummary]],
    rows: Sequence[RowSummary],
    per_rank_lines: Sequence[Sequence[Any]],
) -> list[Chart]:
    """Make the charts that there is data for.

    Args:
      by_case: the fastest row of each implementation.
      rows: all rows.
      per_rank_lines: lines of the table ``per_rank``.
    """
    fastest = [row for of_case in by_case.values() for row in of_case.values()]
    made = [_time_against_bound(by_case), _utilisation(fastest), _ranks(per_rank_lines), _landscape(rows)]
    return [chart for chart in made if chart.lines]


def _time_against_bound(by_case: Mapping[Case, Mapping[str, RowSummary]]) -> Chart:
    lines = []
    for case, rows in by_case.items():
        times = {name: row.headline_us for name, row in rows.items()}
        bounds = [row.derived.article_bound_us for row in rows.values() if row.derived]
        times["JAX tutorial's bound"] = next((bound for bound in bounds if bound is not None), None)
        lines += [[f"{case_name(case)} {name}", time_us] for name, time_us in times.items() if time_us is not None]
    title = f"Time against the bound: {HEADLINE} of the slowest rank"
    return Chart("time_against_bound", "bar", title, "case", HEADLINE, ("case", HEADLINE), lines)


def _utilisation(rows: Sequence[RowSummary]) -> Chart:
    """A curve for each implementation and weight; empty where all cases have one size."""
    known = [(row, row.derived) for row in rows if row.derived]
    has_peak = all(derived.utilisation is not None for _, derived in known)
    y = "util_pct" if has_peak else "tflops"
    lines = [
        [
            row.case.m_shard,
            100 * derived.utilisation if has_peak and derived.utilisation is not None else derived.tflops_per_gpu,
            f"{row.implementation} {_weight(row.case)} {row.case.types}",
        ]
        for row, derived in known
    ]
    if len({row.case.m_shard for row, _ in known}) < 2:
        lines = []
    columns = ("m_shard", y, "implementation")
    return Chart("utilisation", "line", "Utilisation against size", "m_shard", y, columns, lines, "implementation")


def _weight(case: Case) -> str:
    sizes = f"{case.k}x{case.n_shard}"
    return sizes if case.op is Op.all_gather_matmul else f"{case.op.short} {sizes}"


def _ranks(per_rank_lines: Sequence[Sequence[Any]]) -> Chart:
    """Deviation of each rank's median from the median of all ranks, for each row."""
    key = len(per_rank.COLUMNS[: per_rank.COLUMNS.index("rank")])
    rank, time = per_rank.COLUMNS.index("rank"), per_rank.COLUMNS.index(HEADLINE)
    groups: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
    for line in per_rank_lines:
        if line[time] is not None:
            groups.setdefault(tuple(line[:key]), []).append(line)
    lines = []
    for (name, m_shard, k, n_shard, dtype, implementation, island), of_row in groups.items():
        middle_us = statistics.median(line[time] for line in of_row)
        label = f"{name} {m_shard}x{k}x{n_shard} {dtype} {implementation}" + (f" {island}" if island else "")
        lines += [[line[rank], 100 * (line[time] / middle_us - 1), label] for line in of_row if len(of_row) > 1]
    y = "deviation_pct"
    return Chart("ranks", "scatter", "Ranks: deviation from the median of all", "rank", y, ("rank", y, "case"), lines)


def _landscape(rows: Sequence[RowSummary]) -> Chart:
    """Time with each config, fastest first, where an implementation ran with several configs on a case."""
    groups: dict[tuple[Case, str], dict[str, RowSummary]] = {}
    for row in rows:
        if row.config and row.headline_us is not None:
            groups.setdefault((row.case, row.implementation), {})[str(row.config)] = row
    lines = []
    for (case, name), by_config in groups.items():
        configs = [row.config or {} for row in by_config.values()]
        if len(configs) < MIN_CONFIGS:
            continue
        varied = [option for option in configs[0] if len({str(config.get(option)) for config in configs}) > 1]
        for row in sorted(by_config.values(), key=lambda row: row.headline_us or 0.0):
            options = " ".join(f"{option}={(row.config or {}).get(option)}" for option in varied)
            lines.append([f"{case_name(case)} {name} {options}", row.headline_us])
    title = f"Time by config: {HEADLINE} of the slowest rank"
    return Chart("tuning_landscape", "bar", title, "config", HEADLINE, ("config", HEADLINE), lines)
