"""Link measurements on one rank: pairs exchange data with the collective that ``ppermute`` uses."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jobs.health.pairs import Pair

AXIS = "rank"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One rank's view of an exchange with its partner."""

    seconds: float
    is_intact: bool
    """The data that arrived are the partner's."""


class LinkSession:
    """All ranks as one mesh."""

    def __init__(self) -> None:
        self.rank = jax.process_index()
        self.mesh = jax.make_mesh(
            (jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()
        )

    def exchange(self, pairs: Sequence[Pair], num_bytes: int, repeats: int) -> Exchange | None:
        """Exchange ``num_bytes`` in both directions of each pair, ``repeats`` times; ``None`` without a partner.

        All ranks run the same program, including those without a partner.
        """
        partners = {**dict(pairs), **{b: a for a, b in pairs}}
        spec, length = PartitionSpec(AXIS), num_bytes // 4
        program = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.ppermute(x, AXIS, sorted(partners.items())),
                mesh=self.mesh,
                in_specs=spec,
                out_specs=spec,
            )
        )
        sharding = jax.sharding.NamedSharding(self.mesh, spec)
        x = jax.make_array_from_single_device_arrays(
            (length * jax.device_count(),), sharding, [_pattern(self.rank, length)]
        )
        # The first run compiles, connects, and aligns the ranks.
        received = program(x).block_until_ready()
        began = time.perf_counter()
        for _ in range(repeats):
            received = program(x)
        received.block_until_ready()
        seconds = (time.perf_counter() - began) / repeats
        if (partner := partners.get(self.rank)) is None:
            return None
        (shard,) = received.addressable_shards
        return Exchange(seconds, is_intact=bool(jnp.array_equal(shard.data, _pattern(partner, length))))


def _pattern(rank: int, length: int) -> jax.Array:
    """Numbers that identify the sender and the position."""
    return jnp.arange(length, dtype=jnp.int32) ^ (rank * 0x9E3779B1 & 0x7FFFFFFF)
