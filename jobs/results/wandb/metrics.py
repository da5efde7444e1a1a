"""Names, units and values of W&B's metrics. They are an interface, and docs/metrics.md lists them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from jobs.records.case import Case
from jobs.records.member import Member
from jobs.records.op import Op
from jobs.records.row import HEADLINE, TIMES, RowSummary
from jobs.results.analysis.best import best

Scalar = float | int | str
STEP = "case/number"
"""Metric that curves are drawn over."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A name of the run's history."""

    name: str
    unit: str
    """Empty where there is none."""
    value: Callable[[RowSummary], Scalar | None]
    """``None`` where unknown."""
    is_drawn: bool = False
    """True where W&B shows the curve by default."""


def _slowest(name: str, row: RowSummary) -> float | None:
    spread = getattr(row, name)
    return spread.max if spread else None


def _derived(name: str, scale: float, row: RowSummary) -> float | None:
    value = getattr(row.derived, name) if row.derived else None
    return None if value is None else value * scale


def _case(name: str, row: RowSummary) -> Scalar:
    value: Scalar = getattr(row.case, name)
    return str(value) if isinstance(value, str) else value


def _gpus(choose: Callable[[Iterable[float]], float], name: str, row: RowSummary) -> float | None:
    return choose(getattr(gpu, name) for gpu in row.telemetry) if row.telemetry else None


OF_IMPLEMENTATION = (
    *(Metric(name, "us", partial(_slowest, name), is_drawn=name == HEADLINE) for name in TIMES),
    Metric("tflops", "TFLOP/s", partial(_derived, "tflops_per_gpu", 1.0), is_drawn=True),
    Metric("util_pct", "%", partial(_derived, "utilisation", 100.0)),
    Metric("ratio_to_local", "", partial(_derived, "ratio_to_local", 1.0), is_drawn=True),
    Metric("speedup_over_xla", "", partial(_derived, "speedup_over_xla", 1.0), is_drawn=True),
    Metric("busbw_gbps", "GB/s", partial(_derived, "bus_bandwidth_gbps", 1.0)),
    Metric("overlap_pct", "%", partial(_derived, "overlap_efficiency", 100.0)),
    Metric("check_passed", "0 or 1", lambda row: int(row.check.passed) if row.check else None),
    Metric("num_wrong", "elements", lambda row: row.check.num_wrong if row.check else None),
)
"""Metrics below ``<implementation>/``: each implementation has its own curve."""

OF_ROW = (
    *(
        Metric(f"case/{name}", unit, partial(_case, name))
        for name, unit in (("name", ""), ("m_shard", "rows"), ("k", ""), ("n_shard", "columns"))
    ),
    Metric("case/op", "", partial(_case, "op")),
    Metric("case/dtype", "", partial(_case, "dtype")),
    Metric("case/partial_dtype", "", lambda row: row.case.partial_dtype),
    Metric("case/num_ranks", "ranks", partial(_case, "num_ranks")),
    Metric("case/implementation", "", lambda row: row.implementation),
    Metric("attempt", "", lambda row: row.attempt),
    Metric("island", "", lambda row: row.island),
    Metric("gpu/sm_clock_min_mhz", "MHz", partial(_gpus, min, "sm_clock_min_mhz"), is_drawn=True),
    Metric("gpu/power_max_w", "W", partial(_gpus, max, "power_max_w"), is_drawn=True),
)
"""Metrics of every row; ``island`` only where there are several, ``gpu/`` only on GPUs."""

SUMMARY_OF_CASE = {
    "best": "",
    "best_us": "us",
    "best_tflops": "TFLOP/s",
    "best_ratio_to_local": "",
    "best_speedup_over_xla": "",
    "check_passed": "0 or 1",
    f"<implementation>_{HEADLINE}": "us",
}
"""Units by name, below ``<case>/``."""

SUMMARY_OF_RUN = {
    "rows": "",
    "failed_checks": "",
    "status": "",
    "exit_code": "",
    "given_up": "",
    "restarts": "",
    "restart_s": "s",
}
"""Units by name."""

SUMMARY_OF_ISLANDS = {"islands": "", "outliers": "", "slowest_island": ""}
"""Units by name; only where there are islands."""

SUMMARY_OF_SOAK = {
    "soak/iterations": "",
    "soak/wrong": "",
    "soak/slow": "",
    "soak/largest_growth_mib": "MiB",
    "soak/largest_drift_pct": "%",
}
"""Units by name; only after a soak."""


def history(row: RowSummary, case_number: int) -> dict[str, Scalar]:
    """One step of the run's history: the known ones of ``OF_IMPLEMENTATION`` and ``OF_ROW``."""
    values = {f"{row.implementation}/{metric.name}": metric.value(row) for metric in OF_IMPLEMENTATION}
    values |= {STEP: case_number, **{metric.name: metric.value(row) for metric in OF_ROW}}
    return {name: value for name, value in values.items() if value is not None}


def case_name(case: Case) -> str:
    """Prefix of a case's names in the summary."""
    # W&B nests the summary at dots.
    name = case.name.replace(".", "_") + ("" if case.op is Op.all_gather_matmul else f"/{case.op}")
    types = case.dtype + (f"_{case.partial_dtype}_partials" if case.partial_dtype else "")
    return f"{name}/{case.m_shard}x{case.k}x{case.n_shard}/{types}"


def case_summary(rows: Mapping[str, RowSummary], *, passed: bool) -> dict[str, Scalar]:
    """Summary of one case from its rows by implementation, under names that no other case of the run has.

    ``passed``: true where all checks of the case passed, also those of rows that aren't in ``rows``.
    """
    first = next(iter(rows.values()))
    values: dict[str, Scalar | None] = {f"{name}_{HEADLINE}": row.headline_us for name, row in rows.items()}
    if any(row.check for row in rows.values()):
        values["check_passed"] = int(passed)
    if fastest := best({name: row.headline_us for name, row in rows.items()}):
        figures = history(rows[fastest.implementation], 0)
        values |= {"best": fastest.implementation, "best_us": fastest.time_us}
        for name in ("tflops", "ratio_to_local", "speedup_over_xla"):
            values[f"best_{name}"] = figures.get(f"{fastest.implementation}/{name}")
    return {f"{case_name(first.case)}/{name}": value for name, value in values.items() if value is not None}


def tags(row: RowSummary, members: Sequence[Member]) -> list[str]:
    """Tags that help to find the run: the device, and the implementation under test."""
    return [
        *dict.fromkeys(member.device_kind for member in members),
        *([] if row.is_baseline else [row.implementation]),
    ]
