"""Host-clock times: one jitted call, and one call out of a chain inside a program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

Align = Callable[[], None]


def time_calls(
    call: Callable[..., jax.Array], sets: Sequence[tuple[jax.Array, jax.Array]], *, first: int, count: int, align: Align
) -> list[float]:
    """``call_us``: from the dispatch of one call to its result, ``count`` times, ranks aligned before each."""
    return [_time(call, sets[(first + i) % len(sets)], align) for i in range(count)]


def time_chains(
    chain: Callable[..., jax.Array],
    sets: Sequence[tuple[jax.Array, jax.Array]],
    *,
    length: int,
    count: int,
    align: Align,
) -> list[float]:
    """``in_graph_us``: a program of ``length`` dependent calls, its time over ``length``, ``count`` times."""
    lhs_sets, rhs_sets = zip(*sets, strict=True)
    return [_time(chain, (lhs_sets, rhs_sets), align) / length for _ in range(count)]


def _time(function: Callable[..., jax.Array], arguments: tuple[Any, ...], align: Align) -> float:
    """Microseconds of one call, its result waited for."""
    align()
    start = time.perf_counter_ns()
    function(*arguments).block_until_ready()
    return (time.perf_counter_ns() - start) / 1e3
