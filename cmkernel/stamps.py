"""Where the CTAs of ``mosaic_gpu`` write down when they multiplied, waited and sent.

Stamps are int32 ``[cta, row, column]``: the lower half of the GPU's clock in nanoseconds. A compute CTA has a row for
each of its tiles, a communication CTA for each piece that one of its warps sends. What the protocol doesn't do is not
written. ``cmkernel.measured_timeline`` reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cmkernel.config import NUM_COMM_WARPS
from cmkernel.protocol import Protocol

Index = Any  # A Python int or a traced int32 scalar.
Stamps = npt.NDArray[np.int32]

# Columns of a tile, or of a piece in a communication CTA: begun; its result staged, or landed at the next rank.
BEGUN, ENDED = 0, 1


def asked(chunk: Index) -> Index:
    """Column of a tile: the loading warp begins to wait for its piece."""
    return 2 + 3 * chunk


def seen(chunk: Index) -> Index:
    """Column of a tile: the loading warp knows that the piece is here."""
    return 3 + 3 * chunk


def sent(chunk: Index) -> Index:
    """Column of a tile that a compute CTA sends on: its piece has landed at the next rank."""
    return 4 + 3 * chunk


def job_row(index: Index, warp: Index) -> Index:
    """Row of a job of one of a communication CTA's sending warps."""
    return index * NUM_COMM_WARPS + warp


def shape(protocol: Protocol) -> tuple[int, int, int]:
    """Of a rank's stamps."""
    num_tiles = max(protocol.num_local_tiles(cta, protocol.num_ranks) for cta in range(protocol.num_compute_ctas))
    num_jobs = max((protocol.num_local_jobs(sender) for sender in range(protocol.num_senders)), default=0)
    num_ctas = protocol.num_compute_ctas + protocol.num_comm_ctas
    return num_ctas, max(num_tiles, num_jobs * NUM_COMM_WARPS), 2 + 3 * protocol.num_chunks
