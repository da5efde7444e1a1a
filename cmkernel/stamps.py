"""Layout of the stamps: times at which CTAs of ``mosaic_gpu`` multiplied, waited and sent.

Stamps are int32 ``[cta, row, column]``: the lower half of the GPU's clock in nanoseconds. A compute CTA has a row per
tile, a communication CTA a row per piece that one of its warps sends. Places for events that the protocol doesn't have
are never written. ``cmkernel.measured_timeline`` reads the stamps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cmkernel.config import NUM_COMM_WARPS
from cmkernel.integers import Int
from cmkernel.protocol import Protocol

Stamps = npt.NDArray[np.int32]

# Columns of a tile, or of a piece in a communication CTA: its begin, and its end (result staged, or piece landed at the
# next rank).
BEGUN, ENDED = 0, 1


def asked(chunk: Int) -> Int:
    """Column of a tile: the loading warp starts to wait for its piece."""
    return 2 + 3 * chunk


def seen(chunk: Int) -> Int:
    """Column of a tile: the loading warp has seen the piece arrive."""
    return 3 + 3 * chunk


def sent(chunk: Int) -> Int:
    """Column of a tile that a compute CTA sends: its piece has landed at the next rank."""
    return 4 + 3 * chunk


def job_row(index: Int, warp: Int) -> Int:
    """Row of a job of one of a communication CTA's sending warps."""
    return index * NUM_COMM_WARPS + warp


def shape(protocol: Protocol) -> tuple[int, int, int]:
    """Shape ``(ctas, rows, columns)`` of a rank's stamps."""
    num_tiles = max(protocol.num_local_tiles(cta, protocol.num_ranks) for cta in range(protocol.num_compute_ctas))
    num_jobs = max((protocol.num_local_jobs(sender) for sender in range(protocol.num_senders)), default=0)
    num_ctas = protocol.num_compute_ctas + protocol.num_comm_ctas
    return num_ctas, max(num_tiles, num_jobs * NUM_COMM_WARPS), 2 + 3 * protocol.num_chunks
