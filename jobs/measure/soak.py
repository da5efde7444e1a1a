"""A slice of a soak: iterations with fresh data, each one timed and checked."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import jax

from jobs.config.choices import Fault
from jobs.measure.check import Subject, compare_with_oracle, draw, summarize
from jobs.measure.operations import OPERATIONS
from jobs.measure.timing import Align
from jobs.records.soak import RankSlice

# Every fourth iteration has integers, whose result must match bit for bit.
INTEGERS_EVERY = 4


def soak(subject: Subject, *, iterations: int, seed: int, fault_from: int, compiles: bool, align: Align) -> RankSlice:
    """Run ``iterations`` calls; the subject's fault is planted from iteration ``fault_from`` on.

    Data are drawn on the device, with consecutive seeds from ``seed``, before each call is timed. With ``compiles``
    (the case has just been opened) the first four calls compile: they are checked but not timed.
    """
    untimed = INTEGERS_EVERY if compiles else 0
    has_integers = OPERATIONS[subject.case.op].has_integers
    sound = dataclasses.replace(subject, fault=Fault.none)
    times_us: list[float | None] = []
    outcomes = []
    for number in range(iterations):
        drawn = seed + number, has_integers and number % INTEGERS_EVERY == INTEGERS_EVERY - 1
        operands = jax.block_until_ready(draw(subject, *drawn))
        align()
        start = time.perf_counter_ns()
        result = subject.program.call(*operands)
        jax.block_until_ready(result)
        times_us.append((time.perf_counter_ns() - start) / 1e3 if number >= untimed else None)
        outcomes.append(compare_with_oracle(subject if number >= fault_from else sound, result, drawn))
    del operands, result
    memory = jax.local_devices()[0].memory_stats()
    return RankSlice(
        times_us=times_us,
        wrong=[number for number, one in enumerate(outcomes) if one.is_wrong],
        check=summarize(outcomes),
        rss_bytes=_rss_bytes(),
        device_bytes=memory.get("bytes_in_use") if memory else None,
    )


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
