"""Whether a gang that doesn't answer is stuck, from what its ranks say about themselves."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from jobs.gang.messages import Report

# A rank's last beat comes a moment after the step's beginning, which is all that the driver knows at first.
_SLACK_S = 0.5


class Watchdog:
    """Told of answers and shown reports, it knows when to look again, and what counts as stuck.

    Ranks say how long ago they got anywhere, so looking once in ``limit_s`` is enough, whatever their number.

    Args:
      limit_s: no rank gets anywhere for that many seconds: stuck; infinite: never.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._progress_s = time.monotonic()

    @property
    def due_s(self) -> float:
        """When to look (``time.monotonic()``)."""
        return self._progress_s + self.limit_s + _SLACK_S

    def answered(self) -> None:
        """A rank has finished its step."""
        self._progress_s = time.monotonic()

    def is_stuck(self, reports: Mapping[int, Report], asked_s: float) -> bool:
        """Whether nobody had got anywhere for ``limit_s`` when the reports were asked for, at ``asked_s``.

        XLA's compiler gets somewhere as long as it runs.
        """
        idle_s = min((0.0 if report.is_compiling else report.idle_s for report in reports.values()), default=None)
        if idle_s is not None:
            # From then on, not from now: another rank's silence may have taken seconds meanwhile.
            self._progress_s = max(self._progress_s, asked_s - idle_s)
        return asked_s >= self._progress_s + self.limit_s


def describe_states(reports: Mapping[int, Report]) -> str:
    """Where the ranks are, those in the same place together: ``ranks 0-6, 8: iteration 3 of ...; rank 7: ...``."""
    by_state: dict[str, list[int]] = defaultdict(list)
    for rank, report in sorted(reports.items()):
        by_state[describe_state(report)].append(rank)
    return "; ".join(f"rank{'s' * (len(ranks) > 1)} {_ranges(ranks)}: {state}" for state, ranks in by_state.items())


def describe_state(report: Report) -> str:
    """Last finished case, step and iteration of one rank."""
    doing = f"iteration {report.iteration} of {report.step}" if report.step else "between two steps"
    return f"{'compiling in ' if report.is_compiling else ''}{doing}, last finished case: {report.finished_case}"


def _ranges(numbers: Sequence[int]) -> str:
    """``0-6, 8`` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
