"""Portable rings of ``lax.ppermute`` steps that XLA can overlap with the multiply, on any backend and any hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

from cmkernel import ring
from cmkernel.config import PpermuteConfig
from cmkernel.dot import dot

if TYPE_CHECKING:
    import jax

    AxisName = str | tuple[str, ...]

_WHOLE_SHARDS = PpermuteConfig()


def ring_all_gather_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: AxisName,
    config: PpermuteConfig = _WHOLE_SHARDS,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """Compute ``AllGather(lhs) @ rhs`` by the ring of ``cmkernel.ring``, inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]`` -> ``[axis_size * m_shard, n_shard]`` in ``out_dtype``, by
    default the operands' dtype.
    """
    return ring_all_gather_matmul_with_received(lhs, rhs, axis_name=axis_name, config=config, out_dtype=out_dtype)[0]


def ring_all_gather_matmul_with_received(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: AxisName,
    config: PpermuteConfig = _WHOLE_SHARDS,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Return the result of ``ring_all_gather_matmul`` and the other ranks' shards.

    The shards are ``[axis_size - 1, m_shard, k]``, in the order of their arrival; ``None`` for a single rank.
    """
    num_ranks = lax.axis_size(axis_name)
    rank = lax.axis_index(axis_name)
    out = _empty_result(lhs, rhs, num_ranks, out_dtype)
    m_shard = lhs.shape[0]
    rows = ring.pieces(m_shard, config.num_chunks)
    shards = [[lhs[start:stop] for start, stop in rows]]
    for step in range(num_ranks):
        # The exchange comes first and the multiply doesn't depend on it, so the scheduler may run both at once.
        if ring.sends_in(step, num_ranks):
            permutation = ring.permutation(num_ranks)
            shards.append([lax.ppermute(piece, axis_name, permutation) for piece in shards[step]])
        first_row = ring.source_shard(rank, step, num_ranks) * m_shard
        for piece, (start, _) in zip(shards[step], rows, strict=True):
            out = _multiply_into(out, piece, rhs, first_row + start)
    return out, jnp.stack([jnp.concatenate(pieces) for pieces in shards[1:]]) if num_ranks > 1 else None


def two_level_all_gather_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: AxisName,
    devices_per_host: int,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """Compute ``AllGather(lhs) @ rhs`` by ``cmkernel.ring.TwoLevelRing``, inside ``jax.shard_map``.

    Shapes and dtypes are those of ``ring_all_gather_matmul``. The axis runs host by host, over ``devices_per_host``
    ranks each.
    """
    return two_level_all_gather_matmul_with_received(
        lhs, rhs, axis_name=axis_name, devices_per_host=devices_per_host, out_dtype=out_dtype
    )[0]


def two_level_all_gather_matmul_with_received(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: AxisName,
    devices_per_host: int,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Return the result of ``two_level_all_gather_matmul`` and the other ranks' shards.

    The shards are ``[axis_size - 1, m_shard, k]``, in the order of the steps; ``None`` for a single rank.
    """
    num_ranks = lax.axis_size(axis_name)
    hosts = ring.TwoLevelRing(num_ranks // devices_per_host, devices_per_host)
    rank = lax.axis_index(axis_name)
    out = _empty_result(lhs, rhs, num_ranks, out_dtype)
    slots: dict[int, jax.Array] = {}
    for outer in range(hosts.num_hosts):
        for inner in range(devices_per_host):
            step = hosts.step(outer, inner)
            shard = slots[ring.read_slot(step)] if step > 0 else lhs
            # The exchange between hosts goes first: it is the slower one, and has a whole revolution.
            if hosts.sends_across(outer, inner):
                slots[hosts.outer_write_slot(outer)] = lax.ppermute(shard, axis_name, hosts.outer_permutation())
            if hosts.sends_within(inner):
                slots[hosts.inner_write_slot(outer, inner)] = lax.ppermute(shard, axis_name, hosts.inner_permutation())
            out = _multiply_into(out, shard, rhs, hosts.source_shard(rank, outer, inner) * lhs.shape[0])
    return out, jnp.stack([slots[slot] for slot in sorted(slots)]) if slots else None


def _empty_result(lhs: jax.Array, rhs: jax.Array, num_ranks: int, out_dtype: jax.typing.DTypeLike | None) -> jax.Array:
    return lax.empty((num_ranks * lhs.shape[0], rhs.shape[1]), lhs.dtype if out_dtype is None else out_dtype)


def _multiply_into(out: jax.Array, lhs: jax.Array, rhs: jax.Array, row: jax.Array) -> jax.Array:
    """Write ``lhs @ rhs`` into the rows of ``out`` from ``row`` on."""
    return lax.dynamic_update_slice(out, dot(lhs, rhs, out_dtype=out.dtype), (row, jnp.zeros_like(row)))
