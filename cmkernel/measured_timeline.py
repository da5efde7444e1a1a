"""Measured times at which each rank received and multiplied each shard in one call of ``mosaic_gpu``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from cmkernel import ring
from cmkernel.config import NUM_COMM_WARPS
from cmkernel.protocol import Protocol
from cmkernel.stamps import BEGUN, ENDED, Stamps, asked, job_row, seen, sent
from cmkernel.timeline import Interval, StepTimes


def measured_timeline(protocol: Protocol, stamps: Sequence[Stamps]) -> tuple[tuple[StepTimes, ...], ...]:
    """Compute each rank's device steps from the stamps of all ranks, in microseconds from that rank's own start.

    A receiver's arrivals are stamped by its sender, whose clock differs. Per pair of neighbours, the shortest time from
    a piece's landing (sender's clock) to its being seen (receiver's clock) is the clock difference plus a delay. Around
    the ring the differences cancel, so the mean over ranks is the delay, assumed equal everywhere (as NTP does for two
    hosts).
    """
    readings = [_Readings(protocol, of_rank) for of_rank in stamps]
    num_ranks = protocol.num_ranks
    senders = [readings[ring.receive_rank(rank, num_ranks)] for rank in range(num_ranks)]
    lags_us = [_least_lag_us(mine, sender) for mine, sender in zip(readings, senders, strict=True)]
    delay_us = sum(lags_us) / num_ranks
    return tuple(
        tuple(mine.steps(sender, lag_us - delay_us))
        for mine, sender, lag_us in zip(readings, senders, lags_us, strict=True)
    )


@dataclasses.dataclass(frozen=True)
class _Tile:
    step: int
    begun_us: float
    ended_us: float
    waited_us: float


@dataclasses.dataclass(frozen=True)
class _Piece:
    step: int
    where: tuple[int, int]  # M tile and chunk
    begun_us: float
    landed_us: float


class _Readings:
    """One rank's stamps as its tiles and pieces, in microseconds from the begin of its first tile."""

    def __init__(self, protocol: Protocol, stamps: Stamps) -> None:
        self._protocol = protocol
        self._stamps = stamps
        busy = [cta for cta in range(protocol.num_compute_ctas) if protocol.num_local_tiles(cta, protocol.num_ranks)]
        first = [int(stamps[cta, 0, BEGUN]) for cta in busy]
        self._start = min(first, key=lambda stamp: _since(first[0], stamp))
        self.seen_us: dict[tuple[int, tuple[int, int]], float] = {}
        """Time at which a loading warp first saw a piece, by device step and piece."""
        self._tiles = list(self._walk_tiles())
        self._pieces = [*self._walk_jobs(), *self._walk_sent_tiles()]

    def landed_us(self) -> Iterator[tuple[tuple[int, tuple[int, int]], float]]:
        """Times, by this rank's clock, at which pieces landed at the next rank, under the step that multiplies them."""
        for piece in self._pieces:
            yield (piece.step + 1, piece.where), piece.landed_us

    def steps(self, sender: _Readings, ahead_us: float) -> Iterator[StepTimes]:
        """This rank's device steps; its clock is ``ahead_us`` ahead of the ``sender``'s."""
        for step in range(self._protocol.num_ranks):
            tiles = [tile for tile in self._tiles if tile.step == step]
            pieces = [piece for piece in sender._pieces if piece.step == step - 1]
            arrival = None
            if pieces:
                begun_us, landed_us = min(p.begun_us for p in pieces), max(p.landed_us for p in pieces)
                arrival = Interval(begun_us + ahead_us, landed_us + ahead_us)
            yield StepTimes(
                step,
                Interval(min(tile.begun_us for tile in tiles), max(tile.ended_us for tile in tiles)),
                arrival,
                sum(tile.waited_us for tile in tiles) / self._protocol.num_compute_ctas,
            )

    def _at_us(self, cta: int, row: int, column: int) -> float:
        return _since(self._start, int(self._stamps[cta, row, column])) / 1e3

    def _local_tiles(self) -> Iterator[tuple[int, int, int, int, int]]:
        protocol = self._protocol
        for cta in range(protocol.num_compute_ctas):
            for i in range(protocol.num_local_tiles(cta, protocol.num_ranks)):
                yield cta, i, *protocol.tile(cta, i)

    def _walk_tiles(self) -> Iterator[_Tile]:
        for cta, i, step, m_idx, _ in self._local_tiles():
            begun_us, waited_us = self._at_us(cta, i, BEGUN), 0.0
            if step > 0:
                for chunk in range(self._protocol.num_chunks):
                    seen_us, piece = self._at_us(cta, i, seen(chunk)), (step, (m_idx, chunk))
                    waited_us += seen_us - self._at_us(cta, i, asked(chunk))
                    self.seen_us[piece] = min(seen_us, self.seen_us.get(piece, seen_us))
                begun_us = max(begun_us, self._at_us(cta, i, seen(0)))
            yield _Tile(step, begun_us, self._at_us(cta, i, ENDED), waited_us)

    def _walk_jobs(self) -> Iterator[_Piece]:
        protocol = self._protocol
        for sender in range(protocol.num_senders):
            cta, warp = divmod(sender, NUM_COMM_WARPS)
            for i in range(protocol.num_local_jobs(sender)):
                step, m_idx, chunk = protocol.job(sender, i)
                times_us = (self._at_us(protocol.num_compute_ctas + cta, job_row(i, warp), c) for c in (BEGUN, ENDED))
                yield _Piece(step, (m_idx, chunk), *times_us)

    def _walk_sent_tiles(self) -> Iterator[_Piece]:
        protocol = self._protocol
        if not protocol.sends_in_tile:
            return
        for cta, i, step, m_idx, n_idx in self._local_tiles():
            # If a tile is computed in two halves, the CTA of the first half sends.
            is_second_half = cta + i * protocol.num_compute_ctas >= protocol.num_whole_tiles and cta % 2
            if protocol.sends_tile(step, m_idx, n_idx) and not is_second_half:
                for chunk in range(protocol.first_in_tile_chunk, protocol.num_chunks):
                    begun_us = self._at_us(cta, i, BEGUN)
                    yield _Piece(step, (m_idx, chunk), begun_us, self._at_us(cta, i, sent(chunk)))


def _since(start: int, stamp: int) -> int:
    """Nanoseconds between two readings of the lower half of the clock, which wraps around."""
    return (stamp - start + 2**31) % 2**32 - 2**31


def _least_lag_us(receiver: _Readings, sender: _Readings) -> float:
    """Shortest time from a piece's landing (sender's clock) to its being seen (receiver's clock)."""
    return min(receiver.seen_us[piece] - landed_us for piece, landed_us in sender.landed_us())
