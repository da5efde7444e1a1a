"""A watchdog that decides from the ranks' reports whether a gang without an answer is stuck."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from jobs.gang.messages import Report

# The driver first knows only the step's start; a rank's last beat may come a moment after it.
_SLACK_S = 0.5


class Watchdog:
    """Decides from answers and reports whether a gang is stuck, and when to look again.

    Reports hold the time since a rank's last progress, so one look per ``limit_s`` is enough for any number of ranks.

    Args:
      limit_s: seconds without progress of any rank after which the gang is stuck; infinite disables it.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._progress_s = time.monotonic()

    @property
    def due_s(self) -> float:
        """Time of the next look (``time.monotonic()``)."""
        return self._progress_s + self.limit_s + _SLACK_S

    def answered(self) -> None:
        """Record that a rank finished its step."""
        self._progress_s = time.monotonic()

    def is_stuck(self, reports: Mapping[int, Report], asked_s: float) -> bool:
        """Return whether no rank had made progress for ``limit_s`` at ``asked_s``, when the reports were requested.

        A running XLA compiler counts as progress.
        """
        idle_s = min((0.0 if report.is_compiling else report.idle_s for report in reports.values()), default=None)
        if idle_s is not None:
            # Count from `asked_s`, not from now: waiting for a silent rank may have taken seconds.
            self._progress_s = max(self._progress_s, asked_s - idle_s)
        return asked_s >= self._progress_s + self.limit_s


def describe_states(reports: Mapping[int, Report]) -> str:
    """States of the ranks, grouped: ``ranks 0-6, 8: iteration 3 of ...; rank 7: ...``."""
    by_state: dict[str, list[int]] = defaultdict(list)
    for rank, report in sorted(reports.items()):
        by_state[describe_state(report)].append(rank)
    return "; ".join(f"rank{'s' * (len(ranks) > 1)} {_ranges(ranks)}: {state}" for state, ranks in by_state.items())


def describe_state(report: Report) -> str:
    """Step, iteration and last finished case of one rank."""
    doing = f"iteration {report.iteration} of {report.step}" if report.step else "between two steps"
    return f"{'compiling in ' if report.is_compiling else ''}{doing}, last finished case: {report.finished_case}"


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges, such as ``0-6, 8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
