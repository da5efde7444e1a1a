"""Which configs of a shape are worth measuring, most promising first: what ``jobs.tune`` tries."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from cmkernel.config import KernelConfig, PpermuteConfig
from cmkernel.performance_model import best_of_each_tile, heuristic_config, modelled_us
from cmkernel.protocol import make_protocol

# The grid. Each value is tried alone, in the place of the heuristic's.
_GRID_TILE_WIDTHS = (16, 4, 32, 2)
_COMM_CTAS = (4, 6, 8, 12, 16, 20)
_IN_TILE_CHUNKS = (1, 0, 2)
_CHUNKS = (64, 32, 16, 8, 4)
_PPERMUTE_CHUNKS = (1, 2, 4, 8)


def kernel_candidates(
    *, m_shard: int, k: int, n_shard: int, num_ranks: int, num_sms: int, slowest: float
) -> list[KernelConfig]:
    """Configs of ``mosaic_gpu`` in the order in which to try them; the heuristic's is the first.

    By the model the best ones are nearly the same kernel, so they are taken in turn from families that differ in one
    thing each: raster groups, tiles, who sends, how arrivals are followed. Within a family the lowest modelled time
    comes first, of equals the value that the grid lists first.

    Left out: what breaks a law, what the shape makes the same kernel as one before, and what is modelled to take longer
    than ``slowest`` times the heuristic.
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
    found: dict[Any, KernelConfig] = {}
    for config in [first, *(config for turn in in_turn for config in turn if config is not None)]:
        if modelled_us(config, **sizes) <= limit_us:
            found.setdefault(_identity(config, sizes), config)
    return list(found.values())


def ppermute_candidates(*, m_shard: int) -> list[PpermuteConfig]:
    """Configs of ``ppermute``; the default is the first."""
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
    """``config`` with each of the changes that the laws allow."""
    for change in changes:
        try:
            yield dataclasses.replace(config, **change)
        except ValueError:
            continue


def _identity(config: KernelConfig, sizes: dict[str, int]) -> Any:
    """Equal for configs that are the same kernel on a shape, whose sizes round some options."""
    rounded = ("grid_tile_width", "num_chunks", "num_comm_ctas", "num_in_tile_chunks", "split_last_wave")
    rest = [getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in rounded]
    return make_protocol(config, **sizes), tuple(rest)
