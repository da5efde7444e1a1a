"""A ranking of islands and ranks by their times, with the slow outliers.

For each case and implementation, an island has its headline time, that of its slowest rank; a rank has the median of
its samples. ``robust`` gives the z-score of a time among all islands, or among all ranks. Its ``least`` is the larger
of the scatter of samples (from their interquartile range; median over all islands or ranks) and the standard error of
this median (``sqrt(pi / 2) scatter / sqrt(n)`` for normal data): a time that another measurement might not repeat is
no outlier. A fast one is none either.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from jobs.records.case import Case
from jobs.records.row import AnyRow
from jobs.records.statistics import Quartiles
from jobs.results.analysis.robust import NORMAL, median_and_scale, z_score

MIN_MEMBERS = 3
"""Fewer islands or ranks can't show which of them is the odd one."""
# Standard error of a median over that of a mean.
_OF_MEDIAN = math.sqrt(math.pi / 2)
_MAX_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Result:
    """The time of an island or a rank on one case."""

    case: Case
    implementation: str
    time_us: float
    median_us: float
    """Median over all islands, or ranks."""
    z: float

    def __str__(self) -> str:
        return (
            f"{self.implementation} on {self.case}: {self.time_us:.1f} us, median {self.median_us:.1f}, z {self.z:.1f}"
        )


@dataclasses.dataclass(frozen=True)
class Standing:
    """An island or a rank over all cases."""

    name: str
    excess: float
    """Time over the median of all islands or ranks, minus 1: geometric mean over cases and implementations."""
    worst: Result
    """The result with the largest z-score."""
    is_outlier: bool

    def line(self) -> str:
        """Line of the summary."""
        note = f"OUTLIER: {self.worst}" if self.is_outlier else f"largest z {self.worst.z:.1f}"
        return f"#   {self.name}  {100 * self.excess:+.1f} %  {note}"


@dataclasses.dataclass(frozen=True)
class Standings:
    """Islands and ranks, slowest first."""

    islands: tuple[Standing, ...]
    """Empty where there are fewer than ``MIN_MEMBERS`` to compare."""
    ranks: tuple[Standing, ...]
    num_islands: int

    @property
    def outliers(self) -> list[Standing]:
        """Outlying islands, then ranks."""
        return [standing for standing in (*self.islands, *self.ranks) if standing.is_outlier]

    def lines(self) -> list[str]:
        """Summary: every outlier, and the slowest others."""
        if not self.islands:
            count = f"{self.num_islands}, too few to tell a slow one from a fast one ({MIN_MEMBERS} needed)"
            return ["#", f"# Islands : {count}", *_ranking("Ranks  ", self.ranks)]
        return ["#", *_ranking("Islands", self.islands), *_ranking("Ranks  ", self.ranks)]


def standings(rows: Sequence[AnyRow], *, outlier_z: float) -> Standings:
    """Rank the islands and ranks that measured ``rows``.

    Args:
      rows: rows of a job; those without an island or a time are left out.
      outlier_z: threshold of the z-score.
    """
    groups: dict[tuple[Case, str], list[AnyRow]] = defaultdict(list)
    for row in rows:
        if row.island is not None and row.headline_us is not None:
            groups[row.case, row.implementation].append(row)
    islands: dict[str, list[Result]] = defaultdict(list)
    ranks: dict[str, list[Result]] = defaultdict(list)
    for (case, implementation), group in groups.items():
        of_islands = {str(row.island): [_Time.of(rank) for rank in row.headline_quartiles_us] for row in group}
        of_ranks = {f"rank {r} of {name}": time for name, times in of_islands.items() for r, time in enumerate(times)}
        slowest = {name: max(times, key=lambda time: time.median_us) for name, times in of_islands.items()}
        _judge(slowest, case, implementation, islands)
        _judge(of_ranks, case, implementation, ranks)
    names = {row.island for row in rows if row.island is not None}
    return Standings(_ranked(islands, outlier_z), _ranked(ranks, outlier_z), len(names))


@dataclasses.dataclass(frozen=True)
class _Time:
    """Headline time of a rank on a case."""

    median_us: float
    scatter: float
    """Standard deviation of the samples' logarithms, from their quartiles."""
    error: float
    """Standard error of the median's logarithm."""

    @classmethod
    def of(cls, quartiles: Quartiles) -> _Time:
        scatter = NORMAL * math.log(quartiles.upper / quartiles.lower) / 2
        return cls(quartiles.median, scatter, _OF_MEDIAN * scatter / math.sqrt(quartiles.num_samples))


def _judge(times: Mapping[str, _Time], case: Case, implementation: str, results: dict[str, list[Result]]) -> None:
    """Add the result of each island, or of each rank, to ``results``."""
    if len(times) < MIN_MEMBERS:
        return
    median_us, scale = median_and_scale([time.median_us for time in times.values()])
    scatter = statistics.median(time.scatter for time in times.values())
    for name, time in times.items():
        z = z_score(time.median_us, median_us, scale, least=max(scatter, time.error))
        results[name].append(Result(case, implementation, time.median_us, median_us, z))


def _ranked(results: Mapping[str, list[Result]], outlier_z: float) -> tuple[Standing, ...]:
    ranked = []
    for name, of_name in results.items():
        excess = math.exp(statistics.fmean(math.log(r.time_us / r.median_us) for r in of_name)) - 1
        worst = max(of_name, key=lambda result: result.z)
        ranked.append(Standing(name, excess, worst, worst.z > outlier_z))
    return tuple(sorted(ranked, key=lambda standing: -standing.excess))


def _ranking(title: str, ranked: Sequence[Standing]) -> list[str]:
    if not ranked:
        return []
    outliers = sum(standing.is_outlier for standing in ranked)
    shown = [s for place, s in enumerate(ranked) if place < _MAX_SHOWN or s.is_outlier]
    more = f", {len(shown)} shown" if len(shown) < len(ranked) else ""
    count = f"{outliers} OUTLIER{'S' * (outliers > 1)}" if outliers else "no outlier"
    return [
        f"# {title} : {len(ranked)}, {count}; slowest first, in-graph time over the median of all{more}",
        *(standing.line() for standing in shown),
    ]
