"""What a soak writes down: the classes are the file format of ``soak.jsonl``, one JSON object a line and slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jobs.records.case import Case
from jobs.records.check import Check, RankCheck

FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankSlice:
    """What one rank found in a slice."""

    times_us: list[float | None]
    """Of each iteration: one call on the host's clock, ranks aligned before it. ``None`` for those that compile."""
    wrong: list[int]
    """Iterations of the slice whose result was wrong, from 0."""
    check: RankCheck
    rss_bytes: int
    """Memory of the process behind the slice, on the host."""
    device_bytes: int | None
    """The same on the device; ``None`` where jax doesn't tell."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoakSlice:
    """Some iterations of a case in turn, each with fresh data and checked."""

    case: Case
    implementation: str
    start_s: float
    """Seconds of the soak before it."""
    seconds: float
    """How long it took, with drawing the data, with the checks, and with opening the case where that was needed."""
    first_iteration: int
    """Iterations of this case before it."""
    times_us: list[float | None]
    """Of each iteration, maximum over ranks; ``None`` for the first ones behind the opening, which compile."""
    wrong: list[int]
    """Numbers of the iterations whose result was wrong on a rank, counted over all slices of the case."""
    check: Check
    rss_bytes: list[int]
    """By rank."""
    device_bytes: list[int | None]
    """By rank."""
    attempt: int
    island: str | None = None
    time: str = ""
    """When it ended: ISO 8601, UTC."""
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.version != FORMAT_VERSION:
            raise ValueError(f"version={self.version} of a slice must be {FORMAT_VERSION}")

    @classmethod
    def of_ranks(cls, ranks: Sequence[RankSlice], *, first_iteration: int, **about: Any) -> SoakSlice:
        """From what every rank found; ``about`` are the other fields."""
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
            **about,
        )
