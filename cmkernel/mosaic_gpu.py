"""Ring all-gather matmul as one Pallas:Mosaic-GPU kernel for Hopper, in its fast form.

Algorithm: the JAX tutorial, "Collective matrix multiplication"
(https://docs.jax.dev/en/latest/pallas/gpu/collective_matmul.html), as in ``mosaic_gpu_simple``. Two things make this
form faster. A compute CTA walks the output tiles of all device steps in one loop and waits only for the piece it loads
next, never for a whole shard. And the multiplying warps neither send nor signal. ``cmkernel.protocol`` assigns the
work, ``cmkernel.mosaic_gpu_cta`` turns it into copies, waits and signals, and this module launches the kernel.

Optimization barriers surround a call that communicates. Without them, XLA fuses a kernel with a slice that it reads or
writes (say, of weights stacked for ``lax.scan``) into one dynamic-slice fusion, and then can't place its operands and
results in symmetric memory ("window registration", xla#47461). Each array needs a barrier of its own: one barrier
around several arrays is a tuple, which that pass may see through. The slice thus becomes a copy, as it does with the
other known workaround, ``--xla_gpu_enable_dynamic_slice_fusion=false``.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from cmkernel import hardware, ring, stamps
from cmkernel.config import NUM_COMPUTE_WARPGROUPS, KernelConfig
from cmkernel.integers import Int
from cmkernel.mosaic_gpu_cta import Cta, Delay, result_swizzle_bytes, smem_types
from cmkernel.protocol import make_protocol

SUPPORTED_DTYPES = (jnp.float16, jnp.bfloat16)


def ring_all_gather_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: str,
    config: KernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
    delay: Delay | None = None,
) -> jax.Array:
    """Compute ``all_gather(lhs, axis=0) @ rhs`` over the D ranks of ``axis_name``, inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16 or bf16; result ``[D * m_shard, n_shard]``,
    accumulated in f32 and rounded once to ``out_dtype``: the operands' dtype (the default) or f32. ``num_sms`` is the
    number of CTAs, by default and at most the device's SMs. ``delay`` disturbs the ring on purpose.
    ``hardware.unsupported_reason`` says whether the machine can run the kernel. Algorithm: see the module.

    Tiles need not divide the shape: elements outside are loaded as zeros and not stored, so a tile at the edge costs as
    much as a whole one. The copies need m_shard in multiples of 8, and k and n_shard in multiples of the config's
    ``swizzle_elems`` (at most 64). Other shapes are padded outside the kernel. That copies each operand that has to
    grow and, for m_shard and n_shard, the result. The result is also copied if n_shard is at most a row of its swizzle
    (64 columns with the default ``epi_tile_n``, half as many of f32) and less than the columns of a CTA's tile.

    Raises:
      ValueError: the operands don't fit each other, or no CTA is left to compute.
      NotImplementedError: operands or result have another dtype, or ``num_sms`` is left out and no GPU tells it. jax
        raises it at lowering if the mesh's devices aren't in the order of their ids.
    """
    return ring_all_gather_matmul_with_received(
        lhs, rhs, axis_name=axis_name, config=config, out_dtype=out_dtype, num_sms=num_sms, delay=delay
    )[0]


def ring_all_gather_matmul_with_received(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: str,
    config: KernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
    delay: Delay | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Return the result of ``ring_all_gather_matmul`` and the shards that the ring delivered.

    The shards ``[D - 1, m_shard, k]`` are those of the following ranks. They are complete when the call ends, as every
    rank multiplies every piece. ``None`` for D = 1.
    """
    return _launch(
        lhs, rhs, None, 0, axis_name=axis_name, config=config, out_dtype=out_dtype, num_sms=num_sms, delay=delay
    )[:2]


def stamped_ring_all_gather_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: str,
    config: KernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the result of ``ring_all_gather_matmul`` and its stamps, for ``cmkernel.measured_timeline``.

    Stamps are int32 ``[num_sms, rows, columns]`` per rank. A CTA stores the time a few times per tile and piece, which
    makes a call about a microsecond slower.

    Raises:
      ValueError: as ``ring_all_gather_matmul``, and for a single rank.
      NotImplementedError: as ``ring_all_gather_matmul``.
    """
    if lax.axis_size(axis_name) == 1:
        raise ValueError(f"axis {axis_name!r} has one rank, which has no ring to be timed")
    out, _, stamps = _launch(
        lhs, rhs, None, 0, axis_name=axis_name, config=config, out_dtype=out_dtype, num_sms=num_sms, stamped=True
    )
    assert stamps is not None
    return out, stamps


def gathered_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    received: jax.Array | None = None,
    *,
    rank: int = 0,
    config: KernelConfig,
    out_dtype: jax.typing.DTypeLike | None = None,
    num_sms: int | None = None,
    interpret: Any = None,
) -> jax.Array:
    """Run the compute part of the kernel on one device, without sending or waiting.

    lhs ``[m_shard, k]`` is shard ``rank``; received ``[D - 1, m_shard, k]`` holds the shards of the following ranks, as
    the ring would have delivered them (``None`` for D = 1, a plain matmul); rhs ``[k, n_shard]``; result ``[D *
    m_shard, n_shard]``. ``interpret`` is passed to ``plgpu.kernel``. The rest is as for ``ring_all_gather_matmul``.
    """
    return _launch(
        lhs,
        rhs,
        received,
        rank,
        axis_name=None,
        config=config,
        out_dtype=out_dtype,
        num_sms=num_sms,
        interpret=interpret,
    )[0]


def validate_operands(lhs: jax.Array, rhs: jax.Array, out_dtype: jax.typing.DTypeLike) -> None:
    """Check that the kernel can multiply these operands.

    Raises:
      ValueError: they aren't ``[m_shard, k]`` and ``[k, n_shard]`` of one dtype.
      NotImplementedError: the kernel doesn't support the dtype of the operands or the result.
    """
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0] or lhs.dtype != rhs.dtype:
        operands = f"lhs {lhs.dtype}{list(lhs.shape)} and rhs {rhs.dtype}{list(rhs.shape)}"
        raise ValueError(f"{operands} must be [m_shard, k] and [k, n_shard] of one dtype")
    if lhs.dtype not in SUPPORTED_DTYPES:
        raise NotImplementedError(f'{lhs.dtype=} must be float16 or bfloat16; use implementation="ppermute"')
    if jnp.dtype(out_dtype) not in (lhs.dtype, jnp.float32):
        raise NotImplementedError(f"out_dtype={jnp.dtype(out_dtype)} must be that of the operands or float32")


def padded(array: jax.Array, *units: int) -> jax.Array:
    """Append zeros to each of the array's last dimensions, up to a multiple of the units.

    TMA tells inside from outside only in units of a swizzle's tile.
    """
    sizes = array.shape[-len(units) :]
    widths = [(0, -size % unit) for size, unit in zip(sizes, units, strict=True)]
    if not any(after for _, after in widths):
        return array
    return jnp.pad(array, [(0, 0)] * (array.ndim - len(units)) + widths)


def num_result_columns(config: KernelConfig, n_shard: int, out_dtype: Any) -> int:
    """Columns of the kernel's result: n_shard, rounded up to what the copies of the result need."""
    unit = result_swizzle_bytes(config) // jnp.dtype(out_dtype).itemsize
    num_units = -(-n_shard // unit)
    # Mosaic drops a dimension of one unit from a copy of one unit, and that dimension's index with it. Columns that
    # belong outside on the right would then be stored on top of the only unit. A second unit keeps the dimension.
    if num_units == 1 and config.cta_tile_n > unit:
        num_units = 2
    return num_units * unit


def call(
    body: Callable[..., Cta],
    *operands: jax.Array,
    out_type: Sequence[jax.ShapeDtypeStruct],
    smem: dict[str, Any],
    num_ctas: int,
    interpret: Any = None,
) -> Sequence[jax.Array]:
    """Run ``num_ctas`` CTAs of three warpgroups, which play the roles of the ``Cta`` that ``body`` returns.

    ``body`` is called with references to operands and results, and by name with references to shared memory. Axis
    ``sm`` counts CTAs, axis ``wg`` warpgroups.
    """

    def ring_all_gather_matmul_kernel(*refs, pipeline_smem, **smem):
        views = [pipeline_smem] if isinstance(pipeline_smem, dict) else list(pipeline_smem)
        cta = body(*refs, **functools.reduce(operator.or_, views), **smem)
        # One branch for the whole kernel: ptxas ignores setmaxnreg where roles are mixed.
        lax.cond(lax.axis_index("wg") < NUM_COMPUTE_WARPGROUPS, cta.compute, cta.move)

    kernel = plgpu.kernel(
        ring_all_gather_matmul_kernel,
        out_type=out_type,
        scratch_types=smem,
        grid=(num_ctas,),
        grid_names=("sm",),
        num_threads=NUM_COMPUTE_WARPGROUPS + 1,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
            # No thread touches memory that another thread of its warpgroup writes, except in the epilogue, which says
            # so.
            unsafe_no_auto_barriers=True,
        ),
        interpret=interpret,
    )
    # The kernel's integers are int32. Under jax_enable_x64, Python integers would become int64 beside them.
    with jax.enable_x64(False):
        return kernel(*operands)


def _launch(
    lhs: jax.Array,
    rhs: jax.Array,
    received: jax.Array | None,
    rank: Int,
    *,
    axis_name: str | None,
    config: KernelConfig,
    out_dtype: jax.typing.DTypeLike | None,
    num_sms: int | None,
    delay: Delay | None = None,
    stamped: bool = False,
    interpret: Any = None,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    out_dtype = jnp.dtype(lhs.dtype if out_dtype is None else out_dtype)
    validate_operands(lhs, rhs, out_dtype)
    (num_rows, depth), num_columns = lhs.shape, rhs.shape[1]
    lhs, rhs = padded(lhs, 8, config.swizzle_elems), padded(rhs, config.swizzle_elems, config.swizzle_elems)
    received = None if received is None else padded(received, 8, config.swizzle_elems)
    (m_shard, k), n_shard = lhs.shape, rhs.shape[1]
    num_sms = hardware.num_sms() if num_sms is None else num_sms
    num_ranks = 1 if received is None else len(received) + 1
    if axis_name is not None:
        num_ranks = lax.axis_size(axis_name)
    communicates = axis_name is not None and num_ranks > 1
    protocol = make_protocol(
        config if communicates else dataclasses.replace(config, num_comm_ctas=0),
        num_ranks=num_ranks,
        m_shard=m_shard,
        k=k,
        n_shard=n_shard,
        num_sms=num_sms,
    )
    # The shards get a dimension of their own: a tile that reaches past a shard's rows must not reach the next shard.
    out_shape = num_ranks, m_shard, num_result_columns(config, n_shard, out_dtype)
    out_type = [jax.ShapeDtypeStruct(out_shape, out_dtype)]
    operands = [lhs, rhs]
    if communicates:
        operands = [lax.optimization_barrier(operand) for operand in operands]
        # An output rather than scratch memory: only operands and results have an address on the other ranks.
        out_type.append(jax.ShapeDtypeStruct((ring.num_scratch_slots(num_ranks), m_shard, k), lhs.dtype))
    elif received is not None:
        operands.append(received)
    if stamped:
        out_type.append(jax.ShapeDtypeStruct(stamps.shape(protocol), jnp.int32))

    def body(lhs_gmem, rhs_gmem, *refs, **smem) -> Cta:
        out_gmem, scratch_gmem = refs[:2] if communicates else (refs[-1], refs[0])
        return Cta(
            config=config,
            protocol=protocol,
            communicates=communicates,
            rank=lax.axis_index(axis_name) if communicates else rank,
            index=lax.axis_index("sm"),
            lhs_gmem=lhs_gmem,
            rhs_gmem=rhs_gmem,
            out_gmem=out_gmem,
            scratch_gmem=scratch_gmem,
            counters=pl.get_global(plgpu.SemaphoreType.REGULAR((protocol.num_counters,))) if communicates else None,
            delay=delay,
            stamps_gmem=refs[2] if stamped else None,
            **smem,
        )

    smem = smem_types(config, protocol, communicates=communicates, dtype=lhs.dtype, out_dtype=out_dtype)
    results = call(body, *operands, out_type=out_type, smem=smem, num_ctas=num_sms, interpret=interpret)
    if communicates:
        results = [lax.optimization_barrier(result) for result in results]
    out = results[0][:, :num_rows, :num_columns].reshape(num_ranks * num_rows, num_columns)
    return out, results[1][:, :num_rows, :depth] if communicates else None, results[2] if stamped else None
