"""Rates of an H200 for the parts of ``mosaic_gpu`` and for NCCL, fitted by hand to times measured on 2026-11-30.

The measurements ran on two H200s; docs/kernel.md has the rows. ``cmkernel.performance_model`` combines the rates.
"""

from __future__ import annotations

from cmkernel.config import MatmulDimension

NUM_SMS = 132

STEP_TIMES = {
    (64, 256, MatmulDimension.M): 1.0,
    (64, 192, MatmulDimension.M): 0.75,
    (64, 128, MatmulDimension.M): 0.54,
    (64, 128, MatmulDimension.N): 0.57,
    (64, 64, MatmulDimension.M): 0.45,
    (64, 64, MatmulDimension.N): 0.45,
}
"""(tile_m, tile_n, wg_dimension) -> time of a pipeline step, relative to that of a CTA tile of 128 x 256.

It follows the tile's size, but small tiles take longer for theirs: they load more bytes per multiplication.
"""
OTHER_STEP_TIMES = {
    (128, 128, MatmulDimension.N): 1.0,
    (128, 128, MatmulDimension.M): 1.0,
}
"""The same for tiles that the heuristic skips, as nothing showed them to be faster; for ``cmkernel.candidates``."""
HALF_TIMES = {256: 0.54, 128: 0.61}
"""tile_n -> time of half a tile relative to the whole, for tiles that can be computed in halves."""

MULTIPLY_ADD_US = 0.68 / (128 * 256 * 64)
"""Time of one multiply-add (one row, one column and one element of k) in a CTA tile of 128 x 256."""
MEMORY_BYTES_PER_US = 4.0e6
"""Rate of reading weights that don't stay in the L2, and of what a copy reads and writes."""
ARRIVAL_US = 5.0
"""Time from the last copy to the multiply."""
ONE_WAVE_DELAY = 1 / 3
"""With a single wave, the multiply of what arrives starts late by this fraction of the sending time."""
IN_TILE_STEP_US = 0.62
"""Least time of a k step of a tile that a compute CTA sends itself."""
IN_TILE_FACTOR = 1.04
"""Slowdown of all tiles if compute CTAs send everything, as a ratio of the time without."""
FEW_IN_TILE_FACTOR = 1.01
"""Slowdown of all tiles if compute CTAs send the last chunks only, as a ratio of the time without."""
CALL_US = 6.0
"""Cost of a call in a program beside the kernel's own time, above that of a NCCL call: XLA's barrier before it."""


def send_bytes_per_us(num_comm_ctas: int) -> float:
    """Rate of all communication CTAs together: 34 GB/s each beside a multiply, up to the link's 265 GB/s."""
    return min(num_comm_ctas * 34e3, 265e3)


def gather_us(received_bytes: float) -> float:
    """NCCL's time to receive this much: latency, then bandwidth. Fitted to rows of 0.1 to 67 MB."""
    megabytes = received_bytes / 1e6
    return min(7 + 9 * megabytes, 20 + 4.2 * megabytes)
