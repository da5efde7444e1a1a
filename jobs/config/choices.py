"""Enumerations of conf/: the options whose values have names."""

from __future__ import annotations

from enum import Enum


class ClusterMode(Enum):
    """Where the gang runs."""

    auto = "auto"
    local = "local"
    ray = "ray"


class World(Enum):
    """Ranks that share one ``jax.distributed`` world."""

    whole = "whole"
    per_island = "per_island"


class WandbMode(Enum):
    """State of the W&B run."""

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
    """Fault to plant in the results before they are checked, to see the check fail."""

    none = "none"
    wrong_element = "wrong_element"
    swapped_shards = "swapped_shards"
