"""One program of many calls over rotating operands, each of which depends on the call before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax

from jobs.measure.operations.operation import Operation, Shards

if TYPE_CHECKING:
    from jax.sharding import Mesh

Function = Callable[..., Shards]
Chain = Callable[[Sequence[Shards]], Shards]


def chain_of(function: Function, length: int) -> Chain:
    """Chain of ``length`` calls of ``function``, with the results of the last one."""
    return _chain(function, length, _depend)


def sharded_chain_of(function: Function, length: int, operation: Operation, mesh: Mesh) -> Chain:
    """The same for a ``function`` of global arrays; each rank makes its own shards depend on one another."""
    depend = jax.shard_map(
        _depend,
        mesh=mesh,
        in_specs=(operation.in_specs[0], operation.out_specs),
        out_specs=operation.in_specs[0],
        check_vma=False,
    )
    return _chain(function, length, depend)


def _chain(function: Function, length: int, depend: Callable[[jax.Array, Shards], jax.Array]) -> Chain:
    # Trace and lower it once instead of `length` times: a Pallas kernel takes about a second each time.
    function = jax.jit(function)

    def chain(sets: Sequence[Shards]) -> Shards:
        sets = list(sets)
        results = function(*sets[0])
        for i in range(1, length):
            turn = i % len(sets)
            first, *others = sets[turn]
            sets[turn] = depend(first, results), *others
            results = function(*sets[turn])
        return results

    return chain


def _depend(operand: jax.Array, results: Shards) -> jax.Array:
    """Return ``operand`` ``[m, k]`` unchanged, but only once all ``results`` are computed.

    It adds a few elements of each result times zero, which the compiler must keep because they could be NaN. This
    happens in place after one copy of each set, as the program doesn't own its arguments. An optimization barrier isn't
    enough: XLA removes it before it schedules collectives.
    """
    for result in results:
        row = result[:1].reshape(1, -1)
        # Never all of the operand: XLA's compiler crashes on an update in place that replaces everything.
        width = min(8, operand.shape[1] - 1, row.shape[1])
        operand = operand.at[:1, :width].add(row[:, :width] * 0)
    return operand
