"""Who computes, sends, signals and waits for what in ``mosaic_gpu``: integers only.

The kernel and the model checker of the tests call the same functions, with traced and with plain integers: what the
checker explores is what the GPUs do.

Every rank walks the output tiles of all device steps in one sequence, dealt out to the compute CTAs. A shard travels in
pieces of one M tile and one chunk of k. Each piece that a rank receives has an arrival counter of its own, which is
zero when the call starts and is signalled once: a piece is complete when its counter is 1, and nothing is ever reset.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax import lax

from cmkernel import ring
from cmkernel.config import COMM_BLOCK_COLUMNS, NUM_COMM_WARPS, KernelConfig

Int = Any  # int, or a traced int32 scalar; never negative


def _div(a: Int, b: Int) -> Int:
    return a // b if isinstance(a, int) and isinstance(b, int) else lax.div(a, b)


def _rem(a: Int, b: Int) -> Int:
    return a % b if isinstance(a, int) and isinstance(b, int) else lax.rem(a, b)


def _min(a: Int, b: Int) -> Int:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else lax.min(a, b)


def _select(condition: Any, a: Int, b: Int) -> Int:
    return (a if condition else b) if isinstance(condition, bool) else lax.select(condition, a, b)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """One call of the kernel, the same on every rank."""

    num_ranks: int
    num_m_tiles: int
    """M tiles of a shard."""
    num_n_tiles: int
    num_k_steps: int
    """Pipeline steps of one output tile."""
    chunk_k_steps: int
    """Pipeline steps of one chunk; the last chunk may have fewer."""
    group_width: int
    """M tiles of a raster group."""
    num_compute_ctas: int
    num_comm_ctas: int
    num_senders: int
    """Sending warps of all communication CTAs."""
    num_split_tiles: int
    """Tiles of the last wave, each computed in two halves by two CTAs; the whole ones before them fill all waves."""
    first_in_tile_chunk: int
    """From this chunk on, compute CTAs send the lhs tiles that they load; communication CTAs send those before it."""

    @property
    def num_tiles(self) -> int:
        """Output tiles of one device step."""
        return self.num_m_tiles * self.num_n_tiles

    @property
    def num_chunks(self) -> int:
        """Chunks of an M tile."""
        return _ceil_div(self.num_k_steps, self.chunk_k_steps)

    @property
    def num_pieces(self) -> int:
        """Pieces of a shard."""
        return self.num_m_tiles * self.num_chunks

    @property
    def num_counters(self) -> int:
        """Arrival counters of a rank."""
        return ring.num_scratch_slots(self.num_ranks) * self.num_pieces

    @property
    def num_whole_tiles(self) -> int:
        """Output tiles of all device steps that one CTA computes alone."""
        return self.num_ranks * self.num_tiles - self.num_split_tiles

    @property
    def sends_in_tile(self) -> bool:
        """Whether compute CTAs send lhs tiles that they load."""
        return self.num_ranks > 1 and self.first_in_tile_chunk < self.num_chunks

    def counter(self, slot: Int, m_idx: Int, chunk: Int) -> Int:
        """Arrival counter of a piece in a scratch slot: the sender's ``write_slot``, the waiter's ``read_slot``."""
        return (slot * self.num_m_tiles + m_idx) * self.num_chunks + chunk

    def chunk_end(self, chunk: Int) -> Int:
        """One past the last k step of a chunk, which starts at ``chunk * chunk_k_steps``."""
        return _min((chunk + 1) * self.chunk_k_steps, self.num_k_steps)

    # Compute CTAs: 0 .. num_compute_ctas - 1.

    def num_local_tiles(self, cta: Int, num_steps: int) -> Int:
        """Tiles that a compute CTA has in the first ``num_steps`` device steps; they come in order of steps."""
        num_positions = num_steps * self.num_tiles
        num_whole = min(num_positions, self.num_whole_tiles)
        num_local = _div(num_whole + (self.num_compute_ctas - 1) - cta, self.num_compute_ctas)
        if not self.num_split_tiles:
            return num_local
        has_half = (cta < 2 * self.num_split_tiles) & (self.num_whole_tiles + _div(cta, 2) < num_positions)
        return num_local + _select(has_half, cta * 0 + 1, cta * 0)

    def tile(self, cta: Int, index: Int) -> tuple[Int, Int, Int]:
        """(device step, M tile, N tile) of a compute CTA's tile; of a split one, even CTAs have the first half."""
        position = cta + index * self.num_compute_ctas
        if self.num_split_tiles:
            position = _select(position < self.num_whole_tiles, position, self.num_whole_tiles + _div(cta, 2))
        step, position = _div(position, self.num_tiles), _rem(position, self.num_tiles)
        # A raster group is `width` tiles of M: first along M, then along N, and every other group comes back along N.
        group_size = self.group_width * self.num_n_tiles
        group, position = _div(position, group_size), _rem(position, group_size)
        width = self._width(group)
        n_idx = _div(position, width)
        n_idx = _select(_rem(group, 2) == 0, n_idx, self.num_n_tiles - 1 - n_idx)
        return step, group * self.group_width + _rem(position, width), n_idx

    def sends_tile(self, step: Int, m_idx: Int, n_idx: Int) -> Any:
        """Whether a compute CTA sends the lhs tiles of this output tile: those of a raster group's first column."""
        group = _div(m_idx, self.group_width)
        first_n_idx = _select(_rem(group, 2) == 0, n_idx * 0, n_idx * 0 + (self.num_n_tiles - 1))
        return (n_idx == first_n_idx) & ring.sends_in(step, self.num_ranks)

    def _width(self, group: Int) -> Int:
        return _min(self.group_width, self.num_m_tiles - group * self.group_width)

    # The sending warps of all communication CTAs, counted from 0: a job sends one piece.

    def num_local_jobs(self, sender: Int) -> Int:
        """Jobs of a sending warp."""
        num_jobs = ring.num_scratch_slots(self.num_ranks) * self.num_m_tiles * self.first_in_tile_chunk
        return _div(num_jobs + (self.num_senders - 1) - sender, self.num_senders)

    def job(self, sender: Int, index: Int) -> tuple[Int, Int, Int]:
        """(device step, M tile, chunk) of a sending warp's job; jobs come in order of steps."""
        position = sender + index * self.num_senders
        num_pieces = self.num_m_tiles * self.first_in_tile_chunk
        step, position = _div(position, num_pieces), _rem(position, num_pieces)
        # In the order in which the multiply wants them: raster group by raster group, all its M tiles chunk by chunk.
        group_size = self.group_width * self.first_in_tile_chunk
        group, position = _div(position, group_size), _rem(position, group_size)
        width = self._width(group)
        return step, group * self.group_width + _rem(position, width), _div(position, width)


def make_protocol(
    config: KernelConfig, *, num_ranks: int, m_shard: int, k: int, n_shard: int, num_sms: int
) -> Protocol:
    """The protocol of a call on lhs ``[m_shard, k]`` and rhs ``[k, n_shard]`` with one CTA on each SM.

    Raises:
      ValueError: no CTA is left to compute.
    """
    num_comm_ctas = config.num_comm_ctas if num_ranks > 1 else 0
    if num_comm_ctas >= num_sms:
        raise ValueError(f"num_comm_ctas={num_comm_ctas} must be less than {num_sms=}, or no CTA computes")
    num_k_steps = _ceil_div(k, config.tile_k)
    chunk_k_steps = _ceil_div(num_k_steps, config.num_chunks)
    if num_comm_ctas:
        # A communication CTA sends whole blocks, and a block must not reach into the next chunk.
        block_k_steps = max(COMM_BLOCK_COLUMNS // config.tile_k, 1)
        chunk_k_steps = _ceil_div(chunk_k_steps, block_k_steps) * block_k_steps
    num_chunks = _ceil_div(num_k_steps, chunk_k_steps)
    num_m_tiles, num_n_tiles = _ceil_div(m_shard, config.cta_tile_m), _ceil_div(n_shard, config.cta_tile_n)
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
        # A communication CTA sends one chunk at least, or it would be idle.
        first_in_tile_chunk=max(num_chunks - config.num_in_tile_chunks, 1) if num_comm_ctas else 0,
    )
