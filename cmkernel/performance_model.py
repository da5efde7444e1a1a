"""Which kernel config a shape gets when the caller names none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from cmkernel.config import OPERAND_BYTES, KernelConfig, MatmulDimension, SimpleKernelConfig, validate_shape

# Of the GPU that all models here are of.
H200_NUM_SMS = 132

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
_STEP_TIMES = {
    (64, 256, MatmulDimension.M): 1.0,
    (64, 192, MatmulDimension.M): 0.75,
    (64, 128, MatmulDimension.M): 0.54,
    (64, 128, MatmulDimension.N): 0.57,
    (64, 64, MatmulDimension.M): 0.45,
    (64, 64, MatmulDimension.N): 0.45,
}
# Those that the heuristic leaves alone, as nothing showed them to be faster: for ``cmkernel.candidates``.
_OTHER_STEP_TIMES = {
    (128, 128, MatmulDimension.N): 1.0,
    (128, 128, MatmulDimension.M): 1.0,
}
# Tiles that can be computed in halves, and the time of a half relative to the whole.
_HALF_TIMES = {256: 0.54, 128: 0.61}
# All times as measured on H200s on 2026-11-30; docs/kernel.md has the rows.
# A multiply-add of one row, one column and one element of k, in a CTA tile of 128 x 256.
_STEP_US = 0.68 / (128 * 256 * 64)
# What reads weights that don't stay in the L2, and what a copy reads and writes.
_MEMORY_BYTES_PER_US = 4.0e6
# What one communication CTA sends beside a multiply, and what the link takes of all of them.
_SENDER_BYTES_PER_US, _LINK_BYTES_PER_US = 34e3, 265e3
# From the last copy to the multiply.
_ARRIVAL_US = 5.0
# Where there is one wave only, the multiply of what arrives starts late, by so much of the time that sending takes.
_ONE_WAVE_DELAY = 1 / 3
# A k step of a tile that a compute CTA sends itself lasts at least so long, and all tiles suffer a little.
_IN_TILE_STEP_US, _IN_TILE_FACTOR, _FEW_IN_TILE_FACTOR = 0.62, 1.04, 1.01
_COMM_CTAS = (4, 8, 12)
# Chunks of k, where there is one wave and where there are more.
_ONE_WAVE_CHUNKS, _CHUNKS = 64, 8
_MAX_CONCURRENT_STEPS = 6
# What a call of the kernel costs in a program beside its own time, more than one of NCCL: XLA's barrier before it.
_CALL_US = 6.0


def heuristic_config(*, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> KernelConfig:
    """The config of ``mosaic_gpu`` with the lowest ``modelled_us``, and of equals the one that sends from fewer CTAs.

    Where all device steps fit in one wave, the multiply waits for nothing but arrivals: it follows them in small chunks
    that a polling warp announces.
    """
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}

    candidates = [config for tiles in _STEP_TIMES for config in _ways_to_send(tiles, **sizes)]
    return min(candidates, key=lambda config: modelled_us(config, **sizes))


def best_of_each_tile(*, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> list[KernelConfig]:
    """For each CTA tile, the heuristic's and others, the config with the lowest ``modelled_us``; the lowest first."""
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}

    def time_us(config: KernelConfig) -> float:
        return modelled_us(config, **sizes)

    all_tiles = (*_STEP_TIMES, *_OTHER_STEP_TIMES)
    return sorted((min(_ways_to_send(tiles, **sizes), key=time_us) for tiles in all_tiles), key=time_us)


def _ways_to_send(
    tiles: tuple[int, int, MatmulDimension], *, num_ranks: int, num_sms: int, **shape: int
) -> Iterator[KernelConfig]:
    """The configs of a CTA tile that the heuristic knows of."""
    tile_m, tile_n, wg_dimension = tiles
    deepest = _deepest(KernelConfig(tile_m=tile_m, tile_n=tile_n, wg_dimension=wg_dimension, num_chunks=_CHUNKS))
    for num_comm_ctas in (*(_COMM_CTAS if num_ranks > 1 else ()), 0):
        if num_comm_ctas >= num_sms:
            continue
        config = dataclasses.replace(deepest, num_comm_ctas=num_comm_ctas)
        if _num_waves(config, num_ranks=num_ranks, num_sms=num_sms, **shape) > 1:
            # Smaller tiles do better than halves where there are halves only.
            config = dataclasses.replace(config, split_last_wave=tile_n in _HALF_TIMES)
        elif num_comm_ctas:
            config = dataclasses.replace(config, num_chunks=_ONE_WAVE_CHUNKS, wait_ahead=True)
        yield config
        if num_comm_ctas:
            yield dataclasses.replace(config, num_in_tile_chunks=1)


def is_modelled(config: KernelConfig) -> bool:
    """Whether ``modelled_us`` and ``rates`` know its tiles, and halves of them where the last wave is split."""
    tiles = config.tile_m, config.tile_n, config.wg_dimension
    return tiles in _STEP_TIMES | _OTHER_STEP_TIMES and (not config.split_last_wave or config.tile_n in _HALF_TIMES)


def modelled_us(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> float:
    """Time of ``mosaic_gpu`` on an H200, in microseconds, for the tiles of ``best_of_each_tile``.

    The multiply takes its waves of tiles, or what it takes to read the rhs in each device step; the communication CTAs
    send the shards one after the other, and what arrives last has to be multiplied yet. The longer of the two counts.
    """
    sizes = {"m_shard": m_shard, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}
    num_waves, num_k_steps = _num_waves(config, **sizes), _ceil_div(k, config.tile_k)
    step_us = _step_us(config)
    tile_us = num_k_steps * step_us
    multiply_us = max(num_waves * tile_us, _read_us(config, m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks))
    if num_ranks == 1:
        return multiply_us
    multiply_us *= _in_tile_factor(config)
    if not config.num_comm_ctas:
        sender_us = num_k_steps * max(_IN_TILE_STEP_US, step_us) - tile_us
        return multiply_us + (num_ranks - 1) * sender_us
    sent_bytes = float((num_ranks - 1) * m_shard * k * OPERAND_BYTES)
    sent_bytes *= 1 - config.num_in_tile_chunks / config.num_chunks
    send_us = sent_bytes / _send_bytes_per_us(config)
    if num_waves <= 1:
        multiply_us += _ONE_WAVE_DELAY * send_us
    return max(multiply_us, send_us + _ARRIVAL_US + tile_us / config.num_chunks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """How fast ``modelled_us`` expects the parts of ``mosaic_gpu`` to be, for ``cmkernel.modelled_timeline``."""

    step_us: float
    """A k step of a tile, reading the rhs included."""
    sending_step_us: float
    """A k step of a tile whose lhs the compute CTA sends on."""
    half_time: float
    """Time of a tile that is computed in halves, relative to the whole."""
    send_bytes_per_us: float
    """All communication CTAs together; 0 where there are none."""
    arrival_us: float
    """From the end of a copy to the multiply."""


def rates(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int) -> Rates:
    """Of a call on H200s.

    Raises:
      ValueError: ``is_modelled`` says that the config isn't.
    """
    if not is_modelled(config):
        tiles = config.tile_m, config.tile_n, config.wg_dimension
        raise ValueError(
            f"tile_m, tile_n, wg_dimension={tiles} with split_last_wave={config.split_last_wave} have no modelled time"
        )
    sizes = {"m_shard": m_shard, "n_shard": n_shard, "num_ranks": num_ranks}
    num_steps = _num_waves(config, **sizes, num_sms=num_sms) * _ceil_div(k, config.tile_k)
    step_us = max(_step_us(config), _read_us(config, **sizes, k=k) / num_steps)
    if num_ranks > 1:
        step_us *= _in_tile_factor(config)
    return Rates(
        step_us=step_us,
        sending_step_us=max(step_us, _IN_TILE_STEP_US),
        half_time=_HALF_TIMES.get(config.tile_n, 1.0),
        send_bytes_per_us=_send_bytes_per_us(config),
        arrival_us=_ARRIVAL_US,
    )


def modelled_calls_us(
    config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int
) -> dict[str, float]:
    """Time of a call inside a program on H200s by implementation, in microseconds: what ``auto`` goes by.

    ``xla``'s all-gather and multiply follow each other. So do ``ppermute``'s exchanges and multiplies, as measured: XLA
    doesn't overlap them.
    """
    sizes = {"k": k, "n_shard": n_shard, "num_sms": num_sms}
    gather_us = _gather_us((num_ranks - 1) * m_shard * k * OPERAND_BYTES)
    exchange_us = _gather_us(m_shard * k * OPERAND_BYTES)
    return {
        "mosaic_gpu": (
            _CALL_US
            + _padding_us(config, m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks)
            + modelled_us(config, m_shard=m_shard, num_ranks=num_ranks, **sizes)
        ),
        # Before ppermute: of equals `auto` takes the first, and this one is a single exchange and multiply.
        "xla": gather_us + _gemm_us(m=num_ranks * m_shard, **sizes),
        "ppermute": (num_ranks - 1) * exchange_us + num_ranks * _gemm_us(m=m_shard, **sizes),
    }


def _padding_us(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int) -> float:
    """Copies of what has to grow before the kernel and of what is sliced after it; not measured."""
    unit = config.swizzle_elems
    grows_m, grows_k, grows_n = m_shard % 8 > 0, k % unit > 0, n_shard % unit > 0
    copied = (grows_m or grows_k) * m_shard * k + (grows_k or grows_n) * k * n_shard
    copied += (grows_m or grows_n) * num_ranks * m_shard * n_shard
    return 2 * copied * OPERAND_BYTES / _MEMORY_BYTES_PER_US


def _gather_us(received_bytes: float) -> float:
    """NCCL's time to receive so much, fitted to rows of 0.1 to 67 MB: latency first, then bandwidth."""
    megabytes = received_bytes / 1e6
    return min(7 + 9 * megabytes, 20 + 4.2 * megabytes)


def _gemm_us(*, m: int, k: int, n_shard: int, num_sms: int) -> float:
    """A local multiply ``[m, k] @ [k, n_shard]`` by the best library: as the best of these tiles would do it."""
    sizes = {"m_shard": m, "n_shard": n_shard, "num_ranks": 1, "num_sms": num_sms}

    def waves_us(tile_m: int, tile_n: int, wg_dimension: MatmulDimension) -> float:
        config = KernelConfig(tile_m=tile_m, tile_n=tile_n, wg_dimension=wg_dimension, num_comm_ctas=0)
        return _num_waves(config, **sizes) * k * config.cta_tile_m * config.cta_tile_n * _STEP_US

    read_us = k * n_shard * OPERAND_BYTES / _MEMORY_BYTES_PER_US
    return max(min(waves_us(*tiles) for tiles in _STEP_TIMES), read_us)


def _step_us(config: KernelConfig) -> float:
    tiles = config.tile_m, config.tile_n, config.wg_dimension
    relative = (_STEP_TIMES | _OTHER_STEP_TIMES)[tiles]
    return _STEP_US * 128 * 256 * config.tile_k * relative


def _read_us(config: KernelConfig, *, m_shard: int, k: int, n_shard: int, num_ranks: int) -> float:
    num_groups = _ceil_div(m_shard, config.cta_tile_m * config.grid_tile_width)
    return num_ranks * num_groups * k * n_shard * OPERAND_BYTES / _MEMORY_BYTES_PER_US


def _in_tile_factor(config: KernelConfig) -> float:
    if not config.num_comm_ctas:
        return _IN_TILE_FACTOR
    return _FEW_IN_TILE_FACTOR if config.num_in_tile_chunks else 1.0


def _send_bytes_per_us(config: KernelConfig) -> float:
    return min(config.num_comm_ctas * _SENDER_BYTES_PER_US, _LINK_BYTES_PER_US)


def _num_waves(config: KernelConfig, *, m_shard: int, n_shard: int, num_ranks: int, num_sms: int, **_: int) -> float:
    num_tiles = num_ranks * _ceil_div(m_shard, config.cta_tile_m) * _ceil_div(n_shard, config.cta_tile_n)
    num_ctas = num_sms - config.num_comm_ctas
    num_full, num_left = divmod(num_tiles, num_ctas)
    if config.split_last_wave and 0 < 2 * num_left <= num_ctas:
        return num_full + _HALF_TIMES[config.tile_n]
    return num_full + (num_left > 0)


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
