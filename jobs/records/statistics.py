"""Statistics of raw samples, defined once for rows, tables, the tuner and reports."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

RankSamples = Sequence[Sequence[Sequence[float]]]
"""Samples of one time in microseconds: ``[rank][burst][sample]``."""


class Quartiles(NamedTuple):
    """Lower quartile, median and upper quartile of one rank's samples."""

    lower: float
    median: float
    upper: float
    num_samples: int

    @classmethod
    def of(cls, bursts: Iterable[Sequence[float]]) -> Quartiles:
        """Quartiles of the samples of all bursts; a single sample is all three."""
        values = list(itertools.chain.from_iterable(bursts))
        lower, median, upper = values * 3 if len(values) == 1 else statistics.quantiles(values, n=4, method="inclusive")
        return cls(lower, median, upper, len(values))


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum over the ranks' medians, in microseconds."""

    min: float
    median: float
    max: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Spread of one value per rank."""
        return cls(min(values), statistics.median(values), max(values))


def rank_medians_us(samples: RankSamples) -> list[float]:
    """Median of each rank over the samples of all its bursts."""
    return [statistics.median(itertools.chain.from_iterable(bursts)) for bursts in samples]


def headline_us(samples: RankSamples) -> float:
    """Maximum over ranks of each rank's median: the one number that represents the samples."""
    return max(rank_medians_us(samples))
