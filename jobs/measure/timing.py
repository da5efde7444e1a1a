"""Host-clock times: one jitted call, and one call out of a chain inside a program.

A result needs no more than ``block_until_ready``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

Align = Callable[[], None]
Sets = Sequence[tuple[Any, Any]]


def share(total: int, burst: int, bursts: int) -> range:
    """Which of ``total`` samples fall to one of ``bursts`` bursts, as evenly as possible."""
    return range(total * burst // bursts, total * (burst + 1) // bursts)


def time_calls(call: Callable[..., Any], sets: Sets, *, which: range, align: Align) -> list[float]:
    """``call_us``: from the dispatch of one call to its result, ranks aligned before each; operands take turns."""
    return [_time(functools.partial(call, *sets[i % len(sets)]), align) for i in which]


def time_chains(
    chain: Callable[..., Any], sets: Sets, *, count: int, calls_per_sample: int, repeats: int, align: Align
) -> list[float]:
    """``in_graph_us``: ``repeats`` runs of a program of dependent calls, over the number of calls; ``count`` samples.

    The runs are dispatched back to back and the last one is waited for, so that the host's part hides behind the
    device's in all but the first.
    """
    lhs_sets, rhs_sets = zip(*sets, strict=True)

    def runs() -> Any:
        for _ in range(repeats):
            out = chain(lhs_sets, rhs_sets)
        return out

    return [_time(runs, align) / calls_per_sample for _ in range(count)]


def _time(function: Callable[[], Any], align: Align) -> float:
    """Microseconds until the result of ``function`` is there."""
    align()
    start = time.perf_counter_ns()
    function().block_until_ready()
    return (time.perf_counter_ns() - start) / 1e3
