"""Needs of every implementation and baseline, in one table."""

from __future__ import annotations

import dataclasses
import functools
from enum import IntEnum


class Hardware(IntEnum):
    """Least hardware that an implementation runs on."""

    any = 0
    gpu = 1
    hopper = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """Needs of one implementation, and its purpose."""

    hardware: Hardware = Hardware.any
    one_domain: bool = False
    """True if all ranks must be in one NVLink domain, because it accesses other ranks' memory."""
    is_tunable: bool = False
    """True if ``jobs.tune`` has candidates for it."""
    is_local: bool = False
    """True for the multiply without communication, the bound of all others."""
    is_gather: bool = False
    """True for all-gather, then the multiply; speedups are over the fastest of these."""
    by_cublas: bool = False
    """True if XLA must multiply by cuBLAS; otherwise it takes Triton or cuBLAS, whichever is faster."""


_kernel = functools.partial(Needs, hardware=Hardware.hopper, one_domain=True)

IMPLEMENTATIONS: dict[str, Needs] = {
    "mosaic_gpu": _kernel(is_tunable=True),
    "mosaic_gpu_simple": _kernel(),
    "ppermute": Needs(is_tunable=True),
    "ppermute_two_level": Needs(),
    "xla": Needs(is_gather=True),
    "xla_cublas": Needs(hardware=Hardware.gpu, is_gather=True, by_cublas=True),
    "local": Needs(is_local=True),
    "local_cublas": Needs(hardware=Hardware.gpu, is_local=True, by_cublas=True),
    "jax_ring": _kernel(),
    "torch_fused": Needs(hardware=Hardware.gpu, one_domain=True),
}
"""Needs by name: the names of ``timing.baselines``, which include those of ``kernel.implementation`` but ``auto``."""

LOCALS = tuple(name for name, needs in IMPLEMENTATIONS.items() if needs.is_local)
GATHERS = tuple(name for name, needs in IMPLEMENTATIONS.items() if needs.is_gather)
