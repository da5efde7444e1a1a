"""Random operands from a seed: every rank can draw its own shard and all others.

A rank's oracle multiplies the gathered lhs. That lhs is drawn from all ranks' seeds, not gathered through the network
under test, so that a broken collective can't spoil the reference as well.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jobs.records.case import Case

AXIS = "x"
LHS_SPEC, RHS_SPEC, OUT_SPEC = PartitionSpec(AXIS, None), PartitionSpec(None, AXIS), PartitionSpec(None, AXIS)
# Integers from -2 to 2: a sum of k products is at most 4 k, far below 2**24, up to which float32 is exact.
MAX_INTEGER = 2


class Operands(NamedTuple):
    """Inputs of one call."""

    lhs: jax.Array
    """``[num_ranks * m_shard, k]`` over all ranks; this rank holds ``[m_shard, k]``."""
    rhs: jax.Array
    """``[k, num_ranks * n_shard]`` over all ranks; this rank holds ``[k, n_shard]``."""


class LocalOperands(NamedTuple):
    """Operands of one rank's multiply, on its own device."""

    gathered_lhs: jax.Array
    """``[num_ranks * m_shard, k]``."""
    rhs: jax.Array
    """``[k, n_shard]``."""


@functools.partial(jax.jit, static_argnames=("shape", "dtype", "integers"))
def _draw(seed: jax.Array, stream: jax.Array, *, shape: tuple[int, int], dtype: str, integers: bool) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(seed), stream)
    if integers:
        return jax.random.randint(key, shape, -MAX_INTEGER, MAX_INTEGER + 1, jnp.int8).astype(dtype)
    return jax.random.normal(key, shape, dtype)


def _lhs_shard(case: Case, rank: int, seed: int, integers: bool) -> jax.Array:
    return _draw(seed, 2 * rank, shape=(case.m_shard, case.k), dtype=case.dtype, integers=integers)


def _rhs_shard(case: Case, rank: int, seed: int, integers: bool) -> jax.Array:
    return _draw(seed, 2 * rank + 1, shape=(case.k, case.n_shard), dtype=case.dtype, integers=integers)


def local_operands(case: Case, rank: int, seed: int, *, integers: bool = False) -> LocalOperands:
    """The whole lhs and this rank's rhs, drawn without communication; the same values as in ``operands``."""
    shards = [_lhs_shard(case, source, seed, integers) for source in range(case.num_ranks)]
    return LocalOperands(jnp.concatenate(shards), _rhs_shard(case, rank, seed, integers))


def operands(case: Case, mesh: Mesh, rank: int, seed: int, *, integers: bool = False) -> Operands:
    """Sharded operands of one call: normal data, or integers from -2 to 2."""
    lhs, rhs = _lhs_shard(case, rank, seed, integers), _rhs_shard(case, rank, seed, integers)
    return Operands(
        _globally((case.num_ranks * case.m_shard, case.k), mesh, LHS_SPEC, lhs),
        _globally((case.k, case.num_ranks * case.n_shard), mesh, RHS_SPEC, rhs),
    )


def _globally(shape: tuple[int, int], mesh: Mesh, spec: PartitionSpec, shard: jax.Array) -> jax.Array:
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return jax.make_array_from_single_device_arrays(shape, sharding, [shard])
