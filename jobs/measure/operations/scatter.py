"""Matmul reduce-scatter: ``ReduceScatter(lhs @ rhs)``."""

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

# Terms of every sum of integer data, over all ranks. Each is at most 4, so no sum exceeds 256: bfloat16 holds the
# partial sums exactly, whatever their order.
_NUM_TERMS = 64
# Stream that chooses those terms. The operands' streams are not negative.
_TERMS = 2**31 - 1

_compare = jax.jit(reference.compare, compiler_options=ORACLE_OPTIONS)
_compare_reduced = jax.jit(
    reference.compare_reduced,
    compiler_options=ORACLE_OPTIONS,
    static_argnames=("num_ranks", "partial_dtype", "num_roundings"),
)


class Scatter(Operation):
    """lhs ``[D * m_shard, k]``, rhs ``[k, n_shard]`` -> ``[m_shard, n_shard]``; k is summed over all ranks."""

    in_specs = (PartitionSpec(None, AXIS), PartitionSpec(AXIS, None))
    out_specs = (PartitionSpec(AXIS, None),)

    @override
    def shapes(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return (case.num_ranks * case.m_shard, case.k), (case.k, case.n_shard)

    @override
    def run(self, functions: Functions, *operands: jax.Array) -> Shards:
        return (functions.scatter(*operands),)

    @override
    def run_sharded(self, constrain: Constrain, dtype: str, *operands: jax.Array) -> Shards:
        # Scattered before it is rounded: partial sums travel as ``dtype``.
        return (constrain(dot(*operands, out_dtype=dtype), self.out_specs[0]).astype(operands[0].dtype),)

    @override
    def run_alone(self, *operands: jax.Array) -> Shards:
        return (xla.local(*operands),)

    def alone(self, case: Case, rank: int, seed: int, *, integers: bool = False) -> Shards:
        """This rank's own operands, which give its partial sums."""
        return tuple(self.shard(case, index, rank, seed, integers=integers) for index in range(2))

    @override
    def compare(self, place: Place, results: Shards, *, num_roundings: int) -> list[Comparison]:
        case = place.case
        options = {"num_ranks": case.num_ranks, "partial_dtype": case.sent_dtype, "num_roundings": num_roundings}
        return [_compare_reduced(results[0], *self._rows_of(place), **options)]

    @override
    def compare_alone(self, place: Place, results: Shards) -> list[Comparison]:
        return [_compare(results[0], *self.alone(place.case, place.rank, place.seed))]

    @override
    def num_different(self, place: Place, results: Shards, *, alone: bool) -> int:
        if alone:
            return int(num_different(results[0], *self.alone(place.case, place.rank, place.seed, integers=True)))
        return int(num_different(results[0], *self._rows_of(place, integers=True)))

    def shard(self, case: Case, index: int, rank: int, seed: int, *, integers: bool = False) -> jax.Array:
        """Draw a shard; of integer data only ``_NUM_TERMS`` columns of lhs aren't 0, at random over all ranks."""
        drawn = super().shard(case, index, rank, seed, integers=integers)
        if index or not integers:
            return drawn
        columns = case.num_ranks * case.k
        key = jax.random.fold_in(jax.random.key(seed), _TERMS)
        terms = jax.random.choice(key, columns, (min(_NUM_TERMS, columns),), replace=False)
        mask = jnp.zeros(columns, drawn.dtype).at[terms].set(1)
        return drawn * mask[rank * case.k : (rank + 1) * case.k]

    def _rows_of(self, place: Place, *, integers: bool = False) -> tuple[jax.Array, jax.Array]:
        """The lhs rows of one rank's result ``[m_shard, D * k]``, and the whole rhs ``[D * k, n_shard]``."""
        case, rows = place.case, slice(place.rank * place.case.m_shard, (place.rank + 1) * place.case.m_shard)
        sources = range(case.num_ranks)
        lhs = [self.shard(case, 0, source, place.seed, integers=integers)[rows] for source in sources]
        rhs = [self.shard(case, 1, source, place.seed, integers=integers) for source in sources]
        return jnp.concatenate(lhs, axis=1), jnp.concatenate(rhs)
