"""Performance model of the reduce-scatter form of ``mosaic_gpu``, and the config that a shape gets by default.

Rates are those of ``cmkernel.performance_model``: tiles, pipeline and multiply are the same. Measured on one H200 whose
rank sends to itself at the pace of NVLink (``benchmarks/programs/looped_scatter.py``); no ranks on several GPUs were
timed.
"""

from __future__ import annotations

from cmkernel import h200
from cmkernel.config import OPERAND_BYTES, ScatterKernelConfig
from cmkernel.integers import ceil_div
from cmkernel.performance_model import gemm_us, tile_step_us, with_deepest_pipeline


def scatter_heuristic_config(
    *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int, partial_bytes: int = OPERAND_BYTES
) -> ScatterKernelConfig:
    """Config of ``mosaic_gpu`` for ``matmul_reduce_scatter`` with the lowest ``modelled_scatter_us``."""
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}
    return min(
        scatter_tile_configs(), key=lambda config: modelled_scatter_us(config, **sizes, partial_bytes=partial_bytes)
    )


def scatter_tile_configs() -> list[ScatterKernelConfig]:
    """A config for each CTA tile that the heuristic considers."""
    return [
        with_deepest_pipeline(ScatterKernelConfig(tile_m=tile_m, tile_n=tile_n, wg_dimension=wg_dimension))
        for tile_m, tile_n, wg_dimension in h200.STEP_TIMES
    ]


def modelled_scatter_us(
    config: ScatterKernelConfig,
    *,
    m_shard: int,
    k: int,
    n_shard: int,
    num_ranks: int,
    num_sms: int,
    partial_bytes: int = OPERAND_BYTES,
) -> float:
    """Time of the kernel on an H200 in microseconds, where each rank multiplies ``[num_ranks * m_shard, k]``.

    The longer of two times, and the reading of the received partial sums. Multiply: the waves of tiles. Sending: the
    first tile, then the link. ``partial_bytes`` is the size of an element that travels.
    """
    num_tiles = num_ranks * ceil_div(m_shard, config.cta_tile_m) * ceil_div(n_shard, config.cta_tile_n)
    tile_us = ceil_div(k, config.tile_k) * tile_step_us(config)
    multiply_us = ceil_div(num_tiles, num_sms) * tile_us
    if num_ranks == 1:
        return multiply_us
    received_bytes = (num_ranks - 1) * m_shard * n_shard * partial_bytes
    send_us = tile_us + received_bytes / h200.LINK_BYTES_PER_US + h200.ARRIVAL_US
    return max(multiply_us, send_us) + received_bytes / h200.MEMORY_BYTES_PER_US


def modelled_scatter_calls_us(
    config: ScatterKernelConfig,
    *,
    m_shard: int,
    k: int,
    n_shard: int,
    num_ranks: int,
    num_sms: int,
    partial_bytes: int = OPERAND_BYTES,
) -> dict[str, float]:
    """Time of a call inside a program on H200s by implementation, in microseconds. ``auto`` goes by it.

    ``xla``'s multiply and reduce-scatter run one after the other, and so do ``ppermute``'s multiplies and exchanges, as
    in ``performance_model.modelled_calls_us``.
    """
    sizes = {"k": k, "n_shard": n_shard, "num_sms": num_sms}
    exchanged_bytes = m_shard * n_shard * partial_bytes
    kernel_us = modelled_scatter_us(config, m_shard=m_shard, num_ranks=num_ranks, **sizes, partial_bytes=partial_bytes)
    return {
        "mosaic_gpu": h200.CALL_US + kernel_us,
        "xla": h200.gather_us((num_ranks - 1) * exchanged_bytes) + gemm_us(m=num_ranks * m_shard, **sizes),
        "ppermute": (num_ranks - 1) * h200.gather_us(exchanged_bytes) + num_ranks * gemm_us(m=m_shard, **sizes),
    }
