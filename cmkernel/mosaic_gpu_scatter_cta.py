"""CTAs of the reduce-scatter form of ``mosaic_gpu``: what they do otherwise than those of the all-gather.

Loads, pipeline, multiply and epilogue are those of ``mosaic_gpu_cta``. All operands are local, so no load waits for
another rank. A CTA leaves each tile of another rank, rounded once, in a staging buffer in its GPU's memory, and goes
on. Meanwhile its sending warp copies the tile to its owner, through two small blocks of shared memory, and signals it
when it has landed. A buffer is given back when it has been sent; there are two, so the multiply waits only for a link
that is slower than itself.

To a tile of its own, the loading warp appends what the others sent for it: pieces of partial sums take the slots of the
pipeline as if they were further k steps. The compute warpgroups add them in the order of the slots, in float32.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from cmkernel import mosaic_gpu_cta, ring
from cmkernel.config import (
    NUM_COMPUTE_WARPGROUPS,
    NUM_SEND_SLOTS,
    OPERAND_BYTES,
    SEND_BLOCK_ROW_BYTES,
    SEND_BLOCK_ROWS,
    MatmulDimension,
    ScatterKernelConfig,
)
from cmkernel.integers import Int
from cmkernel.mosaic_gpu_cta import LOAD_WARP, SEND_WARP, Cta, Part, Ref, swizzled
from cmkernel.protocol import ScatterProtocol

# Staging buffers of a CTA.
NUM_STAGED = 2
# A tile is staged when its copies are complete, which takes about a microsecond. So a compute warpgroup asks a few k
# steps into the next tile.
STAGED_DELAY = 4


def widest_bytes(*dtypes: Any) -> int:
    """Size of the widest of some types in bytes."""
    return max(jnp.dtype(dtype).itemsize for dtype in dtypes)


def swizzle_bytes(config: ScatterKernelConfig, dtype: Any, widest: int) -> int:
    """Swizzle of staged pieces of ``dtype`` in bytes, where the widest type of the epilogue has ``widest`` bytes."""
    return plgpu.find_swizzle(config.piece_columns(widest) * jnp.dtype(dtype).itemsize * 8)


def scatter_smem_types(
    config: ScatterKernelConfig,
    *,
    communicates: bool,
    dtype: Any,
    out_dtype: Any,
    partial_dtype: Any,
    overlaid: bool = True,
) -> dict[str, Any]:
    """Shared memory of one CTA: that of the all-gather, blocks to send, and partial sums in the pipeline's slots.

    Without ``overlaid`` nothing shares memory, and a CTA needs more than an SM has: for the race detector.
    """
    num_slots, widest = config.max_concurrent_steps, widest_bytes(out_dtype, partial_dtype)
    piece = config.epi_tile_m, config.piece_columns(widest)

    def pieces(*shape: int, dtype: Any) -> Any:
        return swizzled(*shape, *piece, dtype=dtype, swizzle_bytes=swizzle_bytes(config, dtype, widest))

    operands = functools.partial(swizzled, dtype=dtype, swizzle_bytes=config.swizzle_elems * OPERAND_BYTES)
    lhs_smem = operands(num_slots, config.cta_tile_m, config.tile_k)
    rhs_smem = operands(num_slots, config.tile_k, config.cta_tile_n)
    views = [{"lhs_smem": lhs_smem, "rhs_smem": rhs_smem}]

    def staging(dtype: Any) -> Any:
        # Slots of the widest type, so that a warpgroup has the same memory in both views: the other one's copies may
        # still read theirs.
        num_pieces = config.num_epilogue_slots * widest // jnp.dtype(dtype).itemsize
        return pieces(NUM_COMPUTE_WARPGROUPS, num_pieces, dtype=dtype)

    types = {
        "out_smem": staging(out_dtype),
        "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=num_slots),  # lhs and rhs, or a piece for each warpgroup
        "released": plgpu.Barrier(num_arrivals=NUM_COMPUTE_WARPGROUPS, num_barriers=num_slots),
    }
    if communicates:
        # Behind lhs_smem, as rhs_smem: references in a dictionary are laid out in the order of their names.
        partial_bytes = jnp.dtype(partial_dtype).itemsize
        span_columns = config.span_columns(partial_bytes, widest)
        addends_smem = swizzled(
            num_slots * config.num_slot_spans(partial_bytes, widest),
            config.epi_tile_m,
            span_columns,
            dtype=partial_dtype,
            swizzle_bytes=plgpu.find_swizzle(span_columns * partial_bytes * 8),
        )
        if overlaid:
            views.append({"lhs_smem": lhs_smem, "rhs_addends_smem": addends_smem})
        else:
            types["rhs_addends_smem"] = addends_smem
        block = SEND_BLOCK_ROWS, SEND_BLOCK_ROW_BYTES // jnp.dtype(partial_dtype).itemsize
        types |= {
            "send_smem": plgpu.SMEM((NUM_SEND_SLOTS, *block), partial_dtype),
            "send_loaded": plgpu.Barrier(num_arrivals=1, num_barriers=NUM_SEND_SLOTS),
            "staged": plgpu.Barrier(num_arrivals=NUM_COMPUTE_WARPGROUPS, num_barriers=NUM_STAGED),
            "sent": plgpu.Barrier(num_arrivals=1, num_barriers=NUM_STAGED),
        }
        if jnp.dtype(partial_dtype) != jnp.dtype(out_dtype):
            partial_smem = staging(partial_dtype)
            if overlaid:  # A tile is either sent or stored.
                out_smem = types.pop("out_smem")
                types["staging_views"] = plgpu.RefUnion({"out_smem": out_smem}, {"partial_smem": partial_smem})
            else:
                types["partial_smem"] = partial_smem
    types["pipeline_views"] = plgpu.RefUnion(*views) if len(views) > 1 else views[0]
    return types


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScatterCta(Cta):
    """One CTA of a reduce-scatter. ``scratch_gmem`` ``[D - 1, m_shard, n]`` holds the received partial sums."""

    config: ScatterKernelConfig  # type: ignore[assignment]
    protocol: ScatterProtocol  # type: ignore[assignment]
    staging_gmem: Ref = None  # [CTAs * NUM_STAGED, cta_tile_m, cta_tile_n]
    partial_smem: Ref = None
    rhs_addends_smem: Ref = None
    send_smem: Ref = None
    send_loaded: Ref = None
    staged: Ref = None
    sent: Ref = None

    # The operations by which a rank touches the others.

    def scratch_of(self, rank: Int) -> Ref:
        """Received partial sums of another rank. ``rank`` must be one that the host can work out."""
        return plgpu.remote_ref(self.scratch_gmem, rank, pl.DeviceIdType.LOGICAL)

    def signal_rank(self, rank: Int, counter: Int) -> None:
        """Count an arrival at another rank."""
        pl.semaphore_signal(self.counters.at[counter], device_id=rank, device_id_type=pl.DeviceIdType.LOGICAL)

    def order_loads(self) -> None:
        """Let the TMA unit's loads follow what a wait has seen."""
        mosaic_gpu_cta.fence_async_proxy()

    def pace(self) -> None:
        """Wait until the link takes another block: on real links, the copy itself does."""

    @property
    def num_sent_tiles(self) -> Int:
        """Tiles of this CTA that it sends. They come before its own."""
        return self.protocol.num_sent_tiles(self.index)

    @property
    def slots(self) -> int:
        """Partial sums that a rank receives of each of its tiles."""
        return ring.num_scratch_slots(self.protocol.num_ranks)

    def first_load(self, i: Int) -> Int:
        """Number of the first load of tile ``i`` among all loads of this CTA."""
        return self.protocol.first_load(self.index, i) if self.communicates else super().first_load(i)

    @property
    def widest(self) -> int:
        """Bytes of the wider type of result and partial sums."""
        return widest_bytes(*(ref.dtype for ref in (self.out_gmem, self.scratch_gmem) if ref is not None))

    @property
    def columns(self) -> int:
        """Columns of a piece of the epilogue."""
        return self.config.piece_columns(self.widest)

    @property
    def partial_bytes(self) -> int:
        """Size of an element that travels."""
        return jnp.dtype(self.scratch_gmem.dtype).itemsize

    @property
    def span_columns(self) -> int:
        """Columns of a partial sum that a pipeline slot brings to a warpgroup."""
        return self.config.span_columns(self.partial_bytes, self.widest)

    def spans(self) -> list[tuple[int, int]]:
        """Row and column in a warpgroup's tile of each span of partial sums."""
        rows = range(0, self.config.tile_m, self.config.epi_tile_m)
        return list(itertools.product(rows, range(0, self.config.tile_n, self.span_columns)))

    def addend(self, load: Int, wg: Int) -> Ref:
        """Shared memory for a warpgroup's span of a partial sum, in the pipeline slot of a load."""
        num_slot_spans = self.config.num_slot_spans(self.partial_bytes, self.widest)
        return self.rhs_addends_smem.at[self.slot(load) * num_slot_spans + wg]

    # The loading warp.

    def load_tiles(self) -> None:
        """Load the operands of this CTA's tiles, and behind those of an own tile its partial sums."""
        num_k_steps = self.protocol.num_k_steps

        def load_tile(i: Int, part: Part) -> None:
            step, m_idx, n_idx = self.protocol.tile(self.index, i)
            self.dawdle(LOAD_WARP, step)
            block = ring.scattered_block(self.rank, step, self.protocol.num_ranks)
            first_load = self.first_load(i)
            pl.loop(0, num_k_steps)(
                lambda k_idx: self.load(self.lhs_gmem.at[block], m_idx, n_idx, part, k_idx, first_load + k_idx)
            )
            if self.communicates:
                is_own = step == self.protocol.num_ranks - 1
                pl.when(is_own)(lambda: self.load_addends(m_idx, n_idx, first_load + num_k_steps))

        self.walk(load_tile)
        self.drain(self.first_load(self.num_local_tiles))

    def load_addends(self, m_idx: Int, n_idx: Int, first_load: Int) -> None:
        """Load what the other ranks sent for a tile: span by span, and of each span slot by slot."""
        pl.loop(0, self.slots)(lambda slot: self.await_partial(slot, m_idx, n_idx))
        # The waits order ordinary loads. The TMA unit loads the spans, and needs a fence to follow.
        self.order_loads()
        config, on_m = self.config, self.config.wg_dimension is MatmulDimension.M
        for i, (m, n) in enumerate(self.spans()):

            @pl.loop(0, self.slots)
            def _slot(received, i=i, m=m, n=n):
                load = first_load + (i * self.slots + received)
                slot = self.await_slot(load)
                for wg in range(NUM_COMPUTE_WARPGROUPS):
                    row = m_idx * config.cta_tile_m + (wg * config.tile_m * on_m + m)
                    column = n_idx * config.cta_tile_n + (wg * config.tile_n * (not on_m) + n)
                    span = pl.ds(row, config.epi_tile_m), pl.ds(column, self.span_columns)
                    plgpu.copy_gmem_to_smem(
                        self.scratch_gmem.at[(received, *span)],
                        self.addend(load, wg),
                        self.loaded.at[slot],
                    )

    def await_partial(self, slot: Int, m_idx: Int, n_idx: Int) -> None:
        """Wait until a partial sum of a tile has arrived."""
        self.await_arrival(self.protocol.counter(slot, m_idx, n_idx))

    # The compute warpgroups.

    def finish(self, acc_ref: Ref, i: Int, step: Int, row: Int, column: Int) -> None:
        """Stage the accumulator for its owner or, if that is this rank, add the others' and store the sum."""
        if not self.communicates:
            block_gmem = self.out_gmem.at[ring.scattered_block(self.rank, step, self.protocol.num_ranks)]
            self.store(acc_ref[...], self.out_smem, block_gmem, row, column, tile_n=self.columns)
            return
        is_own = step == self.protocol.num_ranks - 1
        lax.cond(
            is_own, lambda: self.add_and_store(acc_ref, i, row, column), lambda: self.stage(acc_ref, i, row, column)
        )

    def stage(self, acc_ref: Ref, i: Int, row: Int, column: Int) -> None:
        """Leave a tile's accumulator in a staging buffer, rounded to the partial sums' type."""
        config, buffer = self.config, lax.rem(i, NUM_STAGED)
        # Invariant: what was staged here before has been sent.
        pl.when(i >= NUM_STAGED)(lambda: plgpu.barrier_wait(self.sent.at[buffer]))
        buffer_gmem = self.staging_gmem.at[self.index * NUM_STAGED + buffer]
        row, column = lax.rem(row, config.cta_tile_m), lax.rem(column, config.cta_tile_n)
        smem = self.out_smem if self.partial_smem is None else self.partial_smem
        self.store(acc_ref[...], smem, buffer_gmem, row, column, tile_n=self.columns)

    def report_staged(self, i: Int) -> None:
        """Tell the sending warp that tile ``i`` is staged, once it is."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=False)
        plgpu.barrier_arrive(self.staged.at[lax.rem(i, NUM_STAGED)])

    def beside_k_step(self, i: Int, k_idx: Int) -> None:
        """Report the tile before, if it is sent."""
        if self.communicates:
            delay = min(STAGED_DELAY, self.protocol.num_k_steps - 1)
            is_due = (k_idx == delay) & (i > 0) & (i <= self.num_sent_tiles)
            pl.when(is_due)(lambda: self.report_staged(i - 1))

    def add_and_store(self, acc_ref: Ref, i: Int, row: Int, column: Int) -> None:
        """Add the partial sums of an own tile to its accumulator, slot by slot, and store the sum."""
        first_load = self.first_load(i) + self.protocol.num_k_steps
        acc, num_span_pieces = acc_ref[...], self.span_columns // self.columns
        for number, (m, n) in enumerate(self.spans()):

            def add(received: Int, total: Any, number=number) -> Any:
                load = first_load + (number * self.slots + received)
                plgpu.barrier_wait(self.loaded.at[self.slot(load)])
                total = total + self.addend(load, lax.axis_index("wg"))[...].astype(jnp.float32)
                # The TMA unit must not write the slot before the threads have read it.
                plgpu.commit_smem()
                plgpu.barrier_arrive(self.released.at[self.slot(load)])
                return total

            total = acc[m : m + self.config.epi_tile_m, n : n + self.span_columns]
            total = lax.fori_loop(0, self.slots, add, total)
            place = row + m, column + n
            first_piece = number * num_span_pieces
            self.store(total, self.out_smem, self.out_gmem, *place, tile_n=self.columns, first_piece=first_piece)

    # The sending warp.

    def send_tiles(self) -> None:
        """Send the staged tiles to their owners, and signal each one when it has landed."""

        @pl.loop(0, self.num_sent_tiles)
        def _tile(i):
            step, m_idx, n_idx = self.protocol.tile(self.index, i)
            buffer = lax.rem(i, NUM_STAGED)
            self.dawdle(SEND_WARP, step)
            plgpu.barrier_wait(self.staged.at[buffer])
            self.order_loads()
            self.send_tile_to_owner(self.staging_gmem.at[self.index * NUM_STAGED + buffer], step, m_idx, n_idx)
            # Signal only after the copies have been written there: the owner reads as soon as it sees the count.
            plgpu.wait_smem_to_gmem(0, wait_read_only=False)
            plgpu.barrier_arrive(self.sent.at[buffer])
            owner = ring.scattered_block(self.rank, step, self.protocol.num_ranks)
            self.signal_rank(owner, self.protocol.counter(step, m_idx, n_idx))

    def send_tile_to_owner(self, buffer_gmem: Ref, step: Int, m_idx: Int, n_idx: Int) -> None:
        """Copy a staged tile block by block. Copies skip what lies outside the owner's rows."""
        config = self.config
        block_columns = SEND_BLOCK_ROW_BYTES // jnp.dtype(self.scratch_gmem.dtype).itemsize
        num_block_rows = config.cta_tile_m // SEND_BLOCK_ROWS
        num_blocks = num_block_rows * (config.cta_tile_n // block_columns)

        def window(block: Int, row: Int, column: Int) -> tuple[Any, Any]:
            row += lax.rem(block, num_block_rows) * SEND_BLOCK_ROWS
            column += lax.div(block, num_block_rows) * block_columns
            return pl.ds(row, SEND_BLOCK_ROWS), pl.ds(column, block_columns)

        def load(block: Int) -> None:
            slot = lax.rem(block, NUM_SEND_SLOTS)
            plgpu.copy_gmem_to_smem(
                buffer_gmem.at[window(block, 0, 0)], self.send_smem.at[slot], self.send_loaded.at[slot]
            )

        pl.loop(0, min(NUM_SEND_SLOTS, num_blocks))(load)

        @pl.loop(0, num_blocks)
        def _block(block):
            slot = lax.rem(block, NUM_SEND_SLOTS)
            plgpu.barrier_wait(self.send_loaded.at[slot])
            self.pace()
            target = window(block, m_idx * config.cta_tile_m, n_idx * config.cta_tile_n)
            for static_step in range(self.slots):
                # One copy for each step: the host works out the address on the other rank, and knows no loop variable.
                owner = ring.scattered_block(self.rank, static_step, self.protocol.num_ranks)

                @pl.when(step == static_step)
                def _send(owner=owner, static_step=static_step):
                    plgpu.copy_smem_to_gmem(self.send_smem.at[slot], self.scratch_of(owner).at[(static_step, *target)])

            @pl.when(block + NUM_SEND_SLOTS < num_blocks)
            def _refill():
                # Invariant: the block's slot is no longer read.
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                load(block + NUM_SEND_SLOTS)

    # Roles.

    def compute(self) -> None:
        """Role of the compute warpgroups."""
        plgpu.set_max_registers(mosaic_gpu_cta.COMPUTE_REGISTERS, action="increase")
        self.walk(self.multiply_tile)
        if self.communicates:
            num_sent = self.num_sent_tiles
            pl.when((num_sent > 0) & (num_sent == self.num_local_tiles))(lambda: self.report_staged(num_sent - 1))
            # A waiter must see every phase of a barrier.
            pl.loop(jnp.maximum(num_sent - NUM_STAGED, 0), num_sent)(
                lambda i: plgpu.barrier_wait(self.sent.at[lax.rem(i, NUM_STAGED)])
            )
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # Shared memory must outlive the copies that read it.

    def move(self) -> None:
        """Role of the memory warpgroup."""
        plgpu.set_max_registers(mosaic_gpu_cta.MEMORY_REGISTERS, action="decrease")

        @plgpu.warp_map
        def _warp(warp):
            if self.communicates:
                pl.when(warp == SEND_WARP)(self.send_tiles)
            pl.when(warp == LOAD_WARP)(self.load_tiles)
