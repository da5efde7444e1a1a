"""One revolution of the ring as a rank sees it: the times at which it receives and multiplies each shard."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Interval:
    """A span of a call, in microseconds from its start."""

    start_us: float
    end_us: float


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """One device step of a rank."""

    step: int
    multiply: Interval
    """From the begin of the first tile to the end of the last."""
    arrival: Interval | None
    """From the neighbour's first send to the last arrival here; ``None`` for step 0."""
    wait_us: float
    """Mean wait of its compute CTAs for pieces. Measured at their loading warps, which run a few loads ahead."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StepTimes:
        """Rebuild the step from the output of ``dataclasses.asdict``."""
        arrival = data["arrival"]
        return cls(
            data["step"], Interval(**data["multiply"]), Interval(**arrival) if arrival else None, data["wait_us"]
        )
