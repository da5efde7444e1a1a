"""Gradient shared by all implementations, and the gathered lhs that it may keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel.dot import dot

if TYPE_CHECKING:
    # The forward pass keeps rhs and either the gathered lhs or the shard, to be gathered again.
    Residuals = tuple[jax.Array, jax.Array]

Multiply = Callable[[jax.Array, jax.Array], jax.Array]
"""``(lhs, rhs) -> AllGather(lhs) @ rhs``, as one implementation computes it."""
MultiplyAndGather = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""``(lhs, rhs) -> (AllGather(lhs) @ rhs, AllGather(lhs))``."""


def differentiable(
    multiply: Multiply,
    multiply_and_gather: MultiplyAndGather,
    *,
    axis_name: str | tuple[str, ...],
    save_gathered_lhs: bool,
) -> Multiply:
    """Give ``multiply`` a gradient, for use inside ``jax.shard_map``.

    Per rank, for the cotangent ``d_out`` ``[axis_size * m_shard, n_shard]``: ``d_lhs = ReduceScatter(d_out @ rhs^T)``
    ``[m_shard, k]`` and ``d_rhs = AllGather(lhs)^T @ d_out`` ``[k, n_shard]``. Both sum in float32, also over ranks,
    and round once to the operand's dtype. The reduce-scatter therefore moves float32: twice the bytes of half-precision
    operands. A float32 cotangent of half-precision operands is first rounded to their dtype, as tensor cores multiply
    nothing wider. Reverse mode only: jax raises ``TypeError`` for ``jvp``.

    Args:
      multiply: Forward pass. jax need not be able to differentiate it.
      multiply_and_gather: Forward pass for ``save_gathered_lhs``.
      axis_name: Mesh axis, or axes, that the rows of lhs are sharded over.
      save_gathered_lhs: Keep ``AllGather(lhs)`` for the backward pass instead of gathering lhs again there.
    """

    @jax.custom_vjp
    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return multiply(lhs, rhs)

    def forward(lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, Residuals]:
        if not save_gathered_lhs:
            return multiply(lhs, rhs), (lhs, rhs)
        out, gathered_lhs = multiply_and_gather(lhs, rhs)
        return out, (gathered_lhs, rhs)

    def backward(residuals: Residuals, d_out: jax.Array) -> tuple[jax.Array, jax.Array]:
        lhs, rhs = residuals
        d_out = d_out.astype(rhs.dtype)
        # Start the gather first: only the last multiply waits for it.
        gathered_lhs = lhs if save_gathered_lhs else lax.all_gather(lhs, axis_name, axis=0, tiled=True)
        d_gathered_lhs = dot(d_out, rhs.T, out_dtype=jnp.float32)
        d_lhs = lax.psum_scatter(d_gathered_lhs, axis_name, scatter_dimension=0, tiled=True).astype(lhs.dtype)
        return d_lhs, dot(gathered_lhs.T, d_out)

    product.defvjp(forward, backward)
    return product


def in_rank_order(
    lhs: jax.Array, received: jax.Array | None, *, axis_name: str | tuple[str, ...], devices_per_host: int | None = None
) -> jax.Array:
    """Assemble ``AllGather(lhs)`` from the shards that a ring received, at the cost of one copy.

    lhs ``[m_shard, k]``; received ``[axis_size - 1, m_shard, k]`` holds the shards of the following ranks in the order
    of ``ring.source_shard`` (``None`` for a single rank); result ``[axis_size * m_shard, k]``. With
    ``devices_per_host`` the shards are in the order of ``ring.TwoLevelRing``, which costs a second copy.
    """
    if received is None:
        return lhs
    m_shard, k = lhs.shape
    rank = lax.axis_index(axis_name)
    from_this_rank_on = jnp.concatenate([lhs, received.reshape(-1, k)])
    if devices_per_host is None:
        return jnp.roll(from_this_rank_on, rank * m_shard, axis=0)
    by_host = from_this_rank_on.reshape(-1, devices_per_host * m_shard, k)
    by_host = jnp.roll(by_host, rank % devices_per_host * m_shard, axis=1)
    return jnp.roll(by_host, rank // devices_per_host, axis=0).reshape(-1, k)
