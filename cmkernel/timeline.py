"""One revolution of the ring, as a rank sees it: when it receives and multiplies each shard."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Interval:
    """A stretch of a call, in microseconds from its start."""

    start_us: float
    end_us: float


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """One device step of a rank."""

    step: int
    multiply: Interval
    """From the first tile that is begun to the last one that is done."""
    arrival: Interval | None
    """From the first piece that the neighbour begins to send to the last one that is here; step 0 needs none."""
    wait_us: float
    """What its compute CTAs wait for pieces, on average; measured: their loading warps, which are a few loads ahead."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StepTimes:
        """From what ``dataclasses.asdict`` makes."""
        arrival = data["arrival"]
        return cls(
            data["step"], Interval(**data["multiply"]), Interval(**arrival) if arrival else None, data["wait_us"]
        )
