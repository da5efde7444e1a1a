"""Division of work in ``mosaic_gpu``, in integers only: who computes, sends, signals and waits for what.

The kernel and the tests' model checker call the same functions, with traced and with plain integers: the checker
explores exactly what the GPUs do. Integers are never negative.

Every rank walks the output tiles of all device steps in one sequence, dealt out to its compute CTAs. A shard travels in
pieces of one M tile and one chunk of k. Each piece that a rank receives has its own arrival counter, which is zero when
the call starts and is signalled once. A piece is complete when its counter is 1. Nothing is ever reset.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cmkernel import ring
from cmkernel.config import COMM_BLOCK_COLUMNS, NUM_COMM_WARPS, KernelConfig
from cmkernel.integers import Int, ceil_div, div, minimum, rem, select


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """Division of work of one call, the same on every rank."""

    num_ranks: int
    num_m_tiles: int
    """M tiles in a shard."""
    num_n_tiles: int
    num_k_steps: int
    """Pipeline steps in one output tile."""
    chunk_k_steps: int
    """Pipeline steps in one chunk; the last chunk may have fewer."""
    group_width: int
    """M tiles in a raster group."""
    num_compute_ctas: int
    num_comm_ctas: int
    num_senders: int
    """Sending warps in all communication CTAs."""
    num_split_tiles: int
    """Tiles of the last wave that two CTAs compute in halves. The whole tiles before them fill all waves."""
    first_in_tile_chunk: int
    """First chunk that compute CTAs send, from lhs tiles they load. Communication CTAs send the chunks before it."""

    @property
    def num_tiles(self) -> int:
        """Output tiles in one device step."""
        return self.num_m_tiles * self.num_n_tiles

    @property
    def num_chunks(self) -> int:
        """Chunks in an M tile."""
        return ceil_div(self.num_k_steps, self.chunk_k_steps)

    @property
    def num_pieces(self) -> int:
        """Pieces in a shard."""
        return self.num_m_tiles * self.num_chunks

    @property
    def num_counters(self) -> int:
        """Arrival counters on a rank."""
        return ring.num_scratch_slots(self.num_ranks) * self.num_pieces

    @property
    def num_whole_tiles(self) -> int:
        """Output tiles of all device steps that one CTA computes alone."""
        return self.num_ranks * self.num_tiles - self.num_split_tiles

    @property
    def sends_in_tile(self) -> bool:
        """True if compute CTAs send lhs tiles that they load."""
        return self.num_ranks > 1 and self.first_in_tile_chunk < self.num_chunks

    def counter(self, slot: Int, m_idx: Int, chunk: Int) -> Int:
        """Arrival counter of a piece in a scratch slot: ``write_slot`` for the sender, ``read_slot`` for the waiter."""
        return (slot * self.num_m_tiles + m_idx) * self.num_chunks + chunk

    def chunk_end(self, chunk: Int) -> Int:
        """One past the last k step of a chunk, which starts at ``chunk * chunk_k_steps``."""
        return minimum((chunk + 1) * self.chunk_k_steps, self.num_k_steps)

    # Compute CTAs: 0 .. num_compute_ctas - 1.

    def num_local_tiles(self, cta: Int, num_steps: int) -> Int:
        """Tiles of a compute CTA in the first ``num_steps`` device steps. A CTA's tiles are in order of steps."""
        num_positions = num_steps * self.num_tiles
        num_whole = min(num_positions, self.num_whole_tiles)
        num_local = div(num_whole + (self.num_compute_ctas - 1) - cta, self.num_compute_ctas)
        if not self.num_split_tiles:
            return num_local
        has_half = (cta < 2 * self.num_split_tiles) & (self.num_whole_tiles + div(cta, 2) < num_positions)
        return num_local + select(has_half, cta * 0 + 1, cta * 0)

    def tile(self, cta: Int, index: Int) -> tuple[Int, Int, Int]:
        """(device step, M tile, N tile) of a compute CTA's tile. Even CTAs have the first half of a split tile."""
        position = cta + index * self.num_compute_ctas
        if self.num_split_tiles:
            position = select(position < self.num_whole_tiles, position, self.num_whole_tiles + div(cta, 2))
        step, position = div(position, self.num_tiles), rem(position, self.num_tiles)
        # A raster group is `width` tiles of M, walked along M first, then along N. Every other group comes back along
        # N.
        group_size = self.group_width * self.num_n_tiles
        group, position = div(position, group_size), rem(position, group_size)
        width = self._width(group)
        n_idx = div(position, width)
        n_idx = select(rem(group, 2) == 0, n_idx, self.num_n_tiles - 1 - n_idx)
        return step, group * self.group_width + rem(position, width), n_idx

    def sends_tile(self, step: Int, m_idx: Int, n_idx: Int) -> Any:
        """True if a compute CTA sends this output tile's lhs tiles: in the first column walked of a raster group."""
        group = div(m_idx, self.group_width)
        first_n_idx = select(rem(group, 2) == 0, n_idx * 0, n_idx * 0 + (self.num_n_tiles - 1))
        return (n_idx == first_n_idx) & ring.sends_in(step, self.num_ranks)

    def _width(self, group: Int) -> Int:
        return minimum(self.group_width, self.num_m_tiles - group * self.group_width)

    # The sending warps of all communication CTAs, counted from 0. A job sends one piece.

    def num_local_jobs(self, sender: Int) -> Int:
        """Jobs of a sending warp."""
        num_jobs = ring.num_scratch_slots(self.num_ranks) * self.num_m_tiles * self.first_in_tile_chunk
        return div(num_jobs + (self.num_senders - 1) - sender, self.num_senders)

    def job(self, sender: Int, index: Int) -> tuple[Int, Int, Int]:
        """(device step, M tile, chunk) of a sending warp's job. A warp's jobs are in order of steps."""
        position = sender + index * self.num_senders
        num_pieces = self.num_m_tiles * self.first_in_tile_chunk
        step, position = div(position, num_pieces), rem(position, num_pieces)
        # In the order in which the multiply needs them: raster group by raster group, and in a group all M tiles chunk
        # by chunk.
        group_size = self.group_width * self.first_in_tile_chunk
        group, position = div(position, group_size), rem(position, group_size)
        width = self._width(group)
        return step, group * self.group_width + rem(position, width), div(position, width)


def make_protocol(
    config: KernelConfig, *, num_ranks: int, m_shard: int, k: int, n_shard: int, num_sms: int
) -> Protocol:
    """Divide the work of a call on lhs ``[m_shard, k]`` and rhs ``[k, n_shard]``, with one CTA per SM.

    Raises:
      ValueError: no CTA is left to compute.
    """
    num_comm_ctas = config.num_comm_ctas if num_ranks > 1 else 0
    if num_comm_ctas >= num_sms:
        raise ValueError(f"num_comm_ctas={num_comm_ctas} must be less than {num_sms=}, or no CTA computes")
    num_k_steps = ceil_div(k, config.tile_k)
    chunk_k_steps = ceil_div(num_k_steps, config.num_chunks)
    if num_comm_ctas:
        # A communication CTA sends whole blocks, and a block must not reach into the next chunk.
        block_k_steps = max(COMM_BLOCK_COLUMNS // config.tile_k, 1)
        chunk_k_steps = ceil_div(chunk_k_steps, block_k_steps) * block_k_steps
    num_chunks = ceil_div(num_k_steps, chunk_k_steps)
    num_m_tiles, num_n_tiles = ceil_div(m_shard, config.cta_tile_m), ceil_div(n_shard, config.cta_tile_n)
    num_compute_ctas = num_sms - num_comm_ctas
    num_left = num_ranks * num_m_tiles * num_n_tiles % num_compute_ctas
    return Protocol(
        num_ranks=num_ranks,
        num_m_tiles=num_m_tiles,
        num_n_tiles=num_n_tiles,
        num_k_steps=num_k_steps,
        chunk_k_steps=chunk_k_steps,
        group_width=min(config.grid_tile_width, num_m_tiles),
        num_compute_ctas=num_compute_ctas,
        num_comm_ctas=num_comm_ctas,
        num_senders=num_comm_ctas * NUM_COMM_WARPS,
        num_split_tiles=num_left if config.split_last_wave and 2 * num_left <= num_compute_ctas else 0,
        # A communication CTA sends at least one chunk, or it would idle.
        first_in_tile_chunk=max(num_chunks - config.num_in_tile_chunks, 1) if num_comm_ctas else 0,
    )
