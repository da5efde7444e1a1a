"""Enumerations of conf/: options whose values are names."""

from __future__ import annotations

from enum import Enum


class ClusterMode(Enum):
    """Ray cluster that the gang runs on."""

    auto = "auto"
    local = "local"
    ray = "ray"


class World(Enum):
    """Extent of a ``jax.distributed`` world: all ranks, or those of an island."""

    whole = "whole"
    per_island = "per_island"


class WandbMode(Enum):
    """Mode of the W&B run."""

    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


class Columns(Enum):
    """Columns of the table on standard output."""

    default = "default"
    all = "all"


class Implementation(Enum):
    """Values of ``kernel.implementation``: the names of ``cmkernel.all_gather_matmul``."""

    auto = "auto"
    mosaic_gpu = "mosaic_gpu"
    mosaic_gpu_simple = "mosaic_gpu_simple"
    ppermute = "ppermute"
    ppermute_two_level = "ppermute_two_level"
    xla = "xla"


class Fault(Enum):
    """Fault to plant in the results before they are checked, so that the check fails."""

    none = "none"
    wrong_element = "wrong_element"
    swapped_shards = "swapped_shards"
