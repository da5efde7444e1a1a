"""The ring all-gather matmul as one Pallas:Mosaic-GPU kernel for Hopper: the fast form.

Algorithm: jax documentation, "Collective matrix multiplication" (Pallas:Mosaic GPU), as in ``mosaic_gpu_simple``. What
makes this one faster: a compute CTA walks the output tiles of all device steps in one loop and never waits for a whole
shard, only for the piece that it loads next; and the multiplying warps neither send nor signal. Who does what is in
``cmkernel.protocol``; this module turns it into copies, waits and signals.

Warps of a CTA: two warpgroups multiply and store results. The third has one warp that loads, one that sends, and one
that polls arrival counters ahead of the loads (``wait_ahead``). In a communication CTA each warp of the third passes pieces
of the shard on, block by block through the shared memory of the idle pipeline, and the two warpgroups are idle. While
one of its warps waits for its copies to land, before it signals, the others keep the link busy.

Optimization barriers stand around a call that communicates. XLA would otherwise wrap a kernel together with a slice of
which it reads or writes, say of weights stacked for ``lax.scan``, into one dynamic-slice fusion, and then fail to put
its operands and results into symmetric memory ("window registration", xla#47461). Each array needs a barrier of its
own: one around several is a tuple, which that pass may see through. The slice is thus a copy of its own, as it is with
the other known way round, ``--xla_gpu_enable_dynamic_slice_fusion=false``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils as mosaic_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from cmkernel import hardware, ring
from cmkernel.config import (
    COMM_BLOCK_COLUMNS,
    COMM_BLOCK_ROWS,
    NUM_COMPUTE_WARPGROUPS,
    OPERAND_BYTES,
    KernelConfig,
    MatmulDimension,
)
from cmkernel.protocol import Protocol, make_protocol

SUPPORTED_DTYPES = (jnp.float16, jnp.bfloat16)
# The memory warps need few registers, accumulators many: 128 threads of 40 and 256 of 232 fit the 65,536 of an SM.
COMPUTE_REGISTERS, MEMORY_REGISTERS = 232, 40
# Warps of the memory warpgroup.
LOAD_WARP, SEND_WARP, POLL_WARP = 0, 1, 2
# Arrivals that the polling warp may be ahead of the loading one.
POLL_AHEAD = 8
# A signal has to wait until its copies are complete, which takes a microsecond or two; so a compute CTA signals a chunk
# only after it has sent a few tiles of the next one.
SIGNAL_DELAY = 4

Ref = Any  # A Pallas reference; the end of its name says which memory.
Index = Any  # A Python int or a traced int32 scalar.


def ring_all_gather_matmul(
    lhs: jax.Array, rhs: jax.Array, *, axis_name: str, config: KernelConfig, num_sms: int | None = None
) -> jax.Array:
    """``all_gather(lhs, axis=0) @ rhs`` over the D ranks of mesh axis ``axis_name``, inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16 or bf16; result ``[D * m_shard, n_shard]`` in their
    dtype, accumulated in f32. ``num_sms`` is the number of CTAs: by default, and at most, the SMs of the device.
    ``hardware.unsupported_reason`` says whether the machine can run it. Source: see the module.

    Tiles need not divide the shape: what lies outside is loaded as zeros and not stored, so a tile at the edge costs as
    much as a whole one. The copies need m_shard in multiples of 8, and k and n_shard in multiples of the swizzle's
    elements (``tile_k``, at most 64). A shape that falls short is padded outside the kernel, at the cost of a copy of
    each operand that has to grow, and, for m_shard and n_shard, of the result. The result is also copied where n_shard
    is at most the swizzle's elements (64 with the default ``epi_tile_n``) and less than the columns of a CTA's tile.

    Raises:
      ValueError: the operands don't fit each other, or no CTA is left to compute.
      NotImplementedError: operands of another dtype, or ``num_sms`` left out where no GPU tells it.
    """
    return _launch(lhs, rhs, None, 0, axis_name=axis_name, config=config, num_sms=num_sms)[0]


def ring_all_gather_matmul_with_received(
    lhs: jax.Array, rhs: jax.Array, *, axis_name: str, config: KernelConfig, num_sms: int | None = None
) -> tuple[jax.Array, jax.Array | None]:
    """The same and the shards that the ring has delivered, ``[D - 1, m_shard, k]``: those of the following ranks.

    They are complete when the call ends, as every rank multiplies every piece. ``None``: D = 1.
    """
    return _launch(lhs, rhs, None, 0, axis_name=axis_name, config=config, num_sms=num_sms)


def gathered_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    received: jax.Array | None = None,
    *,
    rank: int = 0,
    config: KernelConfig,
    num_sms: int | None = None,
    interpret: Any = None,
) -> jax.Array:
    """The compute part of the same kernel on one device, which neither sends nor waits.

    lhs ``[m_shard, k]`` is shard ``rank``, received ``[D - 1, m_shard, k]`` holds the shards of the following ranks as
    the ring would have delivered them (``None``: D = 1, a plain matmul), rhs ``[k, n_shard]``; result
    ``[D * m_shard, n_shard]``. ``interpret`` is that of ``plgpu.kernel``; the rest as for ``ring_all_gather_matmul``.
    """
    return _launch(lhs, rhs, received, rank, axis_name=None, config=config, num_sms=num_sms, interpret=interpret)[0]


def _validate(lhs: jax.Array, rhs: jax.Array) -> None:
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0] or lhs.dtype != rhs.dtype:
        found = f"lhs {lhs.dtype}{list(lhs.shape)} and rhs {rhs.dtype}{list(rhs.shape)}"
        raise ValueError(f"{found} must be [m_shard, k] and [k, n_shard] of one dtype")
    if lhs.dtype not in SUPPORTED_DTYPES:
        raise NotImplementedError(f'{lhs.dtype=} must be float16 or bfloat16; use implementation="ppermute"')


def _padded(array: jax.Array, *units: int) -> jax.Array:
    """``array`` with zeros at the end of each of its last dimensions, up to a multiple of the units."""
    sizes = array.shape[-len(units) :]
    widths = [(0, -size % unit) for size, unit in zip(sizes, units, strict=True)]
    if not any(after for _, after in widths):
        return array
    return jnp.pad(array, [(0, 0)] * (array.ndim - len(units)) + widths)


def _result_swizzle_bytes(config: KernelConfig) -> int:
    return plgpu.find_swizzle(config.epi_tile_n * OPERAND_BYTES * 8)


def _num_result_columns(config: KernelConfig, n_shard: int) -> int:
    """Columns of the kernel's result: n_shard, or as many more as the copies of the result need."""
    unit = _result_swizzle_bytes(config) // OPERAND_BYTES
    num_units = -(-n_shard // unit)
    # Mosaic drops a dimension of one unit from a copy of one unit, and the copy's index along it with it: what should
    # fall outside on the right would be stored on top of the only unit. A second unit keeps the dimension.
    if num_units == 1 and config.cta_tile_n > unit:
        num_units = 2
    return num_units * unit


def _smem_types(config: KernelConfig, protocol: Protocol, communicates: bool, dtype: Any) -> dict[str, Any]:
    """Shared memory of one CTA: the pipeline's slots and barriers, and where results are staged."""

    def swizzled(*shape: int, swizzle_bytes: int) -> Any:
        tiling = plgpu.TilingTransform((8, swizzle_bytes // OPERAND_BYTES))
        return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(swizzle_bytes)))

    num_slots, epi_tile = config.max_concurrent_steps, (config.epi_tile_m, config.epi_tile_n)
    # wgmma wants the same swizzle for both operands.
    operands = functools.partial(swizzled, num_slots, swizzle_bytes=config.swizzle_elems * OPERAND_BYTES)
    results = functools.partial(swizzled, swizzle_bytes=_result_swizzle_bytes(config))
    pipeline = (operands(config.cta_tile_m, config.tile_k), operands(config.tile_k, config.cta_tile_n))
    blocks = ()
    if communicates and protocol.num_comm_ctas:
        # No CTA has both: a communication CTA keeps its blocks where others have the operands.
        num_block_slots = config.num_comm_warps * config.num_block_slots
        blocks = (plgpu.SMEM((num_block_slots, COMM_BLOCK_ROWS, COMM_BLOCK_COLUMNS), dtype),)
    types = {
        "pipeline_smem": plgpu.RefUnion(pipeline, blocks) if blocks else pipeline,
        "out_smem": results(NUM_COMPUTE_WARPGROUPS, config.num_epilogue_slots, *epi_tile),
        "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=num_slots),  # the copies of lhs and of rhs
        # By the compute warpgroups, and by the sending warp where there is one.
        "released": plgpu.Barrier(
            num_arrivals=NUM_COMPUTE_WARPGROUPS + (communicates and protocol.sends_in_tile), num_barriers=num_slots
        ),
    }
    if blocks:
        types["block_loaded"] = plgpu.Barrier(num_arrivals=1, num_barriers=num_block_slots)
    if communicates and config.wait_ahead:
        types["arrival_seen"] = plgpu.Barrier(num_arrivals=1, num_barriers=POLL_AHEAD)
        types["arrival_taken"] = plgpu.Barrier(num_arrivals=1, num_barriers=POLL_AHEAD)
    return types


def _tile(index: Index, size: int) -> Any:
    return pl.ds(index * size, size)


def _await_count(counter: Ref) -> None:
    """Spin until an arrival counter is 1; one warp calls it."""

    def emit(_context: Any, counter: Any) -> None:
        # Acquiring loads: cheaper than relaxed ones with a fence behind them, which is what `semaphore_wait` emits.
        mosaic_utils.inline_ptx(
            "{ .reg .b32 count; .reg .pred absent;"
            " again: ld.acquire.sys.global.b32 count, [$0];"
            " setp.eq.u32 absent, count, 0; @absent bra again; }",
            mosaic_utils.memref_ptr(counter),
            has_side_effects=True,
        )
        mosaic_utils.warp_barrier()

    plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))(emit)(counter)


def _fence_async_proxy() -> None:
    def emit(_context: Any) -> None:
        mosaic_utils.inline_ptx("fence.proxy.async.global;", has_side_effects=True)

    plgpu.inline_mgpu()(emit)()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cta:
    """One CTA and what its warps do. Only where ranks communicate are there counters and barriers for that."""

    config: KernelConfig
    protocol: Protocol
    communicates: bool
    rank: Index
    index: Index  # of this CTA
    lhs_gmem: Ref
    rhs_gmem: Ref
    out_gmem: Ref
    scratch_gmem: Ref
    counters: Ref
    lhs_smem: Ref
    rhs_smem: Ref
    out_smem: Ref
    loaded: Ref
    released: Ref
    block_smem: Ref = None
    block_loaded: Ref = None
    arrival_seen: Ref = None
    arrival_taken: Ref = None

    @property
    def is_compute(self) -> Any:
        return self.index < self.protocol.num_compute_ctas

    @property
    def comm_index(self) -> Index:
        return self.index - self.protocol.num_compute_ctas

    @property
    def num_local_tiles(self) -> Index:
        tiles = self.protocol.num_local_tiles(self.index, self.protocol.num_ranks)
        return jnp.where(self.is_compute, tiles, 0) if self.protocol.num_comm_ctas else tiles

    def slot(self, load: Index) -> Index:
        return lax.rem(load, self.config.max_concurrent_steps)

    def next_rank(self, gmem: Ref) -> Ref:
        """The same memory of the rank that this one sends to."""
        target = ring.send_rank(self.rank, self.protocol.num_ranks)
        return plgpu.remote_ref(gmem, target, pl.DeviceIdType.LOGICAL)

    def signal(self, step: Index, m_idx: Index, chunk: Index, num_pending: int) -> None:
        """Tell the next rank that it has a piece; of this warp's copies, the last ``num_pending`` are of later ones."""
        # Signal only after the copies have been written there: the peer reads as soon as it sees the count.
        plgpu.wait_smem_to_gmem(num_pending, wait_read_only=False)
        counter = self.counters.at[self.protocol.counter(ring.write_slot(step), m_idx, chunk)]
        target = ring.send_rank(self.rank, self.protocol.num_ranks)
        pl.semaphore_signal(counter, device_id=target, device_id_type=pl.DeviceIdType.LOGICAL)

    def await_piece(self, step: Index, m_idx: Index, chunk: Index) -> None:
        """Wait until a piece of the shard of a device step has arrived."""
        _await_count(self.counters.at[self.protocol.counter(ring.read_slot(step), m_idx, chunk)])

    # The loading warp of a compute CTA.

    def load_tiles(self) -> None:
        """Load the operands of this CTA's output tiles, step by step, as pieces arrive and slots become free."""
        num_k_steps = self.protocol.num_k_steps

        # Invariant: all warps walk the same tiles in the same order and number the loads through all of them, so that a
        # load's number alone gives its slot, and the phases of every slot pass in order.
        @pl.loop(0, self.num_local_tiles)
        def _local_tile(i):
            step, m_idx, n_idx = self.protocol.tile(self.index, i)
            first_load = i * num_k_steps

            @pl.when(step == 0)
            def _own_shard():
                pl.loop(0, num_k_steps)(lambda k_idx: self.load(self.lhs_gmem, m_idx, n_idx, k_idx, first_load + k_idx))

            if self.protocol.num_ranks > 1:

                @pl.when(step > 0)
                def _received_shard():
                    shard_gmem = self.scratch_gmem.at[ring.read_slot(step)]

                    @pl.loop(0, self.protocol.num_chunks)
                    def _chunk(chunk):
                        if self.communicates:
                            self.await_next_piece(i, step, m_idx, chunk)
                        # Invariant: the piece is complete, and is not written again in this call.
                        pl.loop(chunk * self.protocol.chunk_k_steps, self.protocol.chunk_end(chunk))(
                            lambda k_idx: self.load(shard_gmem, m_idx, n_idx, k_idx, first_load + k_idx)
                        )

        # A waiter has to see every phase of a barrier, so wait until the last loads have been released.
        num_loads = self.num_local_tiles * num_k_steps
        pl.loop(jnp.maximum(num_loads - self.config.max_concurrent_steps, 0), num_loads)(
            lambda load: plgpu.barrier_wait(self.released.at[self.slot(load)])
        )

    def load(self, shard_gmem: Ref, m_idx: Index, n_idx: Index, k_idx: Index, load: Index) -> None:
        slot, config = self.slot(load), self.config
        # Invariant: a slot is overwritten only after all who read its last load have released it.
        pl.when(load >= config.max_concurrent_steps)(lambda: plgpu.barrier_wait(self.released.at[slot]))
        lhs_tile = _tile(m_idx, config.cta_tile_m), _tile(k_idx, config.tile_k)
        rhs_tile = _tile(k_idx, config.tile_k), _tile(n_idx, config.cta_tile_n)
        plgpu.copy_gmem_to_smem(self.rhs_gmem.at[rhs_tile], self.rhs_smem.at[slot], self.loaded.at[slot])
        plgpu.copy_gmem_to_smem(shard_gmem.at[lhs_tile], self.lhs_smem.at[slot], self.loaded.at[slot])

    def await_next_piece(self, i: Index, step: Index, m_idx: Index, chunk: Index) -> None:
        """Wait for the piece that tile ``i`` loads next, or for the polling warp to have seen it."""
        if self.config.wait_ahead:
            slot = lax.rem(self.arrival(i, chunk), POLL_AHEAD)
            plgpu.barrier_wait(self.arrival_seen.at[slot])
            plgpu.barrier_arrive(self.arrival_taken.at[slot])
        else:
            self.await_piece(step, m_idx, chunk)
        # The wait orders ordinary loads; the tiles are loaded by the TMA unit, which must be made to follow.
        _fence_async_proxy()

    def arrival(self, i: Index, chunk: Index) -> Index:
        """Number of an awaited piece among all that this CTA waits for."""
        return (i - self.protocol.num_local_tiles(self.index, 1)) * self.protocol.num_chunks + chunk

    def poll(self) -> None:
        """The polling warp: see arrivals before the loading warp asks for them."""

        @pl.loop(jnp.minimum(self.protocol.num_local_tiles(self.index, 1), self.num_local_tiles), self.num_local_tiles)
        def _local_tile(i):
            step, m_idx, _ = self.protocol.tile(self.index, i)

            @pl.loop(0, self.protocol.num_chunks)
            def _chunk(chunk):
                arrival = self.arrival(i, chunk)
                slot = lax.rem(arrival, POLL_AHEAD)
                # Invariant: a barrier is arrived at again only after the last phase has been waited for.
                pl.when(arrival >= POLL_AHEAD)(lambda: plgpu.barrier_wait(self.arrival_taken.at[slot]))
                self.await_piece(step, m_idx, chunk)
                plgpu.barrier_arrive(self.arrival_seen.at[slot])

    # The sending warp of a compute CTA.

    def send_tiles(self) -> None:
        """Send the loaded lhs tiles of some output tiles on; of the others only see them pass."""

        @pl.loop(0, self.num_local_tiles)
        def _local_tile(i):
            step, m_idx, n_idx = self.protocol.tile(self.index, i)
            sends = self.protocol.sends_tile(step, m_idx, n_idx)
            first_load = i * self.protocol.num_k_steps
            lax.cond(sends, lambda: self.send_tile(step, m_idx, first_load), lambda: self.pass_tile(first_load))

    def pass_tile(self, first_load: Index) -> None:
        # A waiter has to see every phase of a barrier.
        @pl.loop(first_load, first_load + self.protocol.num_k_steps)
        def _k_step(load):
            plgpu.barrier_wait(self.loaded.at[self.slot(load)])
            plgpu.barrier_arrive(self.released.at[self.slot(load)])

    def send_tile(self, step: Index, m_idx: Index, first_load: Index) -> None:
        protocol, config = self.protocol, self.config
        shard_gmem = self.next_rank(self.scratch_gmem).at[ring.write_slot(step)]
        last_chunk = protocol.num_chunks - 1
        shortest_chunk = protocol.num_k_steps - last_chunk * protocol.chunk_k_steps
        delay = min(SIGNAL_DELAY, shortest_chunk - 1)

        @pl.loop(0, protocol.num_chunks)
        def _chunk(chunk):
            first_k_idx = chunk * protocol.chunk_k_steps

            @pl.loop(first_k_idx, protocol.chunk_end(chunk))
            def _k_step(k_idx):
                load = first_load + k_idx
                slot = self.slot(load)
                plgpu.barrier_wait(self.loaded.at[slot])
                lhs_tile = _tile(m_idx, config.cta_tile_m), _tile(k_idx, config.tile_k)
                plgpu.copy_smem_to_gmem(self.lhs_smem.at[slot], shard_gmem.at[lhs_tile])
                # Invariant: of this warp's copies only the newest still reads shared memory.
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)
                pl.when(k_idx > 0)(lambda: plgpu.barrier_arrive(self.released.at[self.slot(load - 1)]))
                pl.when((chunk > 0) & (k_idx - first_k_idx == delay))(
                    lambda: self.signal(step, m_idx, chunk - 1, num_pending=delay + 1)
                )

        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        plgpu.barrier_arrive(self.released.at[self.slot(first_load + (protocol.num_k_steps - 1))])
        # Not later: the next tile may wait for the other ranks, and they for this signal.
        self.signal(step, m_idx, last_chunk, num_pending=0)

    # The sending warps of a communication CTA: each loads blocks of its pieces into slots of its own and sends them on.

    @property
    def num_block_rows(self) -> int:
        """Blocks along M in a piece."""
        return self.config.cta_tile_m // COMM_BLOCK_ROWS

    @property
    def num_blocks(self) -> int:
        """Blocks of a piece."""
        return self.num_block_rows * (self.protocol.chunk_k_steps * self.config.tile_k // COMM_BLOCK_COLUMNS)

    def block(self, m_idx: Index, chunk: Index, block: Index) -> tuple[Any, Any]:
        """Rows and columns of a block; those outside the shard are not copied."""
        row = m_idx * self.config.cta_tile_m + lax.rem(block, self.num_block_rows) * COMM_BLOCK_ROWS
        first_column = chunk * (self.protocol.chunk_k_steps * self.config.tile_k)
        column = first_column + lax.div(block, self.num_block_rows) * COMM_BLOCK_COLUMNS
        return pl.ds(row, COMM_BLOCK_ROWS), pl.ds(column, COMM_BLOCK_COLUMNS)

    def send_pieces(self, warp: Index) -> None:
        sender = self.comm_index * self.config.num_comm_warps + warp

        @pl.loop(0, self.protocol.num_local_jobs(sender))
        def _job(i):
            step, m_idx, chunk = self.protocol.job(sender, i)
            if self.protocol.num_ranks > 2:

                @pl.when(step > 0)
                def _forward():
                    self.await_piece(step, m_idx, chunk)
                    _fence_async_proxy()

            self.send_piece(warp, step, m_idx, chunk)
            # Invariant: all copies have landed, so all slots are free for the next piece.
            self.signal(step, m_idx, chunk, num_pending=0)

    def send_piece(self, warp: Index, step: Index, m_idx: Index, chunk: Index) -> None:
        num_slots = self.config.num_block_slots
        target_gmem = self.next_rank(self.scratch_gmem).at[ring.write_slot(step)]

        def slot(block: Index) -> Index:
            return warp * num_slots + lax.rem(block, num_slots)

        def load_from(shard_gmem: Ref, block: Index) -> None:
            block_gmem = shard_gmem.at[self.block(m_idx, chunk, block)]
            plgpu.copy_gmem_to_smem(block_gmem, self.block_smem.at[slot(block)], self.block_loaded.at[slot(block)])

        def load(block: Index) -> None:
            pl.when(step == 0)(lambda: load_from(self.lhs_gmem, block))
            if self.protocol.num_ranks > 2:
                pl.when(step > 0)(lambda: load_from(self.scratch_gmem.at[ring.read_slot(step)], block))

        pl.loop(0, min(num_slots, self.num_blocks))(load)

        @pl.loop(0, self.num_blocks)
        def _block(block):
            plgpu.barrier_wait(self.block_loaded.at[slot(block)])
            plgpu.copy_smem_to_gmem(self.block_smem.at[slot(block)], target_gmem.at[self.block(m_idx, chunk, block)])
            refill = block + (num_slots - 1)

            @pl.when((block > 0) & (refill < self.num_blocks))
            def _refill():
                # Invariant: of this warp's copies only the newest still reads shared memory.
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)
                load(refill)

    # The compute warpgroups.

    def multiply_tile(self, i: Index) -> None:
        """Compute one output tile and store it."""
        config, wg_idx, num_k_steps = self.config, lax.axis_index("wg"), self.protocol.num_k_steps
        on_m = config.wg_dimension is MatmulDimension.M
        wg_m, wg_n = (wg_idx * config.tile_m, 0) if on_m else (0, wg_idx * config.tile_n)
        step, m_idx, n_idx = self.protocol.tile(self.index, i)
        first_load = i * num_k_steps

        @functools.partial(pl.run_scoped, acc_ref=plgpu.ACC((config.tile_m, config.tile_n), jnp.float32))
        def _accumulate(acc_ref):
            @pl.loop(0, num_k_steps)
            def _k_step(k_idx):
                load = first_load + k_idx
                slot = self.slot(load)
                plgpu.barrier_wait(self.loaded.at[slot])
                lhs_smem = self.lhs_smem.at[slot, pl.ds(wg_m, config.tile_m)]
                plgpu.wgmma(acc_ref, lhs_smem, self.rhs_smem.at[slot, :, pl.ds(wg_n, config.tile_n)])
                plgpu.wgmma_wait(1)
                # Invariant: now wgmma doesn't read the slot of the previous k step any more.
                pl.when(k_idx > 0)(lambda: plgpu.barrier_arrive(self.released.at[self.slot(load - 1)]))

            plgpu.wgmma_wait(0)
            # Before the epilogue: the slot is free for the next tile.
            plgpu.barrier_arrive(self.released.at[self.slot(first_load + (num_k_steps - 1))])
            shard = ring.source_shard(self.rank, step, self.protocol.num_ranks)
            row, column = m_idx * config.cta_tile_m + wg_m, n_idx * config.cta_tile_n + wg_n
            self.store(acc_ref, self.out_gmem.at[shard], row, column)

    def store(self, acc_ref: Ref, out_gmem: Ref, row: Index, column: Index) -> None:
        """Round the warpgroup's accumulator and store it at ``(row, column)``, in pieces staged in shared memory."""
        tile_m, tile_n, num_slots = self.config.epi_tile_m, self.config.epi_tile_n, self.config.num_epilogue_slots
        pieces = list(itertools.product(range(0, self.config.tile_m, tile_m), range(0, self.config.tile_n, tile_n)))
        out_smem = self.out_smem.at[lax.axis_index("wg")]
        acc = acc_ref[...].astype(out_gmem.dtype)
        for i, (m, n) in enumerate(pieces):
            # Invariant: the piece last staged in this slot has left it. Slots take turns, so only newer copies may be
            # pending; but with an odd number of pieces a tile starts on the slot that the last tile ended on.
            slot, repeats = i % num_slots, i == 0 and len(pieces) % num_slots != 0
            plgpu.wait_smem_to_gmem(0 if repeats else num_slots - 1, wait_read_only=True)
            out_smem[slot] = acc[m : m + tile_m, n : n + tile_n]
            plgpu.commit_smem()  # The TMA unit must see what the threads have just written.
            plgpu.copy_smem_to_gmem(out_smem.at[slot], out_gmem.at[pl.ds(row + m, tile_m), pl.ds(column + n, tile_n)])

    # Roles.

    def compute(self) -> None:
        """What the compute warpgroups do."""
        plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
        pl.loop(0, self.num_local_tiles)(self.multiply_tile)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # Shared memory must outlive the copies that read it.

    def move(self) -> None:
        """What the memory warpgroup does."""
        plgpu.set_max_registers(MEMORY_REGISTERS, action="decrease")
        has_comm_ctas = self.communicates and self.protocol.num_comm_ctas > 0

        @plgpu.warp_map
        def _warp(warp):
            if has_comm_ctas:
                is_sender = (self.comm_index >= 0) & (warp < self.config.num_comm_warps)
                pl.when(is_sender)(lambda: self.send_pieces(warp))
            elif self.communicates:
                pl.when(warp == SEND_WARP)(self.send_tiles)
            # A communication CTA has no tiles to load.
            pl.when((warp == LOAD_WARP) & self.is_compute)(self.load_tiles)
            if self.communicates and self.config.wait_ahead:
                pl.when((warp == POLL_WARP) & self.is_compute)(self.poll)


def _launch(
    lhs: jax.Array,
    rhs: jax.Array,
    received: jax.Array | None,
    rank: Index,
    *,
    axis_name: str | None,
    config: KernelConfig,
    num_sms: int | None,
    interpret: Any = None,
) -> tuple[jax.Array, jax.Array | None]:
    _validate(lhs, rhs)
    (num_rows, depth), num_columns = lhs.shape, rhs.shape[1]
    # TMA counts in tiles of the swizzle, so that is how finely it tells inside from outside.
    lhs, rhs = _padded(lhs, 8, config.swizzle_elems), _padded(rhs, config.swizzle_elems, config.swizzle_elems)
    received = None if received is None else _padded(received, 8, config.swizzle_elems)
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
    # A dimension of its own for the shards, so that a tile that reaches over a shard's rows doesn't reach the next one.
    out_type = [jax.ShapeDtypeStruct((num_ranks, m_shard, _num_result_columns(config, n_shard)), lhs.dtype)]
    operands = [lhs, rhs]
    if communicates:
        operands = [lax.optimization_barrier(operand) for operand in operands]
        # An output rather than scratch memory: only operands and results have an address on the other ranks.
        out_type.append(jax.ShapeDtypeStruct((ring.num_scratch_slots(num_ranks), m_shard, k), lhs.dtype))
    elif received is not None:
        operands.append(received)

    def ring_all_gather_matmul_kernel(lhs_gmem, rhs_gmem, *refs, pipeline_smem, **smem):
        out_gmem, scratch_gmem = (refs[0], refs[-1]) if communicates else (refs[-1], refs[0])
        if isinstance(pipeline_smem, tuple):
            lhs_smem, rhs_smem = pipeline_smem
        else:
            (lhs_smem, rhs_smem), (smem["block_smem"],) = pipeline_smem
        cta = _Cta(
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
            lhs_smem=lhs_smem,
            rhs_smem=rhs_smem,
            **smem,
        )
        # One branch for the whole kernel: ptxas ignores setmaxnreg where the roles are mixed.
        lax.cond(lax.axis_index("wg") < NUM_COMPUTE_WARPGROUPS, cta.compute, cta.move)

    results = plgpu.kernel(
        ring_all_gather_matmul_kernel,
        out_type=out_type,
        scratch_types=_smem_types(config, protocol, communicates, lhs.dtype),
        grid=(num_sms,),
        grid_names=("sm",),
        num_threads=NUM_COMPUTE_WARPGROUPS + 1,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
            # No thread touches memory that another one of its warpgroup writes, but for the epilogue's, which says so.
            unsafe_no_auto_barriers=True,
        ),
        interpret=interpret,
    )(*operands)
    if communicates:
        results = [lax.optimization_barrier(result) for result in results]
    out = results[0][:, :num_rows, :num_columns].reshape(num_ranks * num_rows, num_columns)
    return out, results[1][:, :num_rows, :depth] if communicates else None
