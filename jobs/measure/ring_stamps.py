"""One call of ``mosaic_gpu`` whose CTAs record the times of their steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from cmkernel import hardware
from cmkernel.config import KernelConfig, from_plain
from cmkernel.mosaic_gpu import stamped_ring_all_gather_matmul
from cmkernel.protocol import Protocol, make_protocol
from cmkernel.stamps import Stamps
from jobs.measure.inputs import AXIS
from jobs.measure.operations import OPERATIONS
from jobs.records.case import Case

RING = "mosaic_gpu"


@dataclasses.dataclass(frozen=True)
class RingStamps:
    """Stamps of one rank, and the protocol that gives them their meaning."""

    protocol: Protocol
    stamps: Stamps


def build(options: dict[str, Any], mesh: Mesh, case: Case) -> Callable[[jax.Array, jax.Array], RingStamps]:
    """Build the call from the kernel's ``options`` as in a row."""
    config = from_plain(RING, options)
    assert isinstance(config, KernelConfig)
    sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard}
    protocol = make_protocol(config, num_ranks=case.num_ranks, num_sms=hardware.num_sms(), **sizes)
    function = jax.shard_map(
        functools.partial(stamped_ring_all_gather_matmul, axis_name=AXIS, config=config),
        mesh=mesh,
        in_specs=OPERATIONS[case.op].in_specs,
        out_specs=(*OPERATIONS[case.op].out_specs, PartitionSpec(AXIS, None, None)),
        check_vma=False,
    )
    program = jax.jit(function)

    def call(lhs: jax.Array, rhs: jax.Array) -> RingStamps:
        _, stamps = program(lhs, rhs)
        return RingStamps(protocol, np.asarray(stamps.addressable_shards[0].data))

    return call
