"""CTAs of ``mosaic_gpu``: each kind of warp is one walk over tiles and pieces.

Warps of a compute CTA: two warpgroups multiply and store results. The third warpgroup has one warp that loads, one that
sends, and one that polls arrival counters ahead of the loads (``wait_ahead``). In a communication CTA, two warps of the
third warpgroup forward pieces of the shard, block by block, through the shared memory of the idle pipeline. While one
of them waits for its copies to land before it signals, the other keeps the link busy. The two compute warpgroups idle.

``cmkernel.protocol`` decides which tiles and pieces, in which order, and who waits for which counter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils as mosaic_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from cmkernel import ring, stamps
from cmkernel.config import (
    COMM_BLOCK_COLUMNS,
    COMM_BLOCK_ROWS,
    NUM_COMM_WARPS,
    NUM_COMPUTE_WARPGROUPS,
    OPERAND_BYTES,
    KernelConfig,
    MatmulDimension,
)
from cmkernel.integers import Int
from cmkernel.protocol import Protocol

# The memory warps need few registers, accumulators many: 128 threads of 40 and 256 threads of 232 fit an SM's 65,536.
COMPUTE_REGISTERS, MEMORY_REGISTERS = 232, 40
# Warps of the memory warpgroup.
LOAD_WARP, SEND_WARP, POLL_WARP = 0, 1, 2
# Arrivals that the polling warp may run ahead of the loading warp.
POLL_AHEAD = 8
# A signal must wait until its copies are complete, which takes a microsecond or two. So a compute CTA signals a chunk
# only after it has sent a few tiles of the next one.
SIGNAL_DELAY = 4

Ref = Any  # A Pallas reference; the end of its name says which memory.

Delay = Callable[[Int, Int, int, Int], Int]
"""``(rank, cta, warp, step) -> microseconds`` (approximate) that a warp sleeps before a tile or a piece.

Disturbs the ring on purpose. ``warp`` is ``LOAD_WARP`` or ``SEND_WARP``.
"""


def result_swizzle_bytes(config: KernelConfig) -> int:
    """Swizzle of the staged result in bytes: one row of a staged piece, for any result dtype."""
    return plgpu.find_swizzle(config.epi_tile_n * OPERAND_BYTES * 8)


def epilogue_columns(config: KernelConfig, out_dtype: Any) -> int:
    """Columns that the epilogue stages at a time: as many bytes as ``epi_tile_n`` columns of the operands' dtype."""
    return config.epi_tile_n * OPERAND_BYTES // jnp.dtype(out_dtype).itemsize


def swizzled(*shape: int, dtype: Any, swizzle_bytes: int) -> Any:
    """Shared memory whose last two dimensions are tiled and swizzled."""
    tiling = plgpu.TilingTransform((8, swizzle_bytes // jnp.dtype(dtype).itemsize))
    return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(swizzle_bytes)))


def smem_types(
    config: KernelConfig, protocol: Protocol, *, communicates: bool, dtype: Any, out_dtype: Any
) -> dict[str, Any]:
    """Shared memory of one CTA: the pipeline's slots and barriers, and the staging buffers of results."""
    num_slots = config.max_concurrent_steps
    epi_tile = config.epi_tile_m, epilogue_columns(config, out_dtype)
    # wgmma needs the same swizzle for both operands.
    operands = functools.partial(swizzled, dtype=dtype, swizzle_bytes=config.swizzle_elems * OPERAND_BYTES)
    results = functools.partial(swizzled, dtype=out_dtype, swizzle_bytes=result_swizzle_bytes(config))
    lhs_smem = operands(num_slots, config.cta_tile_m, config.tile_k)
    # References in a dictionary are laid out in the order of their names.
    views = [{"lhs_smem": lhs_smem, "rhs_smem": operands(num_slots, config.tile_k, config.cta_tile_n)}]
    if protocol.num_split_tiles:
        # A copy needs contiguous memory: half of an rhs tile goes to the first half of its slot, which is viewed as
        # two.
        halves = operands(2 * num_slots, config.tile_k, config.cta_tile_n // 2)
        views.append({"lhs_smem": lhs_smem, "rhs_halves_smem": halves})
    sends_blocks = communicates and protocol.num_comm_ctas > 0
    num_block_slots = NUM_COMM_WARPS * config.num_block_slots
    if sends_blocks:
        # No CTA needs both: a communication CTA keeps its blocks where the others keep operands.
        views.append({"block_smem": plgpu.SMEM((num_block_slots, COMM_BLOCK_ROWS, COMM_BLOCK_COLUMNS), dtype)})
    types = {
        "pipeline_views": plgpu.RefUnion(*views) if len(views) > 1 else views[0],
        "out_smem": results(NUM_COMPUTE_WARPGROUPS, config.num_epilogue_slots, *epi_tile),
        "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=num_slots),  # the copies of lhs and of rhs
        # Arrivals from the compute warpgroups, and from the sending warp if there is one.
        "released": plgpu.Barrier(
            num_arrivals=NUM_COMPUTE_WARPGROUPS + (communicates and protocol.sends_in_tile), num_barriers=num_slots
        ),
    }
    if sends_blocks:
        types["block_loaded"] = plgpu.Barrier(num_arrivals=1, num_barriers=num_block_slots)
    if communicates and config.wait_ahead:
        types["arrival_seen"] = plgpu.Barrier(num_arrivals=1, num_barriers=POLL_AHEAD)
        types["arrival_taken"] = plgpu.Barrier(num_arrivals=1, num_barriers=POLL_AHEAD)
    return types


def _tile(index: Int, size: int) -> Any:
    return pl.ds(index * size, size)


def await_count(counter: Ref) -> None:
    """Spin until an arrival counter is above zero. One warp calls it."""

    def emit(_context: Any, counter: Any) -> None:
        # Acquiring loads are cheaper than relaxed loads with a fence behind them, which `semaphore_wait` emits.
        mosaic_utils.inline_ptx(
            "{ .reg .b32 count; .reg .pred absent;"
            " again: ld.acquire.sys.global.b32 count, [$0];"
            " setp.eq.u32 absent, count, 0; @absent bra again; }",
            mosaic_utils.memref_ptr(counter),
            has_side_effects=True,
        )
        mosaic_utils.warp_barrier()

    plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))(emit)(counter)


def fence_async_proxy() -> None:
    """Order ordinary accesses to global memory before those of the TMA unit that follow."""

    def emit(_context: Any) -> None:
        mosaic_utils.inline_ptx("fence.proxy.async.global;", has_side_effects=True)

    plgpu.inline_mgpu()(emit)()


def _store_clock(stamp: Ref) -> None:
    """Store the lower half of the GPU's clock, in nanoseconds. Every warp that gets here stores it."""

    def emit(_context: Any, stamp: Any) -> None:
        mosaic_utils.inline_ptx(
            "{ .reg .b32 now; mov.u32 now, %globaltimer_lo; st.global.b32 [$0], now; }",
            mosaic_utils.memref_ptr(stamp),
            has_side_effects=True,
        )

    plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))(emit)(stamp)


def _sleep_microsecond() -> None:
    def emit(_context: Any) -> None:
        mosaic_utils.inline_ptx("nanosleep.u32 1000;", has_side_effects=True)

    plgpu.inline_mgpu()(emit)()


class Part(NamedTuple):
    """Part of a tile's columns that a CTA computes."""

    num_parts: int
    index: Int


WHOLE = Part(1, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cta:
    """One CTA and the roles of its warps. Counters and their barriers exist only if ranks communicate."""

    config: KernelConfig
    protocol: Protocol
    communicates: bool
    rank: Int
    index: Int  # of this CTA
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
    rhs_halves_smem: Ref = None
    block_smem: Ref = None
    block_loaded: Ref = None
    arrival_seen: Ref = None
    arrival_taken: Ref = None
    delay: Delay | None = None
    stamps_gmem: Ref = None

    @property
    def is_compute(self) -> Any:
        """True for a compute CTA, false for a communication CTA."""
        return self.index < self.protocol.num_compute_ctas

    @property
    def comm_index(self) -> Int:
        """Int of a communication CTA, from 0; negative for compute CTAs."""
        return self.index - self.protocol.num_compute_ctas

    @property
    def num_local_tiles(self) -> Int:
        """Output tiles of this CTA, where a half counts as one; 0 for a communication CTA."""
        tiles = self.protocol.num_local_tiles(self.index, self.protocol.num_ranks)
        return jnp.where(self.is_compute, tiles, 0) if self.protocol.num_comm_ctas else tiles

    def walk(self, visit: Callable[[Int, Part], None]) -> None:
        """Call ``visit`` for each output tile of this CTA, in the order that all its warps share."""
        if not self.protocol.num_split_tiles:
            pl.loop(0, self.num_local_tiles)(lambda i: visit(i, WHOLE))
            return
        # All CTAs have the same number of whole tiles; some have half a tile more.
        num_whole_tiles = self.protocol.num_whole_tiles // self.protocol.num_compute_ctas
        pl.loop(0, jnp.minimum(self.num_local_tiles, num_whole_tiles))(lambda i: visit(i, WHOLE))
        half = Part(2, lax.rem(self.index, 2))
        pl.when(self.num_local_tiles > num_whole_tiles)(lambda: visit(num_whole_tiles, half))

    def slot(self, load: Int) -> Int:
        """Pipeline slot of a load."""
        return lax.rem(load, self.config.max_concurrent_steps)

    @property
    def target(self) -> Int:
        """Rank that this one sends to."""
        return ring.send_rank(self.rank, self.protocol.num_ranks)

    # The three operations by which a rank touches its neighbours.

    def next_scratch(self) -> Ref:
        """Scratch memory of the rank that this one sends to."""
        return plgpu.remote_ref(self.scratch_gmem, self.target, pl.DeviceIdType.LOGICAL)

    def signal_next(self, counter: Int) -> None:
        """Count an arrival at the rank that this one sends to."""
        pl.semaphore_signal(self.counters.at[counter], device_id=self.target, device_id_type=pl.DeviceIdType.LOGICAL)

    def await_arrival(self, counter: Int) -> None:
        """Wait until one of this rank's counters has been signalled."""
        await_count(self.counters.at[counter])

    def dawdle(self, warp: int, step: Int) -> None:
        """Sleep if ``delay`` says so."""
        if self.delay is not None:
            pl.loop(0, self.delay(self.rank, self.index, warp, step))(lambda _: _sleep_microsecond())

    def stamp(self, row: Int, column: Int) -> None:
        """Store the time at a place of ``cmkernel.stamps``, if the call is stamped."""
        if self.stamps_gmem is not None:
            _store_clock(self.stamps_gmem.at[self.index, row, column])

    def signal(
        self, step: Int, m_idx: Int, chunk: Int, num_pending: int, stamp: Callable[[], None] = lambda: None
    ) -> None:
        """Tell the next rank that it has a piece. This warp's last ``num_pending`` copies belong to later pieces."""
        # Signal only after the copies have been written there: the peer reads as soon as it sees the count.
        plgpu.wait_smem_to_gmem(num_pending, wait_read_only=False)
        stamp()
        self.signal_next(self.protocol.counter(ring.write_slot(step), m_idx, chunk))

    def await_piece(self, step: Int, m_idx: Int, chunk: Int) -> None:
        """Wait until a piece of the shard of a device step has arrived."""
        self.await_arrival(self.protocol.counter(ring.read_slot(step), m_idx, chunk))

    # The loading warp of a compute CTA.

    def load_tiles(self) -> None:
        """Load the operands of this CTA's output tiles, k step by k step, as pieces arrive and slots become free."""
        num_k_steps = self.protocol.num_k_steps

        # Invariant: all warps walk the same tiles in the same order and number the loads through all of them. A load's
        # number alone then gives its slot, and the phases of every slot pass in order.
        def load_tile(i: Int, part: Part) -> None:
            step, m_idx, n_idx = self.protocol.tile(self.index, i)
            self.dawdle(LOAD_WARP, step)

            def load_k_steps(shard_gmem: Ref, first: Int, end: Int) -> None:
                pl.loop(first, end)(
                    lambda k_idx: self.load(shard_gmem, m_idx, n_idx, part, k_idx, i * num_k_steps + k_idx)
                )

            pl.when(step == 0)(lambda: load_k_steps(self.lhs_gmem, 0, num_k_steps))
            if self.protocol.num_ranks > 1:

                @pl.when(step > 0)
                def _received_shard():
                    shard_gmem = self.scratch_gmem.at[ring.read_slot(step)]

                    @pl.loop(0, self.protocol.num_chunks)
                    def _chunk(chunk):
                        if self.communicates:
                            self.stamp(i, stamps.asked(chunk))
                            self.await_next_piece(i, step, m_idx, chunk)
                            self.stamp(i, stamps.seen(chunk))
                        # Invariant: the piece is complete and is not written again in this call.
                        load_k_steps(shard_gmem, chunk * self.protocol.chunk_k_steps, self.protocol.chunk_end(chunk))

        self.walk(load_tile)
        self.drain(self.num_local_tiles * num_k_steps)

    def drain(self, num_loads: Int) -> None:
        """Wait until the last loads have been released: a waiter must see every phase of a barrier."""
        pl.loop(jnp.maximum(num_loads - self.config.max_concurrent_steps, 0), num_loads)(
            lambda load: plgpu.barrier_wait(self.released.at[self.slot(load)])
        )

    def load(self, shard_gmem: Ref, m_idx: Int, n_idx: Int, part: Part, k_idx: Int, load: Int) -> None:
        """Load the operands of one k step, as soon as their slot is free."""
        slot, config = self.await_slot(load), self.config
        lhs_tile = _tile(m_idx, config.cta_tile_m), _tile(k_idx, config.tile_k)
        columns = config.cta_tile_n // part.num_parts
        rhs_tile = _tile(k_idx, config.tile_k), _tile(n_idx * part.num_parts + part.index, columns)
        plgpu.copy_gmem_to_smem(self.rhs_gmem.at[rhs_tile], self.rhs_slot(slot, part), self.loaded.at[slot])
        plgpu.copy_gmem_to_smem(shard_gmem.at[lhs_tile], self.lhs_smem.at[slot], self.loaded.at[slot])

    def await_slot(self, load: Int) -> Int:
        """Wait until the slot of a load is free, and return it."""
        slot = self.slot(load)
        # Invariant: a slot is overwritten only after every reader of its last load has released it.
        pl.when(load >= self.config.max_concurrent_steps)(lambda: plgpu.barrier_wait(self.released.at[slot]))
        return slot

    def rhs_slot(self, slot: Int, part: Part) -> Ref:
        """Shared memory for the rhs of a tile, or of a part of it, in a pipeline slot."""
        return self.rhs_smem.at[slot] if part is WHOLE else self.rhs_halves_smem.at[2 * slot]

    def await_next_piece(self, i: Int, step: Int, m_idx: Int, chunk: Int) -> None:
        """Wait for the piece that tile ``i`` loads next, or for the polling warp to report it."""
        if self.config.wait_ahead:
            slot = lax.rem(self.arrival(i, chunk), POLL_AHEAD)
            plgpu.barrier_wait(self.arrival_seen.at[slot])
            plgpu.barrier_arrive(self.arrival_taken.at[slot])
        else:
            self.await_piece(step, m_idx, chunk)
        # The wait orders ordinary loads. The TMA unit loads the tiles, and needs a fence to follow.
        fence_async_proxy()

    def arrival(self, i: Int, chunk: Int) -> Int:
        """Number of an awaited piece among all pieces that this CTA waits for."""
        return (i - self.protocol.num_local_tiles(self.index, 1)) * self.protocol.num_chunks + chunk

    def poll(self) -> None:
        """Role of the polling warp: see arrivals before the loading warp asks for them."""

        @pl.loop(jnp.minimum(self.protocol.num_local_tiles(self.index, 1), self.num_local_tiles), self.num_local_tiles)
        def _local_tile(i):
            step, m_idx, _ = self.protocol.tile(self.index, i)

            @pl.loop(0, self.protocol.num_chunks)
            def _chunk(chunk):
                arrival = self.arrival(i, chunk)
                slot = lax.rem(arrival, POLL_AHEAD)
                # Invariant: a barrier is arrived at again only after its last phase has been waited for.
                pl.when(arrival >= POLL_AHEAD)(lambda: plgpu.barrier_wait(self.arrival_taken.at[slot]))
                self.await_piece(step, m_idx, chunk)
                plgpu.barrier_arrive(self.arrival_seen.at[slot])

    # The sending warp of a compute CTA.

    def send_tiles(self) -> None:
        """Send the loaded lhs tiles of some output tiles on, and let the others pass."""
        num_k_steps = self.protocol.num_k_steps

        def send_or_pass(i: Int, part: Part) -> None:
            step, m_idx, n_idx = self.protocol.tile(self.index, i)
            sends = self.protocol.sends_tile(step, m_idx, n_idx) & (part.index == 0)
            first_load = i * num_k_steps
            lax.cond(
                sends,
                lambda: self.send_tile(i, step, m_idx, first_load),
                lambda: self.pass_k_steps(first_load, first_load + num_k_steps),
            )

        self.walk(send_or_pass)

    def pass_k_steps(self, first_load: Int, end: Int) -> None:
        """Let the operands of k steps that aren't sent pass by."""

        # A waiter must see every phase of a barrier.
        @pl.loop(first_load, end)
        def _k_step(load):
            plgpu.barrier_wait(self.loaded.at[self.slot(load)])
            plgpu.barrier_arrive(self.released.at[self.slot(load)])

    def send_tile(self, i: Int, step: Int, m_idx: Int, first_load: Int) -> None:
        """Send the lhs tiles of output tile ``i`` while they are multiplied, from ``first_in_tile_chunk`` on."""
        protocol, config = self.protocol, self.config
        self.dawdle(SEND_WARP, step)
        shard_gmem = self.next_scratch().at[ring.write_slot(step)]
        last_chunk = protocol.num_chunks - 1
        shortest_chunk = protocol.num_k_steps - last_chunk * protocol.chunk_k_steps
        delay = min(SIGNAL_DELAY, shortest_chunk - 1)
        first_chunk = protocol.first_in_tile_chunk
        first_sent_k_idx = first_chunk * protocol.chunk_k_steps
        self.pass_k_steps(first_load, first_load + first_sent_k_idx)

        def signal(chunk: Int, num_pending: int) -> None:
            self.signal(step, m_idx, chunk, num_pending, lambda: self.stamp(i, stamps.sent(chunk)))

        @pl.loop(first_chunk, protocol.num_chunks)
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
                pl.when(k_idx > first_sent_k_idx)(lambda: plgpu.barrier_arrive(self.released.at[self.slot(load - 1)]))
                pl.when((chunk > first_chunk) & (k_idx - first_k_idx == delay))(
                    lambda: signal(chunk - 1, num_pending=delay + 1)
                )

        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        plgpu.barrier_arrive(self.released.at[self.slot(first_load + (protocol.num_k_steps - 1))])
        # Signal now: the next tile may wait for the other ranks, and they for this signal.
        signal(last_chunk, num_pending=0)

    # The sending warps of a communication CTA. Each loads blocks of its pieces into slots of its own and sends them on.

    @property
    def num_block_rows(self) -> int:
        """Blocks along M in a piece."""
        return self.config.cta_tile_m // COMM_BLOCK_ROWS

    @property
    def num_blocks(self) -> int:
        """Blocks in a piece."""
        return self.num_block_rows * (self.protocol.chunk_k_steps * self.config.tile_k // COMM_BLOCK_COLUMNS)

    def block(self, m_idx: Int, chunk: Int, block: Int) -> tuple[Any, Any]:
        """Rows and columns of a block. Copies skip what lies outside the shard."""
        row = m_idx * self.config.cta_tile_m + lax.rem(block, self.num_block_rows) * COMM_BLOCK_ROWS
        first_column = chunk * (self.protocol.chunk_k_steps * self.config.tile_k)
        column = first_column + lax.div(block, self.num_block_rows) * COMM_BLOCK_COLUMNS
        return pl.ds(row, COMM_BLOCK_ROWS), pl.ds(column, COMM_BLOCK_COLUMNS)

    def send_pieces(self, warp: Int) -> None:
        """Send this warp's pieces of all steps, and signal each one when it has landed."""
        sender = self.comm_index * NUM_COMM_WARPS + warp

        @pl.loop(0, self.protocol.num_local_jobs(sender))
        def _job(i):
            step, m_idx, chunk = self.protocol.job(sender, i)
            row = stamps.job_row(i, warp)
            self.dawdle(SEND_WARP, step)
            if self.protocol.num_ranks > 2:

                @pl.when(step > 0)
                def _forward():
                    self.await_piece(step, m_idx, chunk)
                    fence_async_proxy()

            self.stamp(row, stamps.BEGUN)
            self.send_piece(warp, step, m_idx, chunk)
            # Invariant: all copies have landed, so all slots are free for the next piece.
            self.signal(step, m_idx, chunk, num_pending=0, stamp=lambda: self.stamp(row, stamps.ENDED))

    def send_piece(self, warp: Int, step: Int, m_idx: Int, chunk: Int) -> None:
        """Load one piece block by block and send it on."""
        num_slots = self.config.num_block_slots
        target_gmem = self.next_scratch().at[ring.write_slot(step)]

        def slot(block: Int) -> Int:
            return warp * num_slots + lax.rem(block, num_slots)

        def load_from(shard_gmem: Ref, block: Int) -> None:
            block_gmem = shard_gmem.at[self.block(m_idx, chunk, block)]
            plgpu.copy_gmem_to_smem(block_gmem, self.block_smem.at[slot(block)], self.block_loaded.at[slot(block)])

        def load(block: Int) -> None:
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

    def multiply_tile(self, i: Int, part: Part) -> None:
        """Compute one output tile, or a part of its columns, and store it."""
        config, wg_idx, num_k_steps = self.config, lax.axis_index("wg"), self.protocol.num_k_steps
        tile_n, on_m = config.tile_n // part.num_parts, config.wg_dimension is MatmulDimension.M
        wg_m, wg_n = (wg_idx * config.tile_m, 0) if on_m else (0, wg_idx * tile_n)
        step, m_idx, n_idx = self.protocol.tile(self.index, i)
        first_load = self.first_load(i)
        self.stamp(i, stamps.BEGUN)

        @functools.partial(pl.run_scoped, acc_ref=plgpu.ACC((config.tile_m, tile_n), jnp.float32))
        def _accumulate(acc_ref):
            @pl.loop(0, num_k_steps)
            def _k_step(k_idx):
                load = first_load + k_idx
                slot = self.slot(load)
                plgpu.barrier_wait(self.loaded.at[slot])
                lhs_smem = self.lhs_smem.at[slot, pl.ds(wg_m, config.tile_m)]
                plgpu.wgmma(acc_ref, lhs_smem, self.rhs_slot(slot, part).at[:, pl.ds(wg_n, tile_n)])
                plgpu.wgmma_wait(1)
                # Invariant: wgmma no longer reads the slot of the previous k step.
                pl.when(k_idx > 0)(lambda: plgpu.barrier_arrive(self.released.at[self.slot(load - 1)]))
                self.beside_k_step(i, k_idx)

            plgpu.wgmma_wait(0)
            # Release before the epilogue: the slot is free for the next tile.
            plgpu.barrier_arrive(self.released.at[self.slot(first_load + (num_k_steps - 1))])
            first_column = (n_idx * part.num_parts + part.index) * (config.cta_tile_n // part.num_parts)
            self.finish(acc_ref, i, step, m_idx * config.cta_tile_m + wg_m, first_column + wg_n)

        self.stamp(i, stamps.ENDED)

    # Reduce-scatter overrides the next three methods.

    def first_load(self, i: Int) -> Int:
        """Number of the first load of tile ``i`` among all loads of this CTA."""
        return i * self.protocol.num_k_steps

    def beside_k_step(self, i: Int, k_idx: Int) -> None:
        """Do what else has to be done while a k step of tile ``i`` is multiplied."""

    def finish(self, acc_ref: Ref, i: Int, step: Int, row: Int, column: Int) -> None:
        """Store the warpgroup's accumulator of tile ``i``, which begins at ``(row, column)`` of its shard."""
        shard = ring.source_shard(self.rank, step, self.protocol.num_ranks)
        tile_n = epilogue_columns(self.config, self.out_gmem.dtype)
        self.store(acc_ref[...], self.out_smem, self.out_gmem.at[shard], row, column, tile_n=tile_n)

    def store(
        self,
        acc: Any,
        staged_smem: Ref,
        out_gmem: Ref,
        row: Int,
        column: Int,
        *,
        tile_n: int,
        first_piece: int = 0,
    ) -> None:
        """Round the warpgroup's accumulator and store it at ``(row, column)``, in pieces staged in shared memory.

        A piece has ``tile_n`` columns. ``acc`` may be a part of the accumulator that begins with ``first_piece``.
        """
        tile_m = self.config.epi_tile_m
        pieces = list(itertools.product(range(0, acc.shape[0], tile_m), range(0, acc.shape[1], tile_n)))
        num_whole_pieces = (self.config.tile_m // tile_m) * (self.config.tile_n // tile_n)
        num_slots, out_smem = self.config.num_epilogue_slots, staged_smem.at[lax.axis_index("wg")]
        acc = acc.astype(out_gmem.dtype)
        for i, (m, n) in enumerate(pieces, first_piece):
            # Invariant: the piece last staged in this slot has left it. Slots take turns, so only newer copies may be
            # pending. After a whole tile of an odd number of pieces, though, the next tile starts on the slot that it
            # ended on.
            slot, repeats = i % num_slots, i == 0 and num_whole_pieces % num_slots != 0
            plgpu.wait_smem_to_gmem(0 if repeats else num_slots - 1, wait_read_only=True)
            out_smem[slot] = acc[m : m + tile_m, n : n + tile_n]
            plgpu.commit_smem()  # The TMA unit must see what the threads have just written.
            plgpu.copy_smem_to_gmem(out_smem.at[slot], out_gmem.at[pl.ds(row + m, tile_m), pl.ds(column + n, tile_n)])

    # Roles.

    def compute(self) -> None:
        """Role of the compute warpgroups."""
        plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
        self.walk(self.multiply_tile)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # Shared memory must outlive the copies that read it.

    def move(self) -> None:
        """Role of the memory warpgroup."""
        plgpu.set_max_registers(MEMORY_REGISTERS, action="decrease")
        has_comm_ctas = self.communicates and self.protocol.num_comm_ctas > 0

        @plgpu.warp_map
        def _warp(warp):
            if has_comm_ctas:
                is_sender = (self.comm_index >= 0) & (warp < NUM_COMM_WARPS)
                pl.when(is_sender)(lambda: self.send_pieces(warp))
            if self.communicates and self.protocol.sends_in_tile:
                pl.when((warp == SEND_WARP) & self.is_compute)(self.send_tiles)
            # A communication CTA has no tiles to load.
            pl.when((warp == LOAD_WARP) & self.is_compute)(self.load_tiles)
            if self.communicates and self.config.wait_ahead:
                pl.when((warp == POLL_WARP) & self.is_compute)(self.poll)
