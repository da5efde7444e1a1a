"""The results of a soak: wrong results, drift, slow iterations, and growth of the ranks' memory.

- Drift: the Theil-Sen slope (median of the slopes between all pairs of slices) of the slices' median times, times the
  length of the soak, as a share of their median. First and last times are medians over a quarter of the slices.
- Slow iterations: those whose robust z-score in their slice exceeds ``cluster.outlier_z``.
- Memory of each rank, on the host and on the device: the median over the last quarter of a case's slices minus the
  median over the second quarter; the first quarter warms up. More than 64 MiB and more than 5 % is growth.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jobs.records.case import Case
from jobs.records.soak import SoakSlice
from jobs.results.analysis.robust import median_and_scale, z_score

_MIN_SLICES = 4
_MAX_GROWTH_BYTES, _MAX_GROWTH_SHARE = 64 * 2**20, 0.05
# More pairs add no precision, and a day has a million of them.
_MAX_POINTS = 500


@dataclasses.dataclass(frozen=True)
class Point:
    """A slice, condensed: this stays in memory."""

    case: Case
    implementation: str
    island: str | None
    start_s: float
    seconds: float
    iterations: int
    median_us: float
    num_slow: int
    """Iterations above the threshold."""
    slowest_ratio: float
    """Time of the slowest iteration over the median; 1 where none is slow."""
    wrong: tuple[int, ...]
    """Numbers of the first wrong iterations."""
    num_wrong: int
    rss_bytes: tuple[int, ...]
    device_bytes: tuple[int | None, ...]

    @classmethod
    def of(cls, measured: SoakSlice, *, outlier_z: float) -> Point:
        """Condense a slice."""
        times_us = [time_us for time_us in measured.times_us if time_us is not None]
        median_us, scale = median_and_scale(times_us)
        slow = [time_us for time_us in times_us if z_score(time_us, median_us, scale) > outlier_z]
        return cls(
            *(measured.case, measured.implementation, measured.island, measured.start_s, measured.seconds),
            iterations=len(measured.times_us),
            median_us=median_us,
            num_slow=len(slow),
            slowest_ratio=max(slow, default=median_us) / median_us,
            wrong=tuple(measured.wrong[:8]),
            num_wrong=len(measured.wrong),
            rss_bytes=tuple(measured.rss_bytes),
            device_bytes=tuple(measured.device_bytes),
        )


@dataclasses.dataclass(frozen=True)
class Soaked:
    """A case over all its slices."""

    case: Case
    implementation: str
    island: str | None
    iterations: int
    num_slices: int
    num_wrong: int
    first_wrong: int | None
    """Number of the first iteration with a wrong result."""
    first_us: float
    """Median over the first quarter of the slices."""
    last_us: float
    drift: float | None
    """Change of the time over the soak, as a share of the median; ``None`` where there are too few slices."""
    seconds: float
    """Time from the first slice to the last."""
    num_slow: int
    slowest_ratio: float
    growth_bytes: int | None
    """Largest growth of a rank's memory on host or device; ``None`` where there are too few slices."""
    grows: bool
    """True where a rank's memory grows by more than the rule allows."""

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.implementation} on {self.case}" + (f", island {self.island}" if self.island else "")

    def line(self) -> str:
        """Line of the summary."""
        wrong = f"{self.num_wrong} WRONG, first {self.first_wrong}" if self.num_wrong else "0 wrong"
        if self.drift is None or self.growth_bytes is None:
            trend = f"{self.num_slices} slices are too few for drift and memory ({_MIN_SLICES} needed)"
        else:
            per_hour = self.drift / self.seconds * 3600 if self.seconds else 0.0
            memory = f"memory {'GROWS' if self.grows else 'flat'}: {self.growth_bytes / 2**20:+.1f} MiB"
            trend = f"drift {100 * self.drift:+.1f} % ({100 * per_hour:+.1f} %/h); {memory}"
        return (
            f"#   {self.name}: {self.iterations} iterations, {wrong}; {self.first_us:.1f} us at first, "
            f"{self.last_us:.1f} us at last, {trend}; {self.num_slow} slow, up to {self.slowest_ratio:.1f} x the median"
        )


def soaked(points: Iterable[Point]) -> list[Soaked]:
    """Results of each island and case, in the order of their first slices."""
    groups: dict[tuple[str | None, Case, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.island, point.case, point.implementation].append(point)
    return [_soaked(group) for group in groups.values()]


def lines(points: Sequence[Point]) -> list[str]:
    """Summary at the end of a job."""
    if not points:
        return []
    total_s = max(point.start_s + point.seconds for point in points)
    iterations = sum(point.iterations for point in points)
    head = f"# Soak    : {iterations} iterations in {total_s:.0f} s, each with fresh data and checked; call times"
    return ["#", head, *(one.line() for one in soaked(points))]


def theil_sen(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Median of the slopes between all pairs of at most ``_MAX_POINTS`` points, evenly chosen."""
    step = -(-len(xs) // _MAX_POINTS)
    points = list(zip(xs, ys, strict=True))[::step]
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2))


def _soaked(group: Sequence[Point]) -> Soaked:
    quarter = max(len(group) // 4, 1)
    medians_us, middles_s = [p.median_us for p in group], [p.start_s + p.seconds / 2 for p in group]
    enough = len(group) >= _MIN_SLICES
    seconds = middles_s[-1] - middles_s[0]
    growth_bytes, grows = _growth(group, quarter) if enough else (None, False)
    return Soaked(
        *(group[0].case, group[0].implementation, group[0].island),
        iterations=sum(p.iterations for p in group),
        num_slices=len(group),
        num_wrong=sum(p.num_wrong for p in group),
        first_wrong=next((p.wrong[0] for p in group if p.wrong), None),
        first_us=statistics.median(medians_us[:quarter]),
        last_us=statistics.median(medians_us[-quarter:]),
        drift=theil_sen(middles_s, medians_us) * seconds / statistics.median(medians_us) if enough else None,
        seconds=seconds,
        num_slow=sum(p.num_slow for p in group),
        slowest_ratio=max(p.slowest_ratio for p in group),
        growth_bytes=growth_bytes,
        grows=grows,
    )


def _growth(group: Sequence[Point], quarter: int) -> tuple[int, bool]:
    """Largest growth over all ranks, on host and device, and whether any is too much."""
    growths = [(0, False)]
    for series in zip(*((*p.rss_bytes, *p.device_bytes) for p in group), strict=True):
        if None in series:
            continue
        before, after = statistics.median(series[quarter : 2 * quarter]), statistics.median(series[-quarter:])
        growth = int(after - before)
        growths.append((growth, growth > max(_MAX_GROWTH_BYTES, _MAX_GROWTH_SHARE * before)))
    return max(growth for growth, _ in growths), any(grows for _, grows in growths)
