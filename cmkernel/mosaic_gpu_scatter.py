"""Matmul reduce-scatter as one Pallas:Mosaic-GPU kernel for Hopper: the dual of ``mosaic_gpu``.

``cmkernel.protocol.ScatterProtocol`` assigns the work, ``cmkernel.mosaic_gpu_scatter_cta`` turns it into copies, waits
and signals, and this module launches the kernel. Optimization barriers surround a call that communicates, as in
``mosaic_gpu``.
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
from cmkernel.config import ScatterKernelConfig
from cmkernel.integers import Int
from cmkernel.mosaic_gpu import call, padded, padded_columns, validate_operands
from cmkernel.mosaic_gpu_cta import Delay, Ref
from cmkernel.mosaic_gpu_scatter_cta import (
    NUM_STAGED,
    ScatterCta,
    scatter_smem_types,
    swizzle_bytes,
    widest_bytes,
)
from cmkernel.protocol import ScatterProtocol, make_scatter_protocol


def ring_matmul_reduce_scatter(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: str,
    config: ScatterKernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    partial_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
    delay: Delay | None = None,
) -> jax.Array:
    """Compute ``ReduceScatter(lhs @ rhs)`` over the D ranks of ``axis_name``, inside ``jax.shard_map``.

    Per rank: lhs ``[m, k_shard]``, rhs ``[k_shard, n]``, both f16 or bf16; result ``[m / D, n]`` in ``out_dtype``: the
    operands' dtype (the default) or f32. Partial sums are rounded once to ``partial_dtype`` (by default the operands'
    dtype), travel, and are added to the owner's own in f32, in a fixed order: every call gives the same bits.

    Beside operands and result a rank holds the partial sums that it receives, ``(D - 1) * m / D * n`` of
    ``partial_dtype``, and two staged tiles for each SM. Any sizes whose m divides by D: the copies need m / D in
    multiples of 8, k_shard in multiples of the config's ``swizzle_elems`` and n in multiples of that and of the
    epilogue's swizzle. Other sizes are padded outside the kernel, as ``mosaic_gpu`` does.

    Raises:
      ValueError: the operands don't fit each other, or m doesn't divide by D.
      NotImplementedError: operands, partial sums or result have another dtype, or ``num_sms`` is left out and no GPU
        tells it. jax raises it at lowering if the mesh's devices aren't in the order of their ids.
    """
    num_ranks = lax.axis_size(axis_name)
    launch = Launch.of(lhs, rhs, num_ranks, config, out_dtype, partial_dtype, num_sms)
    communicates = num_ranks > 1
    operands = launch.padded(lhs, rhs)
    if communicates:
        operands = [lax.optimization_barrier(operand) for operand in operands]

    def body(lhs_gmem: Ref, rhs_gmem: Ref, out_gmem: Ref, *refs: Ref, **smem: Any) -> ScatterCta:
        scratch_gmem, staging_gmem = refs if communicates else (None, None)
        counters = pl.get_global(plgpu.SemaphoreType.REGULAR((launch.protocol.num_counters,))) if communicates else None
        return ScatterCta(
            config=config,
            protocol=launch.protocol,
            communicates=communicates,
            rank=lax.axis_index(axis_name) if communicates else 0,
            index=lax.axis_index("sm"),
            lhs_gmem=lhs_gmem,
            rhs_gmem=rhs_gmem,
            out_gmem=out_gmem,
            scratch_gmem=scratch_gmem,
            staging_gmem=staging_gmem,
            counters=counters,
            delay=delay,
            **smem,
        )

    results = launch.run(body, *operands)
    if communicates:
        results = [lax.optimization_barrier(result) for result in results]
    return launch.sliced(results[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalCta(ScatterCta):
    """A CTA that has received everything already, and sends to an array of its own."""

    sent_gmem: Ref

    def scratch_of(self, rank: Int) -> Ref:
        """Array of all partial sums that this rank sends."""
        return self.sent_gmem

    def signal_rank(self, rank: Int, counter: Int) -> None:
        """Signal nobody."""

    def await_arrival(self, counter: Int) -> None:
        """Wait for nobody."""

    def order_loads(self) -> None:
        """Order nothing: no wait came before."""


def local_matmul_reduce_scatter(
    lhs: jax.Array,
    rhs: jax.Array,
    received: jax.Array,
    *,
    rank: int = 0,
    config: ScatterKernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
    overlaid: bool = True,
    interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """Run the kernel of one rank on one device, without other ranks.

    lhs ``[m, k_shard]``, rhs ``[k_shard, n]``; received ``[D - 1, m / D, n]`` holds the partial sums of the other
    ranks, slot by slot, in the type that travels. Returns the rank's result ``[m / D, n]`` and what it would send,
    ``[D - 1, m / D, n]`` step by step. ``interpret`` is passed to ``plgpu.kernel``; ``overlaid`` is an option of
    ``scatter_smem_types``.
    """
    launch = Launch.of(lhs, rhs, len(received) + 1, config, out_dtype, received.dtype, num_sms)
    _, rows, columns = launch.scratch_shape
    received = jnp.pad(received, [(0, 0), (0, rows - received.shape[1]), (0, columns - received.shape[2])])

    def body(lhs_gmem, rhs_gmem, received_gmem, out_gmem, sent_gmem, staging_gmem, **smem) -> LocalCta:
        return LocalCta(
            config=config,
            protocol=launch.protocol,
            communicates=True,
            rank=rank,
            index=lax.axis_index("sm"),
            lhs_gmem=lhs_gmem,
            rhs_gmem=rhs_gmem,
            out_gmem=out_gmem,
            scratch_gmem=received_gmem,
            sent_gmem=sent_gmem,
            staging_gmem=staging_gmem,
            counters=None,
            **smem,
        )

    out, sent, _ = launch.run(body, *launch.padded(lhs, rhs), received, overlaid=overlaid, interpret=interpret)
    return launch.sliced(out), launch.sliced(sent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """Shapes of one call on one rank, padded to what the copies need."""

    protocol: ScatterProtocol
    config: ScatterKernelConfig
    dtype: Any
    out_dtype: Any
    partial_dtype: Any
    m_shard: int
    """Rows of the result."""
    n: int
    padded_m_shard: int
    padded_columns: int

    @classmethod
    def of(
        cls,
        lhs: jax.Array,
        rhs: jax.Array,
        num_ranks: int,
        config: ScatterKernelConfig,
        out_dtype: Any,
        partial_dtype: Any,
        num_sms: int | None,
    ) -> Launch:
        """Call on lhs ``[m, k_shard]`` and rhs ``[k_shard, n]``, after a check of both."""
        out_dtype = jnp.dtype(lhs.dtype if out_dtype is None else out_dtype)
        partial_dtype = jnp.dtype(lhs.dtype if partial_dtype is None else partial_dtype)
        validate_operands(lhs, rhs, out_dtype)
        validate_operands(lhs, rhs, partial_dtype)
        if num_ranks == 1:
            partial_dtype = out_dtype  # Nothing travels.
        (m, k), n = lhs.shape, rhs.shape[1]
        if m % num_ranks:
            raise ValueError(f"{m=}, the rows of lhs, must be a multiple of {num_ranks=}")
        widest = widest_bytes(out_dtype, partial_dtype)
        m_shard = m // num_ranks
        padded_m_shard, padded_k = m_shard + -m_shard % 8, k + -k % config.swizzle_elems
        padded_n = n + -n % config.swizzle_elems
        units = [swizzle_bytes(config, dtype, widest) // dtype.itemsize for dtype in (out_dtype, partial_dtype)]
        protocol = make_scatter_protocol(
            config,
            num_ranks=num_ranks,
            m_shard=padded_m_shard,
            k=padded_k,
            n_shard=padded_n,
            num_sms=hardware.num_sms() if num_sms is None else num_sms,
            partial_bytes=partial_dtype.itemsize,
            out_bytes=out_dtype.itemsize,
        )
        return cls(
            protocol=protocol,
            config=config,
            dtype=lhs.dtype,
            out_dtype=out_dtype,
            partial_dtype=partial_dtype,
            m_shard=m_shard,
            n=n,
            padded_m_shard=padded_m_shard,
            # Powers of two, so the larger unit is a multiple of the smaller one.
            padded_columns=padded_columns(padded_n, max(units), config.cta_tile_n),
        )

    @property
    def communicates(self) -> bool:
        """True if there is another rank."""
        return self.protocol.num_ranks > 1

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the kernel's result."""
        shape = self.padded_m_shard, self.padded_columns
        return shape if self.communicates else (1, *shape)

    @property
    def scratch_shape(self) -> tuple[int, int, int]:
        """Shape of the received partial sums."""
        return ring.num_scratch_slots(self.protocol.num_ranks), self.padded_m_shard, self.padded_columns

    @property
    def staging_shape(self) -> tuple[int, int, int]:
        """Shape of the staging buffers."""
        num_buffers = self.protocol.num_compute_ctas * NUM_STAGED
        return num_buffers, self.config.cta_tile_m, self.config.cta_tile_n

    def padded(self, lhs: jax.Array, rhs: jax.Array) -> list[jax.Array]:
        """Operands of the kernel: lhs block by block, as a tile at the edge of a block must not reach the next."""
        unit = self.config.swizzle_elems
        by_block = lhs.reshape(*lhs.shape[:-2], self.protocol.num_ranks, self.m_shard, lhs.shape[-1])
        return [padded(by_block, 8, unit), padded(rhs, unit, unit)]

    def smem_types(self, *, overlaid: bool = True) -> dict[str, Any]:
        """Shared memory of a CTA."""
        return scatter_smem_types(
            self.config,
            communicates=self.communicates,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            partial_dtype=self.partial_dtype,
            overlaid=overlaid,
        )

    def run(
        self,
        body: Any,
        *operands: jax.Array,
        num_virtual: int | None = None,
        overlaid: bool = True,
        interpret: Any = None,
    ) -> Any:
        """Launch the kernel: results are the sum and, with other ranks, partial sums received and staged.

        With ``num_virtual`` ranks on one GPU, each has its own results.
        """
        shapes = [(self.out_shape, self.out_dtype)]
        if self.communicates:
            shapes += [(self.scratch_shape, self.partial_dtype), (self.staging_shape, self.partial_dtype)]
        ranks = () if num_virtual is None else (num_virtual,)
        return call(
            body,
            *operands,
            out_type=[jax.ShapeDtypeStruct((*ranks, *shape), dtype) for shape, dtype in shapes],
            smem=self.smem_types(overlaid=overlaid),
            num_ctas=self.protocol.num_compute_ctas * (num_virtual or 1),
            name="ring_matmul_reduce_scatter_kernel",
            interpret=interpret,
        )

    def sliced(self, array: jax.Array) -> jax.Array:
        """Rows and columns of ``array`` without padding."""
        array = array if self.communicates else array[0]
        return array[..., : self.m_shard, : self.n]
