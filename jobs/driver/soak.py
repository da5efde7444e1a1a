"""The soak: a gang repeats its cases with fresh data until the minutes are up, and every result is checked."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence

from jobs.config.schema import Settings
from jobs.driver.measurement import Measurement, seed
from jobs.measure.programs import Request
from jobs.measure.soak import INTEGERS_EVERY
from jobs.records.case import Case
from jobs.records.soak import SoakSlice
from jobs.results.analysis.soaking import Point
from jobs.results.terminal.steps import soak_step

# A soak has about 20 slices. A slice takes at least a second, so that Ray's calls are a small part of it, and at most a
# minute, which is all that a lost gang can lose.
_SLICES = 20
_MIN_SLICE_S, _MAX_SLICE_S = 1.0, 60.0
# Iterations of a case's first slice, which compiles; most iterations of a slice, as a multiple of the last slice's.
_FIRST_ITERATIONS, _GROWTH = 2 * INTEGERS_EVERY, 8


@dataclasses.dataclass
class _Turn:
    """Next slice of a case."""

    first_iteration: int
    iterations: int = _FIRST_ITERATIONS


class Soak:
    """Drives the ranks of a measurement through slices of its cases.

    Args:
      measurement: measurement on the gang.
      target: request of ``kernel.implementation``.
      earlier: slices of earlier gangs.
      record: called with each slice.
    """

    def __init__(
        self, measurement: Measurement, target: Request, earlier: Sequence[Point], record: Callable[[SoakSlice], None]
    ) -> None:
        self._measurement = measurement
        self._settings = measurement.settings
        self._target = target
        self._done_s = sum(point.seconds for point in earlier)
        self._earlier = earlier
        self._record = record
        self._turns: dict[Case, _Turn] = {}
        self._open: tuple[Case, str] | None = None

    def run(self, cases: Sequence[Case]) -> None:
        """Run slices of ``cases`` in turn until ``timing.soak_minutes`` are over.

        Raises: the errors of ``Benchmark.run``.
        """
        total_s = soak_s(self._settings)
        longest_s = min(_MAX_SLICE_S, self._settings.cluster.step_timeout_s / 4)
        slice_s = min(max(total_s / _SLICES, _MIN_SLICE_S), longest_s)
        while total_s - self._done_s > 1e-6:
            for case in cases:
                if (left_s := total_s - self._done_s) > 1e-6:
                    self._slice(case, min(slice_s, left_s))

    def _slice(self, case: Case, wanted_s: float) -> None:
        done = sum(point.iterations for point in self._earlier if point.case == case)
        turn = self._turns.setdefault(case, _Turn(done))
        measurement = self._measurement
        measurement.report(soak_step(), f"{case}: soak, {self._done_s:.0f} of {soak_s(self._settings):.0f} s")
        began = time.monotonic()
        opens = self._open is None or self._open[0] != case
        implementation = self._implementation(case)
        opened = time.monotonic()
        check = self._settings.check
        ranks = measurement.ranks.soak(
            case,
            implementation,
            iterations=turn.iterations,
            seed=seed(),
            fault=check.fault,
            # Without fault_after the fault is planted in the check before, and the case isn't soaked.
            fault_from=max((check.fault_after or 0) - turn.first_iteration, 0),
            compiles=opens,
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
                attempt=measurement.attempt,
                island=measurement.island,
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
        )
        self._done_s += seconds
        turn.first_iteration += turn.iterations
        fitting = int(turn.iterations * wanted_s / max(ended - opened, 1e-3))
        turn.iterations = min(max(fitting, _FIRST_ITERATIONS), _GROWTH * turn.iterations)

    def _implementation(self, case: Case) -> str:
        """Open ``case`` unless it is open; returns the implementation that runs on it."""
        if self._open is None or self._open[0] != case:
            (opened,) = self._measurement.open(case, [self._target])
            self._open = case, opened.implementation
        return self._open[1]


def soak_s(settings: Settings) -> float:
    """Seconds of the soak; 0 without one."""
    return 60 * (settings.timing.soak_minutes or 0)
