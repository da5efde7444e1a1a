"""The soak: a gang repeats its cases with fresh data until the minutes are up, and every result is checked."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence

from jobs.config.schema import Settings
from jobs.driver.benchmark import Benchmark, seed
from jobs.measure.soak import INTEGERS_EVERY
from jobs.records.row import Case
from jobs.records.soak import SoakSlice

# A soak has some 20 slices, at least of a second each, or Ray's calls would be much of them; a minute is lost at most.
_SLICES = 20
_MIN_SLICE_S, _MAX_SLICE_S = 1.0, 60.0
# Iterations of a case's first slice, which compiles; and by how much later slices may grow at once.
_FIRST_ITERATIONS, _GROWTH = 2 * INTEGERS_EVERY, 8


@dataclasses.dataclass
class _Turn:
    """How a case goes on."""

    first_iteration: int
    iterations: int = _FIRST_ITERATIONS


class Soak:
    """Drives the ranks of ``benchmark``'s gang.

    Args:
      benchmark: of the gang.
      settings: of the job, with ``timing.soak_minutes``.
      earlier_s: seconds that earlier gangs have soaked.
      iterations: of each case that earlier gangs have done.
      report: told of each slice.
      record: takes the slices.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        settings: Settings,
        *,
        earlier_s: float,
        iterations: Callable[[Case], int],
        report: Callable[[str], None],
        record: Callable[[SoakSlice], None],
    ) -> None:
        self._benchmark = benchmark
        self._settings = settings
        self._done_s = earlier_s
        self._iterations = iterations
        self._report = report
        self._record = record
        self._turns: dict[Case, _Turn] = {}
        self._open: tuple[Case, str] | None = None

    def run(self, cases: Sequence[Case]) -> None:
        """Slices of each of ``cases`` in turn, until ``timing.soak_minutes`` are over.

        Raises: what ``Benchmark.run`` raises.
        """
        total_s = soak_s(self._settings)
        longest_s = min(_MAX_SLICE_S, self._settings.cluster.step_timeout_s / 4)
        slice_s = min(max(total_s / _SLICES, _MIN_SLICE_S), longest_s)
        while total_s - self._done_s > 1e-6:
            for case in cases:
                if (left_s := total_s - self._done_s) > 1e-6:
                    self._slice(case, min(slice_s, left_s))

    def _slice(self, case: Case, wanted_s: float) -> None:
        turn = self._turns.setdefault(case, _Turn(self._iterations(case)))
        self._report(f"{case}: soak, {self._done_s:.0f} of {soak_s(self._settings):.0f} s")
        began = time.monotonic()
        opens = self._open is None or self._open[0] != case
        implementation = self._implementation(case)
        opened = time.monotonic()
        check = self._settings.check
        ranks = self._benchmark.call(
            "soak",
            implementation,
            turn.iterations,
            seed(),
            check.fault,
            # Without fault_after the fault was planted before, and the case isn't soaked.
            max((check.fault_after or 0) - turn.first_iteration, 0),
            opens,
            doing=f"soaking {implementation} on {case}",
        )
        ended = time.monotonic()
        seconds = round(ended - began, 3)
        self._record(
            SoakSlice.of_ranks(
                ranks,
                case=case,
                implementation=implementation,
                start_s=round(self._done_s, 3),
                seconds=seconds,
                first_iteration=turn.first_iteration,
                attempt=self._benchmark.attempt,
                island=self._benchmark.island,
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
        )
        self._done_s += seconds
        turn.first_iteration += turn.iterations
        fitting = int(turn.iterations * wanted_s / max(ended - opened, 1e-3))
        turn.iterations = min(max(fitting, _FIRST_ITERATIONS), _GROWTH * turn.iterations)

    def _implementation(self, case: Case) -> str:
        """What runs on ``case``, which is open from here on."""
        if self._open is None or self._open[0] != case:
            self._open = case, self._benchmark.open_target(case)
        return self._open[1]


def soak_s(settings: Settings) -> float:
    """Seconds that the soak takes; 0 where there is none."""
    return 60 * (settings.timing.soak_minutes or 0)
