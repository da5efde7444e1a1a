"""All-gather matmul: ``AllGather(lhs) @ rhs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, override

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from cmkernel import reference, xla
from cmkernel.dot import dot
from jobs.measure.inputs import AXIS
from jobs.measure.operations.operation import (
    ORACLE_OPTIONS,
    Constrain,
    Functions,
    Operation,
    Place,
    Shards,
    num_different,
)

if TYPE_CHECKING:
    from cmkernel.reference import Comparison
    from jobs.records.case import Case

_compare = jax.jit(reference.compare, compiler_options=ORACLE_OPTIONS)


class Gather(Operation):
    """lhs ``[m_shard, k]``, rhs ``[k, n_shard]`` -> ``[D * m_shard, n_shard]``."""

    in_specs = (PartitionSpec(AXIS, None), PartitionSpec(None, AXIS))
    out_specs = (PartitionSpec(None, AXIS),)

    @override
    def shapes(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return (case.m_shard, case.k), (case.k, case.n_shard)

    @override
    def run(self, functions: Functions, *operands: jax.Array) -> Shards:
        return (functions.gather(*operands),)

    @override
    def run_sharded(self, constrain: Constrain, dtype: str, *operands: jax.Array) -> Shards:
        del constrain, dtype
        return (dot(*operands),)

    @override
    def run_alone(self, *operands: jax.Array) -> Shards:
        return (xla.local(*operands),)

    def alone(self, case: Case, rank: int, seed: int, *, integers: bool = False) -> Shards:
        """The gathered lhs and this rank's rhs."""
        shards = [self.shard(case, 0, source, seed, integers=integers) for source in range(case.num_ranks)]
        return jnp.concatenate(shards), self.shard(case, 1, rank, seed, integers=integers)

    @override
    def compare(self, place: Place, results: Shards, *, num_roundings: int) -> list[Comparison]:
        del num_roundings
        return self.compare_alone(place, results)

    def compare_alone(self, place: Place, results: Shards) -> list[Comparison]:
        """Both have the same results and the same oracle."""
        return [_compare(results[0], *self.alone(place.case, place.rank, place.seed))]

    @override
    def num_different(self, place: Place, results: Shards, *, alone: bool) -> int:
        del alone
        return int(num_different(results[0], *self.alone(place.case, place.rank, place.seed, integers=True)))
