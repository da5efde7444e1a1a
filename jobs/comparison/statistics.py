"""The change between two sets of runs, and the verdict: is it larger than their noise?

The run is the unit of repetition (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). Samples
inside a run share processes, memory, compilation and temperature, so more samples don't show where another run would
lie. Each run counts with one number, the headline: the maximum over ranks of each rank's median. Runs are compared by
its logarithm: a difference of logarithms is a relative change.

- Noise inside a run: block bootstrap (Künsch, Annals of Statistics 17, 1989). Whole bursts are drawn with replacement,
  the same bursts on all ranks: samples of one burst depend on each other, and so do the ranks at one time.
- Noise between runs: variance of the runs around their side's mean, pooled over both sides, which are assumed to
  scatter alike; at least the noise inside a run. Student's t then gives the interval of the difference. Fewer than
  ``MIN_RUNS`` runs can't show this variance: an assumed one takes its place, and without one there is no verdict.
- Many cases: each interval has confidence 1 - 0.02 / (number of cases) (Bonferroni). All of them then hold at once with
  98 % confidence, whether or not the cases are independent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from enum import Enum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from jobs.comparison.matching import Samples

# Confidence of a whole table. The promise is 1 false alarm in 20; the rest is for runs that don't scatter normally.
CONFIDENCE = 0.98
# Runs of each side. With fewer, one odd run (a hot GPU) looks like a change.
MIN_RUNS = 3
# Enough for a standard error: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 6.4.
_RESAMPLES = 200
_SEED = 0


class Verdict(Enum):
    """Meaning of an interval of the relative change."""

    faster = "faster"
    slower = "slower"
    same = "same"
    too_few_runs = "too few runs"


@dataclasses.dataclass(frozen=True)
class Change:
    """Relative change of a time from BASE to NEW, with its interval: 0.02 is 2 % slower."""

    base_us: float
    """Geometric mean over the runs of BASE."""
    new_us: float
    """Geometric mean over the runs of NEW."""
    low: float
    high: float
    assumed: bool
    """True where there were too few runs to show their scatter, and it was assumed."""

    @property
    def relative(self) -> float:
        """Estimate of the change."""
        return self.new_us / self.base_us - 1

    def verdict(self, margin: float) -> Verdict:
        """Judge the interval: ``slower`` or ``faster`` where it excludes 0, ``same`` where it is within ``margin``."""
        if self.low > 0:
            return Verdict.slower
        if self.high < 0:
            return Verdict.faster
        return Verdict.same if -margin <= self.low and self.high <= margin else Verdict.too_few_runs


def change(base: Sequence[Samples], new: Sequence[Samples], *, num_cases: int, assumed_spread: float | None) -> Change:
    """Compute the change of one case.

    Args:
      base: samples of each run of BASE.
      new: samples of each run of NEW.
      num_cases: number of cases in the whole comparison.
      assumed_spread: relative standard deviation between runs where there are too few to show it; ``None``: unknown,
        and the interval has no bounds.
    """
    sides = [_Side.of(runs) for runs in (base, new)]
    degrees = sum(len(side.logs) - 1 for side in sides)
    assumed = min(len(base), len(new)) < MIN_RUNS
    confidence = 1 - (1 - CONFIDENCE) / num_cases
    level = (1 + confidence) / 2
    quantile = NormalDist().inv_cdf(level) if assumed else float(stdtrit(degrees, level))
    between = sum(float(np.sum((side.logs - side.logs.mean()) ** 2)) for side in sides) / max(degrees, 1)
    least = math.log1p(math.inf if assumed_spread is None else assumed_spread) ** 2 if assumed else 0.0
    # A measured scatter includes the noise inside the runs; an assumed one doesn't.
    variance = sum(max(between, side.noise_squared + least) / len(side.logs) for side in sides)
    base_log, new_log = (float(side.logs.mean()) for side in sides)
    difference, width = new_log - base_log, quantile * math.sqrt(variance)
    return Change(
        base_us=math.exp(base_log),
        new_us=math.exp(new_log),
        low=math.expm1(difference - width),
        high=math.expm1(difference + width) if math.isfinite(width) else math.inf,
        assumed=assumed,
    )


@dataclasses.dataclass(frozen=True)
class _Side:
    logs: NDArray[np.float64]
    """Logarithm of each run's headline."""
    noise_squared: float
    """Variance of such a logarithm due to noise inside a run, mean over runs."""

    @classmethod
    def of(cls, runs: Sequence[Samples]) -> _Side:
        blocks = [_blocks(samples) for samples in runs]
        logs = [math.log(_headlines(block[None, :])[0]) for block in blocks]
        return cls(np.array(logs), float(np.mean([_noise_squared(block) for block in blocks])))


def run_time_us(samples: Samples) -> float:
    """Headline of a run: maximum over ranks of each rank's median."""
    return float(_headlines(_blocks(samples)[None, :])[0])


def _blocks(samples: Samples) -> NDArray[np.float64]:
    """Samples as ``[burst, rank, sample]``: short bursts are filled with NaN, empty ones left out."""
    bursts = [burst for burst in zip(*samples, strict=True) if all(burst)]
    longest = max(len(values) for burst in bursts for values in burst)
    blocks = np.full((len(bursts), len(samples), longest), np.nan)
    for i, burst in enumerate(bursts):
        for rank, values in enumerate(burst):
            blocks[i, rank, : len(values)] = values
    return blocks


def _headlines(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Headline of each draw: ``[draw, burst, rank, sample]`` -> ``[draw]``."""
    draws, bursts, ranks, length = drawn.shape
    # NaN sorts last. np.nanmedian does the same, a hundred times slower.
    values = np.sort(drawn.transpose(0, 2, 1, 3).reshape(draws, ranks, bursts * length), axis=-1)
    count = np.sum(~np.isnan(values), axis=-1, keepdims=True)
    middle = [np.take_along_axis(values, (count - 1 + i) // 2, axis=-1)[..., 0] for i in (0, 1)]
    headlines: NDArray[np.float64] = np.max((middle[0] + middle[1]) / 2, axis=-1)
    return headlines


def _noise_squared(blocks: NDArray[np.float64]) -> float:
    """Variance of the logarithm of a run's headline, by block bootstrap; 0 where there is one burst only."""
    num_bursts = len(blocks)
    if num_bursts == 1:
        return 0.0
    drawn = np.random.default_rng(_SEED).integers(num_bursts, size=(_RESAMPLES, num_bursts))
    # Drawing n of n bursts underestimates the variance by (n - 1) / n.
    return float(np.var(np.log(_headlines(blocks[drawn])), ddof=1)) * num_bursts / (num_bursts - 1)
