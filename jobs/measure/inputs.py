"""Random data from a seed, as shards: every rank can draw its own shard and those of all others.

A rank's oracle draws what it needs of the other ranks' operands itself. It doesn't gather them through the network
under test, so a broken collective can't spoil the reference as well.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec

AXIS = "x"
# Integers from -2 to 2: a sum of k products is at most 4 k, far below 2**24, up to which float32 is exact.
MAX_INTEGER = 2


@functools.partial(jax.jit, static_argnames=("shape", "dtype", "integers"))
def draw(
    seed: jax.Array | int, stream: jax.Array | int, *, shape: tuple[int, ...], dtype: str, integers: bool = False
) -> jax.Array:
    """Normal data, or integers from -2 to 2; ``stream`` tells the arrays of one seed apart."""
    key = jax.random.fold_in(jax.random.key(seed), stream)
    if integers:
        return jax.random.randint(key, shape, -MAX_INTEGER, MAX_INTEGER + 1, jnp.int8).astype(dtype)
    return jax.random.normal(key, shape, dtype)


def over_ranks(shard: jax.Array, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Global array of which this rank holds ``shard``."""
    shape = tuple(size * (mesh.size if axis == AXIS else 1) for size, axis in zip(shard.shape, spec, strict=True))
    sharding = jax.sharding.NamedSharding(mesh, spec)
    return jax.make_array_from_single_device_arrays(shape, sharding, [shard])
