"""Names and values of what W&B gets from a row. The names are an interface: CHANGELOG.md lists each change."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from jobs.records import HEADLINE, TIMES, Row

Scalar = float | int | str

_ROW_COLUMNS = ("case", "m_shard", "k", "n_shard", "dtype", "implementation")
_RANK_COLUMNS = ("island", "rank", "host", "device", *TIMES, "sm_clock_mhz", "power_w", "throttle_reasons")
PER_RANK_COLUMNS = _ROW_COLUMNS + _RANK_COLUMNS
_CHECK = ("num_wrong", "max_error", "relative_error", "relative_tolerance")


class RankInfo(Protocol):
    """What this module reads of a gang's member."""

    @property
    def rank(self) -> int:
        """Its place in the gang."""

    @property
    def host(self) -> str:
        """Where it runs."""

    @property
    def device_kind(self) -> str:
        """Name of its device in jax."""


def history(row: Row) -> dict[str, Scalar]:
    """One step of the run's history.

    - ``<implementation>/<time>``: maximum over ranks in microseconds, such as ``ppermute/in_graph_us``;
    - ``<implementation>/<figure>``: the fields of ``Derived``;
    - ``<implementation>/check_passed`` (0 or 1), ``num_wrong``, ``max_error``, ``relative_error``,
      ``relative_tolerance``;
    - ``case/name``, ``m_shard``, ``k``, ``n_shard``, ``dtype``, ``num_ranks``, ``implementation``;
    - ``attempt``: the number of the gang; ``island``: which one, where there are several;
    - ``gpu/sm_clock_min_mhz``: the slowest rank's; ``gpu/power_max_w``: the hungriest one's. On GPUs only.

    What isn't known is left out.
    """
    values: dict[str, Scalar | None] = {}
    for name in TIMES:
        spread = getattr(row, name)
        values[name] = spread.max if spread else None
    if row.derived:
        values |= dataclasses.asdict(row.derived)
    if row.check:
        values["check_passed"] = int(row.check.passed)
        values |= {name: getattr(row.check, name) for name in _CHECK}
    metrics = {f"{row.implementation}/{name}": value for name, value in values.items()}
    metrics |= {f"case/{name}": value for name, value in dataclasses.asdict(row.case).items()}
    metrics["case/implementation"] = row.implementation
    metrics["attempt"], metrics["island"] = row.attempt, row.island
    if row.telemetry:
        metrics["gpu/sm_clock_min_mhz"] = min(rank.sm_clock_min_mhz for rank in row.telemetry)
        metrics["gpu/power_max_w"] = max(rank.power_max_w for rank in row.telemetry)
    return {name: value for name, value in metrics.items() if value is not None}


def summary(row: Row) -> dict[str, Scalar]:
    """Headline of a row under a name that no other row of the run has.

    ``<case>/<m_shard>x<k>x<n_shard>/<dtype>/<implementation>/`` and ``in_graph_us``, ``tflops_per_gpu``,
    ``speedup_over_xla`` or ``check_passed``. Nothing of the row of an island: each of them has the same.
    """
    if row.island is not None:
        return {}
    case = row.case
    # W&B nests the summary at dots.
    name = case.name.replace(".", "_")
    prefix = f"{name}/{case.m_shard}x{case.k}x{case.n_shard}/{case.dtype}/{row.implementation}"
    values: dict[str, Scalar | None] = {HEADLINE: row.headline_us}
    if row.check:
        values["check_passed"] = int(row.check.passed)
    if row.derived:
        values["tflops_per_gpu"] = row.derived.tflops_per_gpu
        values["speedup_over_xla"] = row.derived.speedup_over_xla
    return {f"{prefix}/{name}": value for name, value in values.items() if value is not None}


def per_rank(row: Row, members: Sequence[RankInfo]) -> list[list[Any]]:
    """Lines of the table ``per_rank``: each rank's medians over all its samples in microseconds, its GPU's state."""
    case = row.case
    telemetry = {rank.rank: rank for rank in row.telemetry}
    lines: list[list[Any]] = []
    for member in members:
        gpu = telemetry.get(member.rank)
        lines.append(
            [case.name, case.m_shard, case.k, case.n_shard, case.dtype, row.implementation]
            + [row.island, member.rank, member.host, member.device_kind]
            + [_median(row, name, member.rank) for name in TIMES]
            + ([gpu.sm_clock_mhz, gpu.power_w, " ".join(gpu.throttle_reasons)] if gpu else [None, None, None])
        )
    return lines


def _median(row: Row, name: str, rank: int) -> float | None:
    samples = row.samples_us.get(name)
    if samples is None or rank >= len(samples):
        return None
    values = [value for burst in samples[rank] for value in burst]
    return statistics.median(values) if values else None
