"""The fastest implementation of a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jobs.config.implementations import LOCALS
from jobs.records.row import HEADLINE
from jobs.records.statistics import RankSamples, headline_us
from jobs.results.analysis.derive import fastest_us


@dataclasses.dataclass(frozen=True)
class Best:
    """An implementation whose check passed, and its headline time."""

    implementation: str
    time_us: float
    ratio_to_local: float | None
    """``time_us`` over the time of the multiply alone; ``None`` where that wasn't measured."""

    def __str__(self) -> str:
        ratio = "" if self.ratio_to_local is None else f", {self.ratio_to_local:.2f}x local"
        return f"best {self.implementation} {self.time_us:.1f} us{ratio}"


def best(headlines: Mapping[str, float | None]) -> Best | None:
    """Find the fastest of the headline times by implementation; the multiplies alone don't count."""
    times_us = {name: time_us for name, time_us in headlines.items() if time_us is not None and name not in LOCALS}
    if not times_us:
        return None
    name = min(times_us, key=lambda name: times_us[name])
    local_us = fastest_us(LOCALS, headlines)
    return Best(name, times_us[name], times_us[name] / local_us if local_us else None)


def best_of_samples(samples: Mapping[str, Mapping[str, RankSamples]]) -> Best | None:
    """Find the fastest from raw samples: ``[rank][burst][sample]`` by implementation and time, empty ones left out."""
    # A burst is empty where there are more bursts than chains.
    timed = {name: times[HEADLINE] for name, times in samples.items() if all(map(any, times[HEADLINE]))}
    return best({name: headline_us(ranks) for name, ranks in timed.items()})
