"""Which kernel config a shape gets when the caller names none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from cmkernel.config import KernelConfig, MatmulDimension, SimpleKernelConfig, validate_shape

# Best first for large problems; smaller tiles fit smaller shapes.
_SIMPLE_CANDIDATES = (
    SimpleKernelConfig(),
    SimpleKernelConfig(tile_m=64, tile_n=256, wg_dimension=MatmulDimension.M),
    SimpleKernelConfig(tile_n=64),
    SimpleKernelConfig(tile_m=64, tile_n=128),
    SimpleKernelConfig(tile_m=64, tile_n=64),
    SimpleKernelConfig(tile_m=64, tile_n=64, wg_dimension=MatmulDimension.M),
    SimpleKernelConfig(tile_m=64, tile_n=32, tile_k=32, epi_tile_n=32),
)

# Tiles of a warpgroup, how the two lie side by side, and the time of a pipeline step relative to that of a CTA tile of
# 128 x 256: by its size, and more the smaller it is, as it loads more bytes for each multiplication.
_TILES = (
    (64, 256, MatmulDimension.M, 1.0),
    (64, 192, MatmulDimension.M, 0.78),
    (64, 128, MatmulDimension.M, 0.55),
    (64, 128, MatmulDimension.N, 0.56),
    (64, 64, MatmulDimension.M, 0.34),
    (64, 64, MatmulDimension.N, 0.34),
)
# What a compute CTA loses to sending itself.
_IN_TILE_FACTOR = 1.03
# Communication CTAs: enough for the link where the multiply takes several waves; more where it waits for arrivals.
_FEW_COMM_CTAS, _MANY_COMM_CTAS = 4, 20
_MAX_CONCURRENT_STEPS = 6


def heuristic_config(*, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> KernelConfig:
    """The config of ``mosaic_gpu`` with the lowest modelled time: waves of tiles times the time of a tile.

    SMs that no wave needs send at no cost. Where all device steps fit in one wave, the multiply waits for nothing but
    arrivals: more CTAs send, and the multiply follows in small chunks that a polling warp announces.
    """
    del k  # All tiles have the same number of pipeline steps.

    def modelled() -> Iterator[tuple[float, KernelConfig]]:
        for tile_m, tile_n, wg_dimension, step_time in _TILES:
            tiles = KernelConfig(tile_m=tile_m, tile_n=tile_n, wg_dimension=wg_dimension)
            tiles = _deepest(tiles)
            num_tiles = num_ranks * _ceil_div(m_shard, tiles.cta_tile_m) * _ceil_div(n_shard, tiles.cta_tile_n)
            num_waves = _ceil_div(num_tiles, num_sms)
            if num_ranks == 1:
                yield num_waves * step_time, dataclasses.replace(tiles, num_comm_ctas=0)
                continue
            if num_waves == 1 and num_sms - num_tiles >= _FEW_COMM_CTAS:
                num_comm_ctas = min(_MANY_COMM_CTAS, num_sms - num_tiles)
                config = dataclasses.replace(tiles, num_comm_ctas=num_comm_ctas, num_chunks=16, wait_ahead=True)
                yield step_time, config
                continue
            yield _ceil_div(num_tiles, num_sms - _FEW_COMM_CTAS) * step_time, tiles
            yield num_waves * step_time * _IN_TILE_FACTOR, dataclasses.replace(tiles, num_comm_ctas=0)

    return min(modelled(), key=lambda candidate: candidate[0])[1]


def simple_heuristic_config(*, m_shard: int, k: int, n_shard: int) -> SimpleKernelConfig:
    """The first candidate for ``mosaic_gpu_simple`` whose tiles divide the shape.

    Raises:
      ValueError: none does; the message is the rule that the smallest candidate breaks.
    """
    for config in _SIMPLE_CANDIDATES:
        try:
            validate_shape(config, m_shard=m_shard, k=k, n_shard=n_shard)
        except ValueError as error:
            last_error = error
        else:
            return config
    raise last_error


def _deepest(config: KernelConfig) -> KernelConfig:
    """The same tiles with as many slots as fit, up to what helps."""
    for num_steps in range(_MAX_CONCURRENT_STEPS, config.max_concurrent_steps, -1):
        try:
            return dataclasses.replace(config, max_concurrent_steps=num_steps)
        except ValueError:
            continue
    return config


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
