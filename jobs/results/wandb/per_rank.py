"""The table ``per_rank`` of a W&B run: a line for each rank of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.records.member import Member
from jobs.records.row import TIMES, AnyRow

COLUMNS = (
    *("case", "m_shard", "k", "n_shard", "dtype", "implementation", "island", "rank", "host", "device"),
    *TIMES,
    *("sm_clock_mhz", "power_w", "throttle_reasons"),
)


def lines(row: AnyRow, members: Sequence[Member]) -> list[list[Any]]:
    """Medians of each rank over all its samples, in microseconds, and the state of its GPU."""
    case = row.case
    telemetry = {rank.rank: rank for rank in row.telemetry}
    table: list[list[Any]] = []
    for member in members:
        gpu = telemetry.get(member.rank)
        table.append(
            [case.label, case.m_shard, case.k, case.n_shard, case.types, row.implementation]
            + [row.island, member.rank, member.host, member.device_kind]
            + [_median(row, name, member.rank) for name in TIMES]
            + ([gpu.sm_clock_mhz, gpu.power_w, " ".join(gpu.throttle_reasons)] if gpu else [None, None, None])
        )
    return table


def _median(row: AnyRow, name: str, rank: int) -> float | None:
    medians_us = row.medians_us.get(name, [])
    return medians_us[rank] if rank < len(medians_us) else None
