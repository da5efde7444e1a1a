"""Performance model of ``mosaic_gpu``, and the kernel config that a shape gets when the caller names none.

Predicts the time of one call of the kernel (``modelled_us``), and of a call inside a program for each implementation
(``modelled_calls_us``), on H200s that share NVLink. A kernel call takes the longer of two times: computing its waves of
tiles, or sending its shards and multiplying what arrives last. The rates were fitted by hand to measurements on two
H200s (``cmkernel.h200``; rows in docs/kernel.md). ``tests/cmkernel/test_performance_model.py`` holds the model to
within 10 % of 13 measured kernel times, and to the fastest implementation of 7 measured shapes. For more than two ranks
nothing was measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from cmkernel import h200
from cmkernel.config import OPERAND_BYTES, KernelConfig, MatmulDimension, SimpleKernelConfig, validate_shape
from cmkernel.integers import ceil_div

H200_NUM_SMS = h200.NUM_SMS

# Best first for large problems. Smaller tiles fit smaller shapes.
_SIMPLE_CANDIDATES = (
    SimpleKernelConfig(),
    SimpleKernelConfig(tile_m=64, tile_n=256, wg_dimension=MatmulDimension.M),
    SimpleKernelConfig(tile_n=64),
    SimpleKernelConfig(tile_m=64, tile_n=128),
    SimpleKernelConfig(tile_m=64, tile_n=64),
    SimpleKernelConfig(tile_m=64, tile_n=64, wg_dimension=MatmulDimension.M),
    SimpleKernelConfig(tile_m=64, tile_n=32, tile_k=32, epi_tile_n=32),
)

_COMM_CTAS = (4, 8, 12)
# Chunks of k with one wave, and with more.
_ONE_WAVE_CHUNKS, _CHUNKS = 64, 8
_MAX_CONCURRENT_STEPS = 6


def heuristic_config(*, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> KernelConfig:
    """Config of ``mosaic_gpu`` with the lowest ``modelled_us``; ties go to the one that sends from fewer CTAs.

    If all device steps fit in one wave, the multiply waits for nothing but arrivals. It then follows them in small
    chunks, which a polling warp announces.
    """
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}

    candidates = [config for tiles in h200.STEP_TIMES for config in _ways_to_send(tiles, **sizes)]
    return min(candidates, key=lambda config: modelled_us(config, **sizes))


def best_of_each_tile(*, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> list[KernelConfig]:
    """Config with the lowest ``modelled_us`` for each modelled CTA tile, fastest first."""
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}

    def time_us(config: KernelConfig) -> float:
        return modelled_us(config, **sizes)

    all_tiles = (*h200.STEP_TIMES, *h200.OTHER_STEP_TIMES)
    return sorted((min(_ways_to_send(tiles, **sizes), key=time_us) for tiles in all_tiles), key=time_us)


def _ways_to_send(
    tiles: tuple[int, int, MatmulDimension], *, num_ranks: int, num_sms: int, **shape: int
) -> Iterator[KernelConfig]:
    """Configs of a CTA tile that the heuristic considers."""
    tile_m, tile_n, wg_dimension = tiles
    deepest = _deepest(KernelConfig(tile_m=tile_m, tile_n=tile_n, wg_dimension=wg_dimension, num_chunks=_CHUNKS))
    for num_comm_ctas in (*(_COMM_CTAS if num_ranks > 1 else ()), 0):
        if num_comm_ctas >= num_sms:
            continue
        config = dataclasses.replace(deepest, num_comm_ctas=num_comm_ctas)
        if _num_waves(config, num_ranks=num_ranks, num_sms=num_sms, **shape) > 1:
            # If there were nothing but halves, smaller tiles would do better.
            config = dataclasses.replace(config, split_last_wave=tile_n in h200.HALF_TIMES)
        elif num_comm_ctas:
            config = dataclasses.replace(config, num_chunks=_ONE_WAVE_CHUNKS, wait_ahead=True)
        yield config
        if num_comm_ctas:
            yield dataclasses.replace(config, num_in_tile_chunks=1)


def is_modelled(config: KernelConfig) -> bool:
    """True if ``modelled_us`` and ``rates`` know the config's tiles, and their halves if the last wave is split."""
    tiles = config.tile_m, config.tile_n, config.wg_dimension
    return tiles in h200.STEP_TIMES | h200.OTHER_STEP_TIMES and (
        not config.split_last_wave or config.tile_n in h200.HALF_TIMES
    )


def modelled_us(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> float:
    """Time of ``mosaic_gpu`` on an H200 in microseconds, for the tiles of ``best_of_each_tile``.

    The longer of two times. Multiply: the waves of tiles, or reading the rhs in each device step if that takes longer.
    Sending: the communication CTAs send the shards one after the other, and the last arrival is still to be multiplied.
    """
    sizes = {"m_shard": m_shard, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}
    num_waves, num_k_steps = _num_waves(config, **sizes), ceil_div(k, config.tile_k)
    step_us = _step_us(config)
    tile_us = num_k_steps * step_us
    multiply_us = max(num_waves * tile_us, _read_us(config, m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks))
    if num_ranks == 1:
        return multiply_us
    multiply_us *= _in_tile_factor(config)
    if not config.num_comm_ctas:
        sender_us = num_k_steps * max(h200.IN_TILE_STEP_US, step_us) - tile_us
        return multiply_us + (num_ranks - 1) * sender_us
    sent_bytes = float((num_ranks - 1) * m_shard * k * OPERAND_BYTES)
    sent_bytes *= 1 - config.num_in_tile_chunks / config.num_chunks
    send_us = sent_bytes / h200.send_bytes_per_us(config.num_comm_ctas)
    if num_waves <= 1:
        multiply_us += h200.ONE_WAVE_DELAY * send_us
    return max(multiply_us, send_us + h200.ARRIVAL_US + tile_us / config.num_chunks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """Speed of the parts of ``mosaic_gpu`` according to ``modelled_us``, for ``cmkernel.modelled_timeline``."""

    step_us: float
    """A k step of a tile, including the reading of the rhs."""
    sending_step_us: float
    """A k step of a tile whose lhs the compute CTA sends on."""
    half_time: float
    """Time of a tile computed in halves, relative to the whole."""
    send_bytes_per_us: float
    """All communication CTAs together; 0 if there are none."""
    arrival_us: float
    """From the end of a copy to the multiply."""


def rates(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> Rates:
    """Rates of a call on H200s.

    Raises:
      ValueError: the config isn't modelled (``is_modelled``).
    """
    if not is_modelled(config):
        tiles = config.tile_m, config.tile_n, config.wg_dimension
        raise ValueError(
            f"tile_m, tile_n, wg_dimension={tiles} with split_last_wave={config.split_last_wave} have no modelled time"
        )
    sizes = {"m_shard": m_shard, "n_shard": n_shard, "num_ranks": num_ranks}
    num_steps = _num_waves(config, **sizes, num_sms=num_sms) * ceil_div(k, config.tile_k)
    step_us = max(_step_us(config), _read_us(config, **sizes, k=k) / num_steps)
    if num_ranks > 1:
        step_us *= _in_tile_factor(config)
    return Rates(
        step_us=step_us,
        sending_step_us=max(step_us, h200.IN_TILE_STEP_US),
        half_time=h200.HALF_TIMES.get(config.tile_n, 1.0),
        send_bytes_per_us=h200.send_bytes_per_us(config.num_comm_ctas),
        arrival_us=h200.ARRIVAL_US,
    )


def modelled_calls_us(
    config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int
) -> dict[str, float]:
    """Time of a call inside a program on H200s by implementation, in microseconds. ``auto`` goes by it.

    ``xla``'s all-gather and multiply run one after the other. So do ``ppermute``'s exchanges and multiplies:
    measurements show that XLA doesn't overlap them.
    """
    sizes = {"k": k, "n_shard": n_shard, "num_sms": num_sms}
    gather_us = h200.gather_us((num_ranks - 1) * m_shard * k * OPERAND_BYTES)
    exchange_us = h200.gather_us(m_shard * k * OPERAND_BYTES)
    return {
        "mosaic_gpu": (
            h200.CALL_US
            + _padding_us(config, m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks)
            + modelled_us(config, m_shard=m_shard, num_ranks=num_ranks, **sizes)
        ),
        # Before ppermute: `auto` takes the first of equals, and xla has a single exchange and multiply.
        "xla": gather_us + _gemm_us(m=num_ranks * m_shard, **sizes),
        "ppermute": (num_ranks - 1) * exchange_us + num_ranks * _gemm_us(m=m_shard, **sizes),
    }


def _padding_us(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int) -> float:
    """Time to copy the operands that are padded and the result that is sliced. A model alone: not measured."""
    unit = config.swizzle_elems
    grows_m, grows_k, grows_n = m_shard % 8 > 0, k % unit > 0, n_shard % unit > 0
    copied = (grows_m or grows_k) * m_shard * k + (grows_k or grows_n) * k * n_shard
    copied += (grows_m or grows_n) * num_ranks * m_shard * n_shard
    return 2 * copied * OPERAND_BYTES / h200.MEMORY_BYTES_PER_US


def _gemm_us(*, m: int, k: int, n_shard: int, num_sms: int) -> float:
    """Time of a local multiply ``[m, k] @ [k, n_shard]`` by the best library, taken as the best of these tiles."""
    sizes = {"m_shard": m, "n_shard": n_shard, "num_ranks": 1, "num_sms": num_sms}

    def waves_us(tile_m: int, tile_n: int, wg_dimension: MatmulDimension) -> float:
        config = KernelConfig(tile_m=tile_m, tile_n=tile_n, wg_dimension=wg_dimension, num_comm_ctas=0)
        return _num_waves(config, **sizes) * k * config.cta_tile_m * config.cta_tile_n * h200.MULTIPLY_ADD_US

    read_us = k * n_shard * OPERAND_BYTES / h200.MEMORY_BYTES_PER_US
    return max(min(waves_us(*tiles) for tiles in h200.STEP_TIMES), read_us)


def _step_us(config: KernelConfig) -> float:
    tiles = config.tile_m, config.tile_n, config.wg_dimension
    relative = (h200.STEP_TIMES | h200.OTHER_STEP_TIMES)[tiles]
    return h200.MULTIPLY_ADD_US * 128 * 256 * config.tile_k * relative


def _read_us(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int) -> float:
    num_groups = ceil_div(m_shard, config.cta_tile_m * config.grid_tile_width)
    return num_ranks * num_groups * k * n_shard * OPERAND_BYTES / h200.MEMORY_BYTES_PER_US


def _in_tile_factor(config: KernelConfig) -> float:
    if not config.num_comm_ctas:
        return h200.IN_TILE_FACTOR
    return h200.FEW_IN_TILE_FACTOR if config.num_in_tile_chunks else 1.0


def _num_waves(config: KernelConfig, *, m_shard: int, n_shard: int, num_ranks: int, num_sms: int, **_: int) -> float:
    num_tiles = num_ranks * ceil_div(m_shard, config.cta_tile_m) * ceil_div(n_shard, config.cta_tile_n)
    num_ctas = num_sms - config.num_comm_ctas
    num_full, num_left = divmod(num_tiles, num_ctas)
    if config.split_last_wave and 0 < 2 * num_left <= num_ctas:
        return num_full + h200.HALF_TIMES[config.tile_n]
    return num_full + (num_left > 0)


def simple_heuristic_config(*, m_shard: int, k: int, n_shard: int) -> SimpleKernelConfig:
    """Choose the first candidate for ``mosaic_gpu_simple`` whose tiles divide the shape.

    Raises:
      ValueError: no candidate's tiles do. The message is the rule that the smallest candidate breaks.
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
    """Give the tiles as many slots as fit, up to the number that helps."""
    for num_steps in range(_MAX_CONCURRENT_STEPS, config.max_concurrent_steps, -1):
        try:
            return dataclasses.replace(config, max_concurrent_steps=num_steps)
        except ValueError:
            continue
    return config
