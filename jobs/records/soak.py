"""Slices of a soak. The class ``SoakSlice`` defines the file format of ``soak.jsonl``: one JSON object a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jobs.records.case import Case
from jobs.records.check import Check, RankCheck

FORMAT_VERSION = 1
READABLE_SLICE_VERSIONS = (FORMAT_VERSION,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankSlice:
    """Times, errors and memory of one rank in a slice."""

    times_us: list[float | None]
    """Time of each iteration: one call by the host's clock, after the ranks are aligned. ``None`` if it compiles."""
    wrong: list[int]
    """Iterations of the slice whose result was wrong, counted from 0."""
    check: RankCheck
    rss_bytes: int
    """Host memory of the process after the slice."""
    device_bytes: int | None
    """Device memory after the slice; ``None`` if jax doesn't report it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoakSlice:
    """Consecutive iterations of a case, each with fresh data and a check."""

    case: Case
    implementation: str
    start_s: float
    """Seconds of the soak before the slice."""
    seconds: float
    """Duration of the slice, including data, checks and, if needed, the opening of the case."""
    first_iteration: int
    """Number of iterations of this case before the slice."""
    times_us: list[float | None]
    """Time of each iteration, maximum over ranks; ``None`` for the first ones after an opening, which compile."""
    wrong: list[int]
    """Iterations whose result was wrong on a rank, counted over all slices of the case."""
    check: Check
    rss_bytes: list[int]
    """``RankSlice.rss_bytes`` of each rank."""
    device_bytes: list[int | None]
    """``RankSlice.device_bytes`` of each rank."""
    attempt: int
    island: str | None = None
    time: str = ""
    """Time at which the slice ended: ISO 8601, UTC."""
    version: int = FORMAT_VERSION

    @classmethod
    def of_ranks(cls, ranks: Sequence[RankSlice], *, first_iteration: int, **fields: Any) -> SoakSlice:
        """Combine the ranks' slices; ``fields`` are the other fields."""
        return cls(
            first_iteration=first_iteration,
            times_us=[
                max((time for time in times if time is not None), default=None)
                for times in zip(*(rank.times_us for rank in ranks), strict=True)
            ],
            wrong=sorted({first_iteration + number for rank in ranks for number in rank.wrong}),
            check=Check.of_ranks([rank.check for rank in ranks]),
            rss_bytes=[rank.rss_bytes for rank in ranks],
            device_bytes=[rank.device_bytes for rank in ranks],
            **fields,
        )
