"""A comparison of two sides: a row for each case that both measured, and the warnings that go with it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from jobs.comparison.differences import config_differences, differences
from jobs.comparison.loading import Run
from jobs.comparison.matching import Key, match
from jobs.comparison.statistics import CONFIDENCE, MIN_RUNS, Change, Verdict, change

# Relative standard deviation between runs of one config on one kind of GPU. Runs on several days showed 1 to 2 % for
# kernel_us and up to 3 % for in_graph_us; tests/jobs/comparison/test_pairs.py checks it against recorded pairs. CPU
# ranks share their cores with other programs, so nothing is assumed for them.
GPU_SPREAD = 0.03
# Largest relative change that is called ``same``.
MARGIN = 0.03


@dataclasses.dataclass(frozen=True)
class ComparedRow:
    """A line of the table."""

    key: Key
    case_name: str
    num_base: int
    """Runs of BASE that measured the case."""
    num_new: int
    """Runs of NEW that measured the case."""
    change: Change
    verdict: Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of ``jobs.compare``."""

    metric: str
    sides: list[str]
    """A line for BASE and one for NEW: the number of runs and their commits."""
    rows: list[ComparedRow]
    warnings: list[str]
    """Differences other than the times."""
    left_out: list[str]
    """Measurements that aren't compared, each with the reason."""
    margin: float
    """Relative change up to which a row is ``same``."""
    regressions: list[str]
    """Regressions by ``fail_over``, each in words; empty where it isn't set."""
    assumed_spread: float | None
    """Relative standard deviation between runs where too few show it; ``None``: unknown."""

    @property
    def title(self) -> str:
        """Counts by verdict, such as ``4 compared: 1 slower, 3 same``."""
        counts = Counter(row.verdict for row in self.rows)
        listed = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        return f"{len(self.rows)} compared" + (f": {listed}" if listed else "")

    @property
    def explanation(self) -> list[str]:
        """Meaning of the table's numbers and words."""
        lines = [
            f"{self.metric}: each run's slowest rank's median, geometric mean over runs. interval: of the change; all "
            f"intervals hold at once with {_percent(CONFIDENCE)} confidence.",
            f"slower, faster: the interval excludes 0. same: it lies within {_percent(self.margin)} of 0. "
            "too few runs: neither.",
        ]
        num_assumed = sum(row.change.assumed for row in self.rows)
        if num_assumed:
            lines.append(
                f"{num_assumed} of {len(self.rows)} rows have fewer than {MIN_RUNS} runs on a side: "
                + (
                    f"a scatter between runs of {_percent(self.assumed_spread)} is assumed, not measured (--spread)."
                    if self.assumed_spread is not None
                    else "the scatter between runs is unknown, so no verdict is possible (--spread assumes a scatter)."
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
      new: the runs to judge.
      metric: one of ``jobs.records.row.TIMES``.
      fail_over: relative slowdown that is a regression where it exceeds the noise.
      spread: relative standard deviation between runs where too few show it; default: ``GPU_SPREAD`` on GPUs.
    """
    matched = match(base, new, metric)
    margin = MARGIN if fail_over is None else fail_over
    assumed = _assumed_spread(base, new) if spread is None else spread
    rows = []
    for pair in matched.pairs:
        changed = change(pair.base, pair.new, num_cases=len(matched.pairs), assumed_spread=assumed)
        counts = len(pair.base), len(pair.new)
        rows.append(ComparedRow(pair.key, pair.case_name, *counts, changed, changed.verdict(margin)))
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
    """Cases that got too slow, and cases that broke: those have no time to compare, but must not pass."""
    slower = [
        f"{row.key} is {100 * row.change.relative:.1f} % slower"
        for row in rows
        if row.verdict is Verdict.slower and row.change.relative > fail_over
    ]
    return slower + [f"{key}: {reason}" for key, reason in broken.items()]


def _assumed_spread(base: Sequence[Run], new: Sequence[Run]) -> float | None:
    kinds = [run.device_kinds for run in (*base, *new)]
    return GPU_SPREAD if all(kind and "cpu" not in kind for kind in kinds) else None


def _side(name: str, runs: Sequence[Run]) -> str:
    commits = sorted({(run.commit or "unknown")[:12] for run in runs})
    dirs = f"{runs[0].path}" + (f" ... {runs[-1].path}" if len(runs) > 1 else "")
    return f"{name}: {len(runs)} run{'s' if len(runs) > 1 else ''}, commit {' and '.join(commits)}, {dirs}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
