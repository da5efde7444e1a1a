"""The steps of a case, and how long each is expected to take: by the cost model, for progress alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cmkernel import cost
from jobs.records import Case
from jobs.settings import GATHERS, LOCALS, Settings

# What compiling a program takes, about; it is most of a short job.
_COMPILE_S = 0.5
# Programs that draw operands, and those of the oracle, which the first check of a case compiles; then an
# implementation's own two.
_INPUT_PROGRAMS, _ORACLE_PROGRAMS, _OWN_PROGRAMS = 4, 6, 2
# Results that are compared with the oracle beside ``check.calls``: of integers, and of two chains.
_MORE_CHECKS = 3
# The oracle multiplies float32 without tensor cores.
_ORACLE_SHARE_OF_PEAK = 1 / 20
# A device that there is no model of: processes that share a few cores.
_UNKNOWN_DEVICE = cost.DeviceModel(peak_tflops=0.05, link_gbps=1.0)
# Of each call, whatever it computes: dispatch, and the alignment of the ranks before it.
_CALL_US, _UNKNOWN_CALL_US = 100.0, 1000.0
# Reading a trace, and the multiply in front of each profiled call.
_TRACE_S, _ALIGN_US = 1.0, 1500.0


@dataclasses.dataclass(frozen=True)
class Step:
    """What the gang does next."""

    case: Case
    doing: str
    implementation: str | None = None
    """As the config names it; ``None``: no particular one."""
    expected_s: float = dataclasses.field(default=0.0, compare=False)


def steps_of(case: Case, implementations: Sequence[str], settings: Settings, device_kind: str) -> list[Step]:
    """All steps of a case, in order; those of an implementation whose check fails will be skipped."""
    timing, model = settings.timing, cost.device_model(device_kind)
    device = model or _UNKNOWN_DEVICE
    overhead_us = _CALL_US if model else _UNKNOWN_CALL_US
    sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard, "num_ranks": case.num_ranks}
    expected = cost.expected_time(device, **sizes, dtype=case.dtype)

    def calls_s(name: str, num_calls: float, num_dispatched: float) -> float:
        in_program_us = expected.overlapped_us
        if name in LOCALS:
            in_program_us = expected.local_us
        elif name in GATHERS:
            in_program_us = expected.serial_us
        return (num_calls * in_program_us + num_dispatched * overhead_us) * 1e-6

    oracle_s = (settings.check.calls + _MORE_CHECKS) * expected.local_us * 1e-6 / _ORACLE_SHARE_OF_PEAK
    steps = [Step(case, "inputs", None, _INPUT_PROGRAMS * _COMPILE_S)]
    for place, name in enumerate(implementations):
        num_programs = _OWN_PROGRAMS + (_ORACLE_PROGRAMS if place == 0 else 0)
        num_calls = settings.check.calls + 1 + 2 * timing.chain_length
        check_s = num_programs * _COMPILE_S + oracle_s + calls_s(name, num_calls, settings.check.calls + 3)
        steps.append(Step(case, "check", name, check_s))
    for name in implementations:
        warm_up_s = calls_s(name, timing.warmup + timing.chain_length, timing.warmup + 1)
        steps.append(Step(case, "warm-up", name, warm_up_s))
    in_chains = timing.chains * timing.chain_length * timing.chain_repeats
    for burst in range(timing.bursts):
        for name in implementations:
            dispatched = timing.iterations + timing.chains * timing.chain_repeats
            burst_s = calls_s(name, timing.iterations + in_chains, dispatched) / timing.bursts
            steps.append(Step(case, burst_name(burst, timing.bursts), name, burst_s))
    if model:
        profiled_s = sum(calls_s(name, timing.profiled_calls, timing.profiled_calls) for name in implementations)
        align_s = len(implementations) * timing.profiled_calls * _ALIGN_US * 1e-6
        steps.append(Step(case, "profile", None, _TRACE_S + profiled_s + align_s))
    return steps


def burst_name(burst: int, bursts: int) -> str:
    """What the step of a burst is called."""
    return f"burst {burst + 1}/{bursts}"


def time_left_s(*, expected_s: float, done_expected_s: float, done_s: float, current_s: float = 0.0) -> float:
    """Seconds that are left, where ``expected_s`` are expected of the current step and those after it.

    The expectation is scaled by how far that of the steps which are done (``done_expected_s``) was off (``done_s``);
    ``current_s`` is what the current step has taken so far.
    """
    scale = done_s / done_expected_s if done_expected_s > 0 else 1.0
    return max(expected_s * scale - current_s, 0.0)


def told_s(seconds: float) -> str:
    """A duration for people: ``8 s``, ``4 min``, ``2 h 05 min``."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
