"""Whether two sets of runs differ by more than their noise.

A run is the unit that is repeated, as Kalibera and Jones set out ("Rigorous benchmarking in reasonable time", ISMM
2013): samples inside a run share its processes, memory, compilation and temperature, so that more of them don't tell
how far another run would lie. Of each run one number counts, the headline: the maximum over ranks of each rank's
median. Runs are compared by the logarithms of it, whose differences are relative changes.

- Noise inside a run: block bootstrap (Künsch, Annals of Statistics 17, 1989). Whole bursts are drawn with replacement,
  the same ones on all ranks, since samples of a burst, and of the ranks at one time, aren't independent.
- Noise between runs: the variance of the runs around their side's mean, pooled over the sides, which are taken to
  scatter alike; at least the noise inside a run. Student's t then gives the interval of the difference. With few runs
  that variance is unknown: an assumed one takes its place, and without one nothing can be told.
- Many cases: each interval has confidence 1 - 0.02 / (number of cases) (Bonferroni), so that all of them hold at once
  with 98 %, however the cases hang together: few tables without a difference show one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from enum import Enum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from jobs.comparison.matching import Samples
from jobs.comparison.student import two_sided_quantile

# Of a whole table. 1 false alarm in 20 is what is promised: the rest is for runs that don't scatter normally.
CONFIDENCE = 0.98
# On each side: below that one odd run, of a hot GPU say, passes for a change.
MIN_RUNS = 3
# Enough for a standard error: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 6.4.
_RESAMPLES = 200
_SEED = 0


class Verdict(Enum):
    """What an interval of the relative change says."""

    faster = "faster"
    slower = "slower"
    same = "same"
    too_few_runs = "too few runs"


@dataclasses.dataclass(frozen=True)
class Change:
    """Relative change of a time from BASE to NEW, with its interval: 0.02 is 2 % slower."""

    base_us: float
    """Geometric mean over the side's runs."""
    new_us: float
    low: float
    high: float
    assumed: bool
    """Whether the scatter between runs was assumed, as there were too few to show it."""

    @property
    def relative(self) -> float:
        """The estimate."""
        return self.new_us / self.base_us - 1

    def verdict(self, margin: float) -> Verdict:
        """``same`` where the whole interval lies within ``margin``: what isn't shown to differ may still do so."""
        if self.low > 0:
            return Verdict.slower
        if self.high < 0:
            return Verdict.faster
        return Verdict.same if -margin <= self.low and self.high <= margin else Verdict.too_few_runs


def change(base: Sequence[Samples], new: Sequence[Samples], *, num_cases: int, assumed_spread: float | None) -> Change:
    """Of one case, of each side one or more runs.

    Args:
      base: samples of each run.
      new: likewise.
      num_cases: how many cases are compared in all.
      assumed_spread: standard deviation between runs, relative, where there are too few runs to show theirs; ``None``:
        not known, and the interval is without bounds then.
    """
    sides = [_Side.of(runs) for runs in (base, new)]
    degrees = sum(len(side.logs) - 1 for side in sides)
    assumed = min(len(base), len(new)) < MIN_RUNS
    confidence = 1 - (1 - CONFIDENCE) / num_cases
    quantile = NormalDist().inv_cdf((1 + confidence) / 2) if assumed else two_sided_quantile(confidence, degrees)
    between = sum(float(np.sum((side.logs - side.logs.mean()) ** 2)) for side in sides) / max(degrees, 1)
    least = math.log1p(math.inf if assumed_spread is None else assumed_spread) ** 2 if assumed else 0.0
    # What the runs show holds the noise inside them already; what is assumed doesn't.
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
    """Variance of such a logarithm by the noise inside a run, mean over runs."""

    @classmethod
    def of(cls, runs: Sequence[Samples]) -> _Side:
        blocks = [_blocks(samples) for samples in runs]
        logs = [math.log(_headlines(block[None, :])[0]) for block in blocks]
        return cls(np.array(logs), float(np.mean([_noise_squared(block) for block in blocks])))


def run_time_us(samples: Samples) -> float:
    """A run's headline: maximum over ranks of each rank's median."""
    return float(_headlines(_blocks(samples)[None, :])[0])


def _blocks(samples: Samples) -> NDArray[np.float64]:
    """``[burst, rank, sample]``, NaN where a burst is shorter than the longest one; without bursts that are empty."""
    bursts = [burst for burst in zip(*samples, strict=True) if all(burst)]
    longest = max(len(values) for burst in bursts for values in burst)
    blocks = np.full((len(bursts), len(samples), longest), np.nan)
    for i, burst in enumerate(bursts):
        for rank, values in enumerate(burst):
            blocks[i, rank, : len(values)] = values
    return blocks


def _headlines(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """``[draw, burst, rank, sample]`` -> ``[draw]``."""
    draws, bursts, ranks, length = drawn.shape
    # NaN comes last when sorted; np.nanmedian does the same a hundred times slower.
    values = np.sort(drawn.transpose(0, 2, 1, 3).reshape(draws, ranks, bursts * length), axis=-1)
    count = np.sum(~np.isnan(values), axis=-1, keepdims=True)
    middle = [np.take_along_axis(values, (count - 1 + i) // 2, axis=-1)[..., 0] for i in (0, 1)]
    headlines: NDArray[np.float64] = np.max((middle[0] + middle[1]) / 2, axis=-1)
    return headlines


def _noise_squared(blocks: NDArray[np.float64]) -> float:
    """Variance of the logarithm of a run's headline, by the block bootstrap; 0 where one burst can't tell."""
    num_bursts = len(blocks)
    if num_bursts == 1:
        return 0.0
    drawn = np.random.default_rng(_SEED).integers(num_bursts, size=(_RESAMPLES, num_bursts))
    # Of n drawn from n the variance comes out (n - 1) / n too small.
    return float(np.var(np.log(_headlines(blocks[drawn])), ddof=1)) * num_bursts / (num_bursts - 1)
