"""Host-clock times of a jitted call, and of a call inside a chain. Results only need ``block_until_ready``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

Align = Callable[[], None]
Sets = Sequence[tuple[Any, ...]]


def share(total: int, burst: int, bursts: int) -> range:
    """Indices of the samples that belong to burst ``burst``; ``total`` samples are split evenly over ``bursts``."""
    return range(total * burst // bursts, total * (burst + 1) // bursts)


def time_calls(call: Callable[..., Any], sets: Sets, *, which: range, align: Align) -> list[float]:
    """``call_us``: time from a call's dispatch to its result. Ranks align before each call; operands take turns."""
    return [_time(functools.partial(call, *sets[i % len(sets)]), align) for i in which]


def time_chains(
    chain: Callable[..., Any], sets: Sets, *, count: int, calls_per_sample: int, repeats: int, align: Align
) -> list[float]:
    """``in_graph_us``: time of ``repeats`` runs of a chain, divided by ``calls_per_sample``; ``count`` samples.

    Runs are dispatched back to back and only the last is waited for, so that the host's work overlaps the device's in
    all but the first.
    """

    def runs() -> Any:
        for _ in range(repeats):
            out = chain(sets)
        return out

    return [_time(runs, align) / calls_per_sample for _ in range(count)]


def _time(function: Callable[[], Any], align: Align) -> float:
    """Microseconds from the call of ``function`` until its result is ready."""
    align()
    start = time.perf_counter_ns()
    jax.block_until_ready(function())
    return (time.perf_counter_ns() - start) / 1e3
