"""Base class of the operations, and the types that their modules share."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import jax

from cmkernel import reference
from jobs.measure import inputs

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec

    from cmkernel.reference import Comparison
    from jobs.records.case import Case

Shards = tuple[jax.Array, ...]
"""One array for each operand, or for each result, of one rank."""
Multiply = Callable[[jax.Array, jax.Array], jax.Array]

# XLA would autotune some hundred kernels for the oracle's multiplies, which takes longer than running them.
ORACLE_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
num_different = jax.jit(reference.num_different, compiler_options=ORACLE_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Functions:
    """``all_gather_matmul`` and ``matmul_reduce_scatter`` of one implementation, inside ``jax.shard_map``."""

    gather: Multiply
    scatter: Multiply


@dataclasses.dataclass(frozen=True)
class Place:
    """A result's place: its case, its rank, and the seed of its operands."""

    case: Case
    rank: int
    seed: int


class Operation(abc.ABC):
    """Operands, programs and oracle of one kind of case. A rank's operand is a shard of a global array.

    Results of a program are a tuple, also where there is only one.
    """

    in_specs: ClassVar[tuple[PartitionSpec, ...]]
    out_specs: ClassVar[tuple[PartitionSpec, ...]]
    has_integers: bool = True
    """True if results of integer data are exact."""

    @abc.abstractmethod
    def shapes(self, case: Case) -> tuple[tuple[int, ...], ...]:
        """Shape of each operand's shard."""

    @abc.abstractmethod
    def run(self, functions: Functions, *operands: jax.Array) -> Shards:
        """Compute the results from a rank's shards, inside ``jax.shard_map``."""

    @abc.abstractmethod
    def run_sharded(self, constrain: Constrain, dtype: str, *operands: jax.Array) -> Shards:
        """Compute the results from the global arrays; XLA shards the work. Partial sums have ``dtype``."""

    @abc.abstractmethod
    def run_alone(self, *operands: jax.Array) -> Shards:
        """Compute one rank's work without communication, from ``alone``: the bound of every implementation."""

    @abc.abstractmethod
    def alone(self, case: Case, rank: int, seed: int, *, integers: bool = False) -> Shards:
        """Operands of ``run_alone``, with the same values as those of the ranks, drawn without communication."""

    @abc.abstractmethod
    def compare(self, place: Place, results: Shards, *, num_roundings: int) -> list[Comparison]:
        """Measure a rank's results of normal data against the oracle.

        ``num_roundings``: how often the reduce-scatter rounds a sum to the type that travels.
        """

    @abc.abstractmethod
    def compare_alone(self, place: Place, results: Shards) -> list[Comparison]:
        """Measure the results of ``run_alone`` on normal data against the oracle."""

    def num_different(self, place: Place, results: Shards, *, alone: bool) -> int:
        """Number of elements of a rank's results of integer data that aren't exact."""
        raise NotImplementedError(f"{place.case.op} has no integers")

    def shard(self, case: Case, index: int, rank: int, seed: int, *, integers: bool = False) -> jax.Array:
        """Draw a rank's shard of operand ``index``."""
        shapes = self.shapes(case)
        stream = len(shapes) * rank + index
        return inputs.draw(seed, stream, shape=shapes[index], dtype=case.dtype, integers=integers)

    def operands(self, case: Case, mesh: Mesh, rank: int, seed: int, *, integers: bool = False) -> Shards:
        """Global arrays of one call, of which this rank draws its shards."""
        return tuple(
            inputs.over_ranks(self.shard(case, index, rank, seed, integers=integers), mesh, spec)
            for index, spec in enumerate(self.in_specs)
        )


Constrain = Callable[[jax.Array, "PartitionSpec"], jax.Array]
"""Pins how XLA shards an intermediate result."""
