"""Ranks whose multiply is slower than it may be, whatever the others do."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.config.implementations import LOCALS
from jobs.records.row import HEADLINE, AnyRow
from jobs.records.work import flops

# A healthy H200 reached 0.65 to 0.72 of its datasheet's peak on the cases of at least this size
# (benchmarks/2026-11-30_main_2xH200), and hot GPUs are up to a fifth slower. Smaller cases don't fill a GPU.
DEFAULT_SHARE_OF_PEAK, MIN_FLOPS = 0.45, 5e10


def slow_ranks(rows: Sequence[AnyRow], min_tflops: float | None) -> list[str]:
    """Ranks below ``min_tflops`` TFLOP/s in the multiply alone, each with its rate and the case.

    The faster of ``local`` and ``local_cublas`` counts. ``None``: 0.45 of the datasheet's peak, for cases of at least
    5e10 floating-point operations on devices whose peak is known.
    """
    best: dict[tuple[str, str | None, int], tuple[float, float]] = {}
    for row in rows:
        floor = _floor(row, min_tflops)
        if row.implementation not in LOCALS or floor is None:
            continue
        for rank, time_us in enumerate(row.medians_us.get(HEADLINE, ())):
            key = (str(row.case), row.island, rank)
            rate = flops(row.case) / time_us / 1e6
            best[key] = max(best.get(key, (0.0, floor)), (rate, floor))
    return [
        f"{f'{island} ' if island else ''}rank {rank} has {rate:.4g} TFLOP/s on {case}, at least {floor:.4g} are needed"
        for (case, island, rank), (rate, floor) in best.items()
        if rate < floor
    ]


def _floor(row: AnyRow, min_tflops: float | None) -> float | None:
    derived = row.derived
    if min_tflops is not None or derived is None or not derived.utilisation or flops(row.case) < MIN_FLOPS:
        return min_tflops
    return DEFAULT_SHARE_OF_PEAK * derived.tflops_per_gpu / derived.utilisation
