"""Two baselines: XLA shards the work by itself, with ``jit`` and shardings instead of ``shard_map``.

The shardings of operands, results and, in a layer, of the hidden activations are given; XLA inserts the collectives.
``xla_windowed`` asks it to split them into steps that overlap with the multiplies (windowed einsum).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from jobs.measure.operations.operation import Operation, Shards

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec

    from jobs.records.case import Case

WINDOWED = "xla_windowed"
SHARDED = ("xla_sharded", WINDOWED)
WINDOWED_OPTIONS = {
    "xla_gpu_threshold_for_windowed_einsum_mib": 0,
    "xla_gpu_multi_streamed_windowed_einsum": True,
    "xla_gpu_enable_latency_hiding_scheduler": True,
}
"""XLA's options for a windowed einsum of any size."""


def sharded(operation: Operation, case: Case, mesh: Mesh) -> Callable[..., Shards]:
    """Function of the global arrays, for ``jax.jit``."""

    def constrain(array: jax.Array, spec: PartitionSpec) -> jax.Array:
        return jax.lax.with_sharding_constraint(array, jax.sharding.NamedSharding(mesh, spec))

    def function(*operands: jax.Array) -> Shards:
        given = (constrain(*pair) for pair in zip(operands, operation.in_specs, strict=True))
        results = operation.run_sharded(constrain, case.sent_dtype, *given)
        return tuple(constrain(*pair) for pair in zip(results, operation.out_specs, strict=True))

    return function


def contains_windowed_einsum(function: Callable[..., Shards], example: Shards, options: dict[str, Any]) -> bool:
    """True if XLA, given ``options``, compiles ``function`` with a windowed einsum: it may decline."""
    compiled = jax.jit(function, compiler_options=options).lower(*example).compile()
    return "windowed_dot_general" in (compiled.as_text() or "")
