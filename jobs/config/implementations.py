"""Needs of every implementation and baseline, in one table."""

from __future__ import annotations

import dataclasses
import functools
from enum import IntEnum

from jobs.records.op import Op


class Hardware(IntEnum):
    """Least hardware that an implementation runs on."""

    any = 0
    gpu = 1
    hopper = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """Needs of one implementation, and its purpose."""

    ops: tuple[Op, ...] = tuple(Op)
    hardware: Hardware = Hardware.any
    one_domain: bool = False
    """True if all ranks must be in one NVLink domain, because it accesses other ranks' memory."""
    is_tunable: bool = False
    """True if ``jobs.tune`` has candidates for it."""
    is_local: bool = False
    """True for the multiply without communication, the bound of all others."""
    is_in_turn: bool = False
    """True for XLA's collectives and multiplies, one after the other; speedups are over the fastest of these."""
    by_cublas: bool = False
    """True if XLA must multiply by cuBLAS; otherwise it takes Triton or cuBLAS, whichever is faster."""


_kernel = functools.partial(Needs, hardware=Hardware.hopper, one_domain=True)
_GATHER = (Op.all_gather_matmul,)

IMPLEMENTATIONS: dict[str, Needs] = {
    "mosaic_gpu": _kernel(is_tunable=True),
    "mosaic_gpu_simple": _kernel(ops=_GATHER),
    "ppermute": Needs(is_tunable=True),
    "ppermute_two_level": Needs(ops=_GATHER),
    "xla": Needs(is_in_turn=True),
    "xla_cublas": Needs(hardware=Hardware.gpu, is_in_turn=True, by_cublas=True),
    "xla_sharded": Needs(is_in_turn=True),
    "xla_windowed": Needs(hardware=Hardware.gpu),
    "local": Needs(is_local=True),
    "local_cublas": Needs(hardware=Hardware.gpu, is_local=True, by_cublas=True),
    "jax_ring": _kernel(ops=_GATHER),
    "torch_fused": Needs(hardware=Hardware.gpu, one_domain=True, ops=(Op.all_gather_matmul, Op.matmul_reduce_scatter)),
}
"""Needs by name: the names of ``timing.baselines``, which include those of ``kernel.implementation`` but ``auto``."""

LOCALS = tuple(name for name, needs in IMPLEMENTATIONS.items() if needs.is_local)
IN_TURN = tuple(name for name, needs in IMPLEMENTATIONS.items() if needs.is_in_turn)


def refusal(implementation: str, op: Op) -> str | None:
    """Reason why an implementation can't run an operation on any machine; ``None`` if it can."""
    needs = IMPLEMENTATIONS.get(implementation)  # auto has no entry
    if needs is None or op in needs.ops:
        return None
    return f"{implementation} has no {op}; it has {', '.join(needs.ops)}"
