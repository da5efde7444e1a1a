"""XLA baselines: an all-gather followed by a matmul, and the matmul alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax import lax

from cmkernel.dot import dot

if TYPE_CHECKING:
    import jax


def all_gather_then_dot(
    lhs: jax.Array, rhs: jax.Array, *, axis_name: str | tuple[str, ...], out_dtype: jax.typing.DTypeLike | None = None
) -> jax.Array:
    """Compute ``AllGather(lhs) @ rhs``, one after the other, inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]`` -> ``[axis_size * m_shard, n_shard]`` in ``out_dtype``, by
    default the operands' dtype.
    """
    return all_gather_then_dot_with_lhs(lhs, rhs, axis_name=axis_name, out_dtype=out_dtype)[0]


def all_gather_then_dot_with_lhs(
    lhs: jax.Array, rhs: jax.Array, *, axis_name: str | tuple[str, ...], out_dtype: jax.typing.DTypeLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the result of ``all_gather_then_dot`` and the gathered lhs ``[axis_size * m_shard, k]``."""
    gathered_lhs = lax.all_gather(lhs, axis_name, axis=0, tiled=True)
    return dot(gathered_lhs, rhs, out_dtype=out_dtype), gathered_lhs


def local(gathered_lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Compute ``gathered_lhs @ rhs``: the same multiply without communication, the bound of every implementation.

    gathered_lhs ``[axis_size * m_shard, k]``, rhs ``[k, n_shard]`` -> ``[axis_size * m_shard, n_shard]``.
    """
    return dot(gathered_lhs, rhs)
