"""The portable ring: ``lax.ppermute`` steps that XLA can overlap with the multiply, on any backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

from cmkernel import ring
from cmkernel.dot import dot

if TYPE_CHECKING:
    import jax


def ring_all_gather_matmul(
    lhs: jax.Array, rhs: jax.Array, *, axis_name: str, out_dtype: jax.typing.DTypeLike | None = None
) -> jax.Array:
    """``AllGather(lhs) @ rhs`` by the ring of ``cmkernel.ring``; for use inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]`` -> ``[axis_size * m_shard, n_shard]`` in ``out_dtype``,
    by default that of the operands.
    """
    return ring_all_gather_matmul_with_received(lhs, rhs, axis_name=axis_name, out_dtype=out_dtype)[0]


def ring_all_gather_matmul_with_received(
    lhs: jax.Array, rhs: jax.Array, *, axis_name: str, out_dtype: jax.typing.DTypeLike | None = None
) -> tuple[jax.Array, jax.Array | None]:
    """The same and the other ranks' shards ``[axis_size - 1, m_shard, k]``, in the order in which they came by."""
    num_ranks = lax.axis_size(axis_name)
    rank = lax.axis_index(axis_name)
    m_shard = lhs.shape[0]
    out = lax.empty((num_ranks * m_shard, rhs.shape[1]), lhs.dtype if out_dtype is None else out_dtype)
    shards = [lhs]
    for step in range(num_ranks):
        # The exchange comes first and the multiply doesn't depend on it: the scheduler may run both at once.
        if ring.sends_in(step, num_ranks):
            shards.append(lax.ppermute(shards[step], axis_name, ring.permutation(num_ranks)))
        row = ring.source_shard(rank, step, num_ranks) * m_shard
        out = lax.dynamic_update_slice(out, dot(shards[step], rhs, out_dtype=out_dtype), (row, jnp.zeros_like(row)))
    return out, jnp.stack(shards[1:]) if num_ranks > 1 else None
