"""Configs worth measuring for a shape, most promising first. ``jobs.tune`` tries them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from cmkernel.config import KernelConfig, PpermuteConfig, ScatterKernelConfig
from cmkernel.performance_model import best_of_each_tile, heuristic_config, modelled_us
from cmkernel.protocol import make_protocol, make_scatter_protocol
from cmkernel.scatter_model import modelled_scatter_us, scatter_heuristic_config, scatter_tile_configs

# The grid. Each value replaces the heuristic's, one option at a time.
_GRID_TILE_WIDTHS = (16, 4, 32, 2)
_COMM_CTAS = (4, 6, 8, 12, 16, 20)
_IN_TILE_CHUNKS = (1, 0, 2)
_CHUNKS = (64, 32, 16, 8, 4)
_PPERMUTE_CHUNKS = (1, 2, 4, 8)


def kernel_candidates(
    *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int, slowest: float
) -> list[KernelConfig]:
    """Configs of ``mosaic_gpu`` in the order to try them, starting with the heuristic's.

    The configs that the model ranks best are nearly the same kernel. So the list takes turns between families that each
    vary one thing: raster groups, tiles, senders, and how the multiply follows arrivals. Within a family the lowest
    modelled time comes first; ties keep the order of the grid.

    Left out: configs that break a law, that the shape turns into the same kernel as an earlier one, or whose modelled
    time exceeds ``slowest`` times the heuristic's.
    """
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}
    first = heuristic_config(**sizes)
    limit_us = slowest * modelled_us(first, **sizes)
    families: list[Iterable[KernelConfig]] = [
        _variants(first, [{"grid_tile_width": width} for width in _GRID_TILE_WIDTHS]),
        best_of_each_tile(**sizes),
        _variants(first, _ways_to_send(first, num_sms) if num_ranks > 1 else []),
        _variants(first, _ways_to_follow(first) if num_ranks > 1 else []),
    ]
    in_turn = itertools.zip_longest(
        *(sorted(family, key=lambda config: modelled_us(config, **sizes)) for family in families)
    )
    unique: dict[Any, KernelConfig] = {}
    for config in [first, *(config for turn in in_turn for config in turn if config is not None)]:
        if modelled_us(config, **sizes) <= limit_us:
            unique.setdefault(_identity(config, sizes), config)
    return list(unique.values())


def scatter_kernel_candidates(
    *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int, slowest: float
) -> list[ScatterKernelConfig]:
    """The same for the ``mosaic_gpu`` of ``matmul_reduce_scatter``: tiles and raster groups in turn."""
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks, "num_sms": num_sms}

    def time_us(config: ScatterKernelConfig) -> float:
        return modelled_scatter_us(config, **sizes)

    first = scatter_heuristic_config(**sizes)
    widths = [dataclasses.replace(first, grid_tile_width=width) for width in _GRID_TILE_WIDTHS]
    tiles = sorted(scatter_tile_configs(), key=time_us)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(tiles, widths))
    unique: dict[Any, ScatterKernelConfig] = {}
    for config in [first, *filter(None, in_turn)]:
        if time_us(config) <= slowest * time_us(first):
            # Two configs whose raster groups a shape rounds alike are the same kernel.
            rest = dataclasses.replace(config, grid_tile_width=1)
            unique.setdefault((make_scatter_protocol(config, **sizes), rest), config)
    return list(unique.values())


def ppermute_candidates(*, m_shard: int) -> list[PpermuteConfig]:
    """Configs of ``ppermute``, starting with the default."""
    return [PpermuteConfig(num_chunks=num) for num in _PPERMUTE_CHUNKS if num <= m_shard]


def _ways_to_send(config: KernelConfig, num_sms: int) -> list[dict[str, Any]]:
    ctas: list[dict[str, Any]] = [{"num_comm_ctas": num} for num in _COMM_CTAS if num < num_sms]
    return [*ctas, *({"num_in_tile_chunks": num} for num in _IN_TILE_CHUNKS if config.num_comm_ctas)]


def _ways_to_follow(config: KernelConfig) -> list[dict[str, Any]]:
    nearest_first = sorted(_CHUNKS, key=lambda num: abs(math.log(num / config.num_chunks)))
    return [
        *({"num_chunks": num} for num in nearest_first),
        {"wait_ahead": not config.wait_ahead},
        {"split_last_wave": not config.split_last_wave},
    ]


def _variants(config: KernelConfig, changes: Iterable[dict[str, Any]]) -> Iterator[KernelConfig]:
    """Apply each change to ``config`` and skip those that break a law."""
    for change in changes:
        try:
            yield dataclasses.replace(config, **change)
        except ValueError:
            continue


def _identity(config: KernelConfig, sizes: dict[str, int]) -> Any:
    """Key that two configs share if a shape's sizes round them to the same kernel."""
    rounded = ("grid_tile_width", "num_chunks", "num_comm_ctas", "num_in_tile_chunks", "split_last_wave")
    rest = [getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in rounded]
    return make_protocol(config, **sizes), tuple(rest)
