"""Which kernel config a shape gets when the caller names none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from cmkernel.config import OPERAND_BYTES, KernelConfig, MatmulDimension, SimpleKernelConfig, validate_shape

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
    (64, 192, MatmulDimension.M, 0.75),
    (64, 128, MatmulDimension.M, 0.56),
    (64, 128, MatmulDimension.N, 0.57),
    (64, 64, MatmulDimension.M, 0.34),
    (64, 64, MatmulDimension.N, 0.34),
)
# All times as measured on H200s on 2026-11-30; docs/kernel.md has the rows.
# A multiply-add of one row, one column and one element of k, in a CTA tile of 128 x 256.
_STEP_US = 0.68 / (128 * 256 * 64)
# What one communication CTA sends, and what the link takes of all of them, in bytes per microsecond.
_SENDER_BYTES_PER_US, _LINK_BYTES_PER_US = 38e3, 250e3
# From the last copy to the multiply.
_ARRIVAL_US = 5.0
# What following the arrivals costs where there is one wave only.
_ONE_WAVE_US = 3.0
# A k step of a tile that a compute CTA sends itself lasts at least so long, and all tiles suffer a little.
_IN_TILE_STEP_US, _IN_TILE_FACTOR = 0.62, 1.025
_COMM_CTAS = (4, 8, 12, 20)
# Chunks of k, where there is one wave and where there are more.
_ONE_WAVE_CHUNKS, _CHUNKS = 64, 8
_MAX_CONCURRENT_STEPS = 6


def heuristic_config(*, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> KernelConfig:
    """The config of ``mosaic_gpu`` with the lowest ``modelled_us``, and of equals the one that sends from fewer CTAs.

    Where all device steps fit in one wave, the multiply waits for nothing but arrivals: it follows them in small chunks
    that a polling warp announces.
    """
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}

    def candidates() -> Iterator[KernelConfig]:
        for tile_m, tile_n, wg_dimension, _ in _TILES:
            tiles = _deepest(KernelConfig(tile_m=tile_m, tile_n=tile_n, wg_dimension=wg_dimension, num_chunks=_CHUNKS))
            for num_comm_ctas in _COMM_CTAS if num_ranks > 1 else ():
                if num_comm_ctas < num_sms:
                    config = dataclasses.replace(tiles, num_comm_ctas=num_comm_ctas)
                    if _num_waves(config, **sizes) == 1:
                        config = dataclasses.replace(config, num_chunks=_ONE_WAVE_CHUNKS, wait_ahead=True)
                    yield config
            yield dataclasses.replace(tiles, num_comm_ctas=0)

    return min(candidates(), key=lambda config: modelled_us(config, **sizes))


def modelled_us(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> float:
    """Time of ``mosaic_gpu`` on an H200, in microseconds, for the tiles of ``heuristic_config``.

    The multiply takes its waves of tiles; the communication CTAs send the shards one after the other, and what arrives
    last has to be multiplied yet. The longer of the two counts.
    """
    sizes = {"m_shard": m_shard, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}
    num_waves, num_k_steps = _num_waves(config, **sizes), _ceil_div(k, config.tile_k)
    step_us = _STEP_US * 128 * 256 * config.tile_k * _relative_step_time(config)
    tile_us = num_k_steps * step_us
    multiply_us = num_waves * tile_us
    if num_ranks == 1:
        return multiply_us
    if num_waves == 1:
        multiply_us += _ONE_WAVE_US
    if not config.num_comm_ctas:
        sender_us = num_k_steps * max(_IN_TILE_STEP_US, step_us) - tile_us
        return multiply_us * _IN_TILE_FACTOR + (num_ranks - 1) * sender_us
    sent_bytes = (num_ranks - 1) * m_shard * k * OPERAND_BYTES
    send_us = sent_bytes / min(config.num_comm_ctas * _SENDER_BYTES_PER_US, _LINK_BYTES_PER_US)
    return max(multiply_us, send_us + _ARRIVAL_US + tile_us / config.num_chunks)


def _relative_step_time(config: KernelConfig) -> float:
    for tile_m, tile_n, wg_dimension, step_time in _TILES:
        if (config.tile_m, config.tile_n, config.wg_dimension) == (tile_m, tile_n, wg_dimension):
            return step_time
    raise ValueError(f"no time is known for tile_m={config.tile_m}, tile_n={config.tile_n}, {config.wg_dimension}")


def _num_tiles(config: KernelConfig, *, m_shard: int, n_shard: int, num_ranks: int, **_: int) -> int:
    return num_ranks * _ceil_div(m_shard, config.cta_tile_m) * _ceil_div(n_shard, config.cta_tile_n)


def _num_waves(config: KernelConfig, *, num_sms: int, **sizes: int) -> int:
    return _ceil_div(_num_tiles(config, **sizes), num_sms - config.num_comm_ctas)


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
