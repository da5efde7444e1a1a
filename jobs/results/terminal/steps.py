"""The steps of a case and their expected durations, from the cost model; used for progress alone."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from cmkernel import cost
from jobs.config.implementations import IN_TURN, LOCALS
from jobs.config.schema import Settings
from jobs.records.case import Case
from jobs.records.work import expected_time

# Rough time to compile one program. In a short job that is most of the time.
_COMPILE_S = 0.5
# Number of programs that draw operands, of the oracle's (compiled by the first check of a case), and of an
# implementation's own.
_INPUT_PROGRAMS, _ORACLE_PROGRAMS, _OWN_PROGRAMS = 4, 6, 2
# Results compared with the oracle in addition to ``check.calls``: one of integers and those of two chains.
_MORE_CHECKS = 3
# The oracle multiplies float32 without tensor cores.
_ORACLE_SHARE_OF_PEAK = 1 / 20
# Stands in for a device without a model: CPU processes that share a few cores.
_UNKNOWN_DEVICE = cost.DeviceModel(peak_tflops=0.05, link_gbytes_per_s=1.0)
# Fixed cost of a call: dispatch, and aligning the ranks before it.
_CALL_US, _UNKNOWN_CALL_US = 100.0, 1000.0
# Time to read a trace, and time for the multiply before each profiled call.
_TRACE_S, _ALIGN_US = 1.0, 1500.0


@dataclasses.dataclass(frozen=True)
class Step:
    """One thing that a gang does."""

    case: Case | None
    """``None``: several of them."""
    doing: str
    implementation: str | None = None
    """Name in the config; ``None``: the step isn't about one implementation."""
    expected_s: float = dataclasses.field(default=0.0, compare=False)
    is_exact: bool = dataclasses.field(default=False, compare=False)
    """True if ``expected_s`` is given by a clock, not by the cost model."""


@dataclasses.dataclass(frozen=True)
class _Expected:
    """Expected durations of one case on one kind of device, in seconds."""

    case: Case
    settings: Settings
    device_kind: str

    @property
    def has_model(self) -> bool:
        return cost.device_model(self.device_kind) is not None

    @functools.cached_property
    def _times(self) -> cost.ExpectedTime:
        return expected_time(self.case, cost.device_model(self.device_kind) or _UNKNOWN_DEVICE)

    def calls_s(self, name: str, num_calls: float, num_dispatched: float) -> float:
        """Time of ``num_calls`` calls of an implementation in ``num_dispatched`` dispatches."""
        of_call_us = self._times.overlapped_us
        if name in LOCALS:
            of_call_us = self._times.local_us
        elif name in IN_TURN:
            of_call_us = self._times.serial_us
        overhead_us = _CALL_US if self.has_model else _UNKNOWN_CALL_US
        return (num_calls * of_call_us + num_dispatched * overhead_us) * 1e-6

    def check_s(self, name: str, *, is_first: bool, calls: int) -> float:
        """Time of one check with ``calls`` single calls, compilation included; a case's first check compiles more."""
        num_programs = _OWN_PROGRAMS + (_ORACLE_PROGRAMS if is_first else 0)
        oracle_s = (calls + _MORE_CHECKS) * self._times.local_us * 1e-6 / _ORACLE_SHARE_OF_PEAK
        num_calls = calls + 1 + 2 * self.settings.timing.chain_length
        return num_programs * _COMPILE_S + oracle_s + self.calls_s(name, num_calls, calls + _MORE_CHECKS)

    def chains_s(self, name: str, samples: float) -> float:
        """Time of that many samples of ``in_graph_us``."""
        timing = self.settings.timing
        dispatched = samples * timing.chain_repeats
        return self.calls_s(name, dispatched * timing.chain_length, dispatched)


def steps_of(case: Case, implementations: Sequence[str], settings: Settings, device_kind: str) -> list[Step]:
    """All steps of a case in order; a gang skips the rest for an implementation whose check fails."""
    timing, expected = settings.timing, _Expected(case, settings, device_kind)
    steps = [Step(case, "inputs", None, _INPUT_PROGRAMS * _COMPILE_S)]
    for place, name in enumerate(implementations):
        check_s = expected.check_s(name, is_first=place == 0, calls=settings.check.calls)
        steps.append(Step(case, "check", name, check_s))
    for name in implementations:
        warm_up_s = expected.calls_s(name, timing.warmup + timing.chain_length, timing.warmup + 1)
        steps.append(Step(case, "warm-up", name, warm_up_s))
    for burst in range(timing.bursts):
        for name in implementations:
            of_all_s = expected.calls_s(name, timing.iterations, timing.iterations)
            of_all_s += expected.chains_s(name, timing.chains)
            steps.append(Step(case, burst_name(burst, timing.bursts), name, of_all_s / timing.bursts))
    if expected.has_model:
        calls = timing.profiled_calls
        profile_s = sum(expected.calls_s(name, calls, calls) + calls * _ALIGN_US * 1e-6 for name in implementations)
        steps.append(Step(case, "profile", None, _TRACE_S + profile_s))
    return steps


def tuning_steps(case: Case, implementation: str, settings: Settings, device_kind: str) -> list[Step]:
    """All steps of a case in a tuning, for the largest possible number of candidates; a gang may skip some."""
    tuning, expected = settings.tuning, _Expected(case, settings, device_kind)
    num_rounds = max(1, math.ceil((tuning.max_candidates - 1) / (tuning.round_size - 1)))
    steps = []
    for number in range(1, num_rounds + 1):
        steps.append(Step(case, round_name(number, "inputs"), None, _INPUT_PROGRAMS * _COMPILE_S))
        for place in range(tuning.round_size):
            check_s = expected.check_s(implementation, is_first=place == 0, calls=0)
            steps.append(Step(case, round_name(number, f"candidate {place}"), None, check_s))
        burst_s = tuning.round_size * expected.chains_s(implementation, tuning.chains)
        for burst in range(tuning.bursts):
            steps.append(Step(case, round_name(number, burst_name(burst, tuning.bursts)), None, burst_s))
        check_s = expected.check_s(implementation, is_first=False, calls=settings.check.calls)
        steps.append(Step(case, round_name(number, "check"), None, check_s))
    return steps


def soak_step(seconds: float = 0.0) -> Step:
    """One step for all slices of a soak, because their number depends on the clock; ``seconds`` are left."""
    return Step(None, "soak", None, seconds, is_exact=True)


def round_name(number: int, doing: str) -> str:
    """Name of a step in a round of candidates."""
    return f"round {number}: {doing}"


def burst_name(burst: int, bursts: int) -> str:
    """Name of the step of a burst."""
    return f"burst {burst + 1}/{bursts}"


def time_left_s(*, expected_s: float, done_expected_s: float, done_s: float, current_s: float = 0.0) -> float:
    """Seconds left, corrected for the error of the expectations so far.

    Args:
      expected_s: expected time of the current step and all after it.
      done_expected_s: expected time of the steps that are done.
      done_s: time that they took.
      current_s: time that the current step has taken so far.
    """
    scale = done_s / done_expected_s if done_expected_s > 0 else 1.0
    return max(expected_s * scale - current_s, 0.0)


def duration(seconds: float) -> str:
    """Format ``seconds`` for people: ``8 s``, ``4 min``, ``2 h 05 min``."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
