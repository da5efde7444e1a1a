"""Which islands and ranks are slower than the others: ranked, and outliers named.

Of each case and implementation an island has its headline time, a rank the median of its own samples. Its z-score among
the others of its kind is that of ``jobs.results.robust``, where ``least`` is 1.4826 s: ``s`` is the scatter of the
samples, the median over islands (ranks) of half their interquartile range. Only slow ones are outliers.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from jobs.records import HEADLINE, Case, Row
from jobs.results.robust import NORMAL, median_and_scale

MIN_MEMBERS = 3
"""Of fewer nobody can tell which one is the odd one."""
_MAX_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Result:
    """How an island or a rank did on one case."""

    case: Case
    implementation: str
    time_us: float
    median_us: float
    """Over all islands, or ranks."""
    z: float

    def __str__(self) -> str:
        return (
            f"{self.implementation} on {self.case}: {self.time_us:.1f} us, median {self.median_us:.1f}, z {self.z:.1f}"
        )


@dataclasses.dataclass(frozen=True)
class Standing:
    """One island, or one rank, over all cases."""

    name: str
    excess: float
    """Time over the median of all, less one: geometric mean over cases and implementations."""
    worst: Result
    """Where its z-score is largest."""
    is_outlier: bool

    def line(self) -> str:
        """As the summary shows it."""
        verdict = f"  OUTLIER: {self.worst}" if self.is_outlier else f"  largest z {self.worst.z:.1f}"
        return f"#   {self.name}  {100 * self.excess:+.1f} %{verdict}"


@dataclasses.dataclass(frozen=True)
class Standings:
    """Slowest first."""

    islands: tuple[Standing, ...]
    """Empty where there are fewer than ``MIN_MEMBERS`` to compare."""
    ranks: tuple[Standing, ...]
    num_islands: int

    @property
    def outliers(self) -> list[Standing]:
        """Islands, then ranks."""
        return [standing for standing in (*self.islands, *self.ranks) if standing.is_outlier]

    def lines(self) -> list[str]:
        """The summary: every outlier, and the slowest others."""
        if not self.islands:
            too_few = (
                f"# Islands : {self.num_islands}, too few to tell a slow one from a fast one ({MIN_MEMBERS} needed)"
            )
            return ["#", too_few, *_ranking("Ranks  ", self.ranks)]
        return ["#", *_ranking("Islands", self.islands), *_ranking("Ranks  ", self.ranks)]


def standings(rows: Sequence[Row], *, outlier_z: float) -> Standings:
    """Of the islands and ranks that measured ``rows``, which may be condensed; ``outlier_z`` is the threshold."""
    groups: dict[tuple[Case, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.island is not None and row.headline_us is not None:
            groups[row.case, row.implementation].append(row)
    islands: dict[str, list[Result]] = defaultdict(list)
    ranks: dict[str, list[Result]] = defaultdict(list)
    for (case, implementation), group in groups.items():
        of_ranks = {
            f"rank {rank} of {row.island}": (statistics.median(samples), _half_range(samples))
            for row in group
            for rank, samples in enumerate(map(_flat, row.samples_us.get(HEADLINE, ())))
        }
        # An island's time is that of its slowest rank.
        of_islands = {
            str(row.island): max(of_ranks[f"rank {rank} of {row.island}"] for rank in range(row.case.num_ranks))
            for row in group
        }
        _judge(of_islands, case, implementation, islands)
        _judge(of_ranks, case, implementation, ranks)
    names = {row.island for row in rows if row.island is not None}
    return Standings(_ranked(islands, outlier_z), _ranked(ranks, outlier_z), len(names))


def _judge(
    times: Mapping[str, tuple[float, float]], case: Case, implementation: str, results: dict[str, list[Result]]
) -> None:
    """Add the result of each member to ``results``; ``times`` has the time and its scatter."""
    if len(times) < MIN_MEMBERS:
        return
    scatter_us = statistics.median(scatter_us for _, scatter_us in times.values())
    median_us, scale_us = median_and_scale([time_us for time_us, _ in times.values()], least=NORMAL * scatter_us)
    for name, (time_us, _) in times.items():
        results[name].append(Result(case, implementation, time_us, median_us, (time_us - median_us) / scale_us))


def _ranked(results: Mapping[str, list[Result]], outlier_z: float) -> tuple[Standing, ...]:
    found = []
    for name, of_name in results.items():
        excess = math.exp(statistics.fmean(math.log(r.time_us / r.median_us) for r in of_name)) - 1
        worst = max(of_name, key=lambda result: result.z)
        found.append(Standing(name, excess, worst, worst.z > outlier_z))
    return tuple(sorted(found, key=lambda standing: -standing.excess))


def _ranking(title: str, found: Sequence[Standing]) -> list[str]:
    if not found:
        return []
    outliers = sum(standing.is_outlier for standing in found)
    shown = [s for place, s in enumerate(found) if place < _MAX_SHOWN or s.is_outlier]
    more = f", {len(shown)} shown" if len(shown) < len(found) else ""
    verdict = f"{outliers} OUTLIER{'S' * (outliers > 1)}" if outliers else "no outlier"
    return [
        f"# {title} : {len(found)}, {verdict}; slowest first, in-graph time over the median of all{more}",
        *(standing.line() for standing in shown),
    ]


def _flat(bursts: Sequence[Sequence[float]]) -> list[float]:
    return [value for burst in bursts for value in burst]


def _half_range(samples: Sequence[float]) -> float:
    """Half the interquartile range; a condensed row's samples are the quartiles."""
    if len(samples) < 2:
        return 0.0
    if len(samples) == 3:
        return (max(samples) - min(samples)) / 2
    lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2
