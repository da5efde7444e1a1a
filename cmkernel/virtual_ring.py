"""The kernels of ``mosaic_gpu`` for D ranks on a single GPU: on real hardware where D GPUs aren't available.

Each virtual rank is a share of the GPU's CTAs with its own operands, scratch memory and counters. The kernel's body is
the same, except that a neighbour is memory of the same GPU. Timing therefore says nothing. Copies, waits and signals
race as they do between GPUs, apart from what NVLink itself may reorder or delay.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from cmkernel import hardware, ring
from cmkernel.config import KernelConfig, ScatterKernelConfig
from cmkernel.integers import Int
from cmkernel.mosaic_gpu import call, num_result_columns, padded, validate_operands
from cmkernel.mosaic_gpu_cta import Cta, Delay, Ref, await_count, smem_types
from cmkernel.mosaic_gpu_scatter import Launch
from cmkernel.mosaic_gpu_scatter_cta import ScatterCta
from cmkernel.protocol import make_protocol


@dataclasses.dataclass(frozen=True, kw_only=True)
class VirtualCta(Cta):
    """A CTA whose neighbours share its GPU. ``counters`` holds the counters of all ranks, rank by rank."""

    all_scratch_gmem: Ref

    def next_scratch(self) -> Ref:
        """Scratch memory of the rank that this one sends to."""
        return self.all_scratch_gmem.at[self.target]

    def signal_next(self, counter: Int) -> None:
        """Count an arrival at the rank that this one sends to."""
        pl.semaphore_signal(self.counters.at[self.target * self.protocol.num_counters + counter])

    def await_arrival(self, counter: Int) -> None:
        """Wait until one of this rank's counters has been signalled."""
        await_count(self.counters.at[self.rank * self.protocol.num_counters + counter])


def virtual_ring_all_gather_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    config: KernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
    delay: Delay | None = None,
) -> jax.Array:
    """Compute on one GPU what D ranks would: ``all_gather(lhs) @ rhs`` of each.

    lhs ``[D, m_shard, k]`` and rhs ``[D, k, n_shard]`` hold rank i's operands at index i; result ``[D, D * m_shard,
    n_shard]``. Each rank gets ``num_sms // D`` CTAs. The rest is as for ``mosaic_gpu.ring_all_gather_matmul``.

    Raises:
      ValueError: the operands don't fit each other, D is below 2, or a rank has no CTA left to compute.
      NotImplementedError: as ``mosaic_gpu.ring_all_gather_matmul``.
    """
    out_dtype = jnp.dtype(lhs.dtype if out_dtype is None else out_dtype)
    num_ranks = len(lhs)
    if lhs.ndim != 3 or rhs.ndim != 3 or num_ranks != len(rhs) or num_ranks < 2:
        raise ValueError(
            f"{lhs.shape=} and {rhs.shape=} must be [D, m_shard, k] and [D, k, n_shard], with D at least 2"
        )
    validate_operands(lhs[0], rhs[0], out_dtype)
    (num_rows, _), num_columns = lhs.shape[1:], rhs.shape[2]
    lhs, rhs = padded(lhs, 8, config.swizzle_elems), padded(rhs, config.swizzle_elems, config.swizzle_elems)
    (m_shard, k), n_shard = lhs.shape[1:], rhs.shape[2]
    num_ctas = (hardware.num_sms() if num_sms is None else num_sms) // num_ranks
    protocol = make_protocol(config, num_ranks=num_ranks, m_shard=m_shard, k=k, n_shard=n_shard, num_sms=num_ctas)
    out_shape = num_ranks, num_ranks, m_shard, num_result_columns(config, n_shard, out_dtype)
    scratch_shape = num_ranks, ring.num_scratch_slots(num_ranks), m_shard, k

    def body(lhs_gmem: Ref, rhs_gmem: Ref, out_gmem: Ref, scratch_gmem: Ref, **smem: Any) -> VirtualCta:
        rank = lax.div(lax.axis_index("sm"), num_ctas)
        return VirtualCta(
            config=config,
            protocol=protocol,
            communicates=True,
            rank=rank,
            index=lax.rem(lax.axis_index("sm"), num_ctas),
            lhs_gmem=lhs_gmem.at[rank],
            rhs_gmem=rhs_gmem.at[rank],
            out_gmem=out_gmem.at[rank],
            scratch_gmem=scratch_gmem.at[rank],
            all_scratch_gmem=scratch_gmem,
            counters=pl.get_global(plgpu.SemaphoreType.REGULAR((num_ranks * protocol.num_counters,))),
            delay=delay,
            **smem,
        )

    out, _ = call(
        body,
        lhs,
        rhs,
        out_type=[jax.ShapeDtypeStruct(out_shape, out_dtype), jax.ShapeDtypeStruct(scratch_shape, lhs.dtype)],
        smem=smem_types(config, protocol, communicates=True, dtype=lhs.dtype, out_dtype=out_dtype),
        num_ctas=num_ranks * num_ctas,
    )
    return out[:, :, :num_rows, :num_columns].reshape(num_ranks, num_ranks * num_rows, num_columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VirtualScatterCta(ScatterCta):
    """A CTA of a reduce-scatter whose ranks share a GPU. ``counters`` holds the counters of all ranks, rank by rank."""

    all_scratch_gmem: Ref

    def scratch_of(self, rank: Int) -> Ref:
        """Received partial sums of another rank."""
        return self.all_scratch_gmem.at[rank]

    def signal_rank(self, rank: Int, counter: Int) -> None:
        """Count an arrival at another rank."""
        pl.semaphore_signal(self.counters.at[rank * self.protocol.num_counters + counter])

    def await_arrival(self, counter: Int) -> None:
        """Wait until one of this rank's counters has been signalled."""
        await_count(self.counters.at[self.rank * self.protocol.num_counters + counter])


def virtual_ring_matmul_reduce_scatter(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    config: ScatterKernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    partial_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
    delay: Delay | None = None,
) -> jax.Array:
    """Compute on one GPU what D ranks would: ``reduce_scatter(lhs @ rhs)``.

    lhs ``[D, m, k_shard]`` and rhs ``[D, k_shard, n]`` hold rank i's operands at index i; result ``[D, m / D, n]``.
    Each rank gets ``num_sms // D`` CTAs. The rest is as for ``mosaic_gpu_scatter.ring_matmul_reduce_scatter``.

    Raises:
      ValueError: the operands don't fit each other, D is below 2, or a rank has no CTA.
      NotImplementedError: as ``mosaic_gpu_scatter.ring_matmul_reduce_scatter``.
    """
    num_ranks = len(lhs)
    if lhs.ndim != 3 or rhs.ndim != 3 or num_ranks != len(rhs) or num_ranks < 2:
        raise ValueError(
            f"{lhs.shape=} and {rhs.shape=} must be [D, m, k_shard] and [D, k_shard, n], with D at least 2"
        )
    num_ctas = (hardware.num_sms() if num_sms is None else num_sms) // num_ranks
    launch = Launch.of(lhs[0], rhs[0], num_ranks, config, out_dtype, partial_dtype, num_ctas)

    def body(lhs_gmem, rhs_gmem, out_gmem, scratch_gmem, staging_gmem, **smem) -> VirtualScatterCta:
        rank = lax.div(lax.axis_index("sm"), num_ctas)
        return VirtualScatterCta(
            config=config,
            protocol=launch.protocol,
            communicates=True,
            rank=rank,
            index=lax.rem(lax.axis_index("sm"), num_ctas),
            lhs_gmem=lhs_gmem.at[rank],
            rhs_gmem=rhs_gmem.at[rank],
            out_gmem=out_gmem.at[rank],
            scratch_gmem=scratch_gmem.at[rank],
            all_scratch_gmem=scratch_gmem,
            staging_gmem=staging_gmem.at[rank],
            counters=pl.get_global(plgpu.SemaphoreType.REGULAR((num_ranks * launch.protocol.num_counters,))),
            delay=delay,
            **smem,
        )

    out, _, _ = launch.run(body, *launch.padded(lhs, rhs), num_virtual=num_ranks)
    return launch.sliced(out)
