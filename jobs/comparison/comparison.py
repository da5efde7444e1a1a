"""Two sides compared: a row for each case that both measured, and everything that must be said beside them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from jobs.comparison.differences import config_differences, differences
from jobs.comparison.loading import Run
from jobs.comparison.matching import Key, match
from jobs.comparison.statistics import CONFIDENCE, MIN_RUNS, Change, Verdict, change

# Relative standard deviation between runs of one config on one kind of GPU: from the few that were measured on several
# days so far, 1 to 2 % of kernel_us and up to 3 % of in_graph_us. tests/jobs/comparison/test_pairs.py holds it against
# recorded pairs. CPU ranks share their cores with whatever else runs there, so nothing can be assumed of them.
GPU_SPREAD = 0.03
# A change that is shown to be within this is called none.
MARGIN = 0.03


@dataclasses.dataclass(frozen=True)
class ComparedRow:
    """One line of the table."""

    key: Key
    case_name: str
    num_base: int
    """Runs of that side that measured it."""
    num_new: int
    change: Change
    verdict: Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What ``jobs.compare`` found."""

    metric: str
    sides: list[str]
    """A line for BASE and one for NEW: how many runs, and of which commit."""
    rows: list[ComparedRow]
    warnings: list[str]
    """What differs beside the times."""
    left_out: list[str]
    margin: float
    regressions: list[str]
    """What ``fail_over`` refuses, each in words; empty without one."""
    assumed_spread: float | None

    @property
    def title(self) -> str:
        """The counts, such as ``4 compared: 1 slower, 3 same``."""
        counts = Counter(row.verdict for row in self.rows)
        told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        return f"{len(self.rows)} compared" + (f": {told}" if told else "")

    @property
    def explanation(self) -> list[str]:
        """What the numbers and words of the table mean."""
        lines = [
            f"{self.metric}: maximum over ranks of each rank's median, geometric mean over runs. interval: of the "
            f"change; holds for all rows at once with {_percent(CONFIDENCE)}.",
            f"slower, faster: the interval is on one side of 0. same: it lies within {_percent(self.margin)} around 0. "
            "too few runs: neither.",
        ]
        num_assumed = sum(row.change.assumed for row in self.rows)
        if num_assumed:
            lines.append(
                f"{num_assumed} of {len(self.rows)} rows have fewer than {MIN_RUNS} runs on a side: "
                + (
                    f"that runs scatter by {_percent(self.assumed_spread)} is assumed, not measured (--spread)."
                    if self.assumed_spread is not None
                    else "how runs scatter is unknown, so nothing can be told (--spread assumes it)."
                )
            )
        return lines


def compare(
    base: Sequence[Run],
    new: Sequence[Run],
    *,
    metric: str,
    fail_over: float | None = None,
    spread: float | None = None,
) -> Comparison:
    """Compare two sides.

    Args:
      base: the runs to compare with.
      new: the runs in question.
      metric: one of ``jobs.records.row.TIMES``.
      fail_over: relative slowdown that is a regression, where it is outside the noise.
      spread: relative standard deviation between runs, where there are too few to show it; by default that of GPUs.
    """
    matched = match(base, new, metric)
    margin = MARGIN if fail_over is None else fail_over
    assumed = _assumed_spread(base, new) if spread is None else spread
    rows = []
    for pair in matched.pairs:
        found = change(pair.base, pair.new, num_cases=len(matched.pairs), assumed_spread=assumed)
        rows.append(ComparedRow(pair.key, pair.case_name, len(pair.base), len(pair.new), found, found.verdict(margin)))
    tiles = [line for pair in matched.pairs if (line := config_differences(pair))]
    return Comparison(
        metric=metric,
        sides=[_side("BASE", base), _side("NEW", new)],
        rows=rows,
        warnings=differences(base, new) + tiles,
        left_out=matched.left_out,
        margin=margin,
        regressions=[] if fail_over is None else _regressions(rows, matched.broken, fail_over),
        assumed_spread=assumed,
    )


def _regressions(rows: Sequence[ComparedRow], broken: Mapping[Key, str], fail_over: float) -> list[str]:
    """A case that turned wrong or doesn't run has no time to compare, and must not pass for that."""
    slower = [
        f"{row.key} is {100 * row.change.relative:.1f} % slower"
        for row in rows
        if row.verdict is Verdict.slower and row.change.relative > fail_over
    ]
    return slower + [f"{key}: {became}" for key, became in broken.items()]


def _assumed_spread(base: Sequence[Run], new: Sequence[Run]) -> float | None:
    kinds = [run.device_kinds for run in (*base, *new)]
    return GPU_SPREAD if all(kind and "cpu" not in kind for kind in kinds) else None


def _side(name: str, runs: Sequence[Run]) -> str:
    commits = sorted({(run.commit or "unknown")[:12] for run in runs})
    dirs = f"{runs[0].path}" + (f" ... {runs[-1].path}" if len(runs) > 1 else "")
    return f"{name}: {len(runs)} run{'s' if len(runs) > 1 else ''}, commit {' and '.join(commits)}, {dirs}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
