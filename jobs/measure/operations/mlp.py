"""The MLP of a Llama layer under tensor and sequence parallelism, forward, and forward with backward.

``out = (silu(x @ gate) * (x @ up)) @ down``. Each rank holds rows of ``x`` and of the result, columns of ``gate`` and
``up``, and rows of ``down``. ``x`` is gathered on the way in, and the partial sums are scattered on the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, override

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from cmkernel.dot import dot
from jobs.measure.inputs import AXIS
from jobs.measure.operations import mlp_oracle
from jobs.measure.operations.operation import ORACLE_OPTIONS, Constrain, Functions, Operation, Place, Shards

if TYPE_CHECKING:
    from cmkernel.reference import Comparison
    from jobs.records.case import Case

_X, _GATE_UP, _DOWN = PartitionSpec(AXIS, None), PartitionSpec(None, None, AXIS), PartitionSpec(AXIS, None)
_compare = jax.jit(mlp_oracle.compare, compiler_options=ORACLE_OPTIONS)
_expected = jax.jit(
    mlp_oracle.expected,
    compiler_options=ORACLE_OPTIONS,
    static_argnames=("num_parts", "partial_dtype", "num_roundings"),
)


class Mlp(Operation):
    """x ``[m_shard, k]``, gate and up ``[k, 2, n_shard]``, down ``[n_shard, k]`` -> ``[m_shard, k]``."""

    in_specs: ClassVar[tuple[PartitionSpec, ...]] = (_X, _GATE_UP, _DOWN)
    out_specs: ClassVar[tuple[PartitionSpec, ...]] = (_X,)
    # The silu of an integer isn't an integer.
    has_integers = False

    @override
    def shapes(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return (case.m_shard, case.k), (case.k, 2, case.n_shard), (case.n_shard, case.k)

    @override
    def shard(self, case: Case, index: int, rank: int, seed: int, *, integers: bool = False) -> jax.Array:
        """Draw a shard; weights are scaled as in a model, so that every sum is about 1 and float16 can hold it."""
        drawn = super().shard(case, index, rank, seed, integers=integers)
        terms = {1: case.k, 2: case.num_ranks * case.n_shard}.get(index, 1)
        return drawn * jnp.asarray(terms**-0.5, drawn.dtype)

    @override
    def run(self, functions: Functions, *operands: jax.Array) -> Shards:
        x, gate_up, down = operands
        k, _, n_shard = gate_up.shape
        hidden = functions.gather(x, gate_up.reshape(k, 2 * n_shard)).reshape(-1, 2, n_shard)
        return (functions.scatter(_activated(hidden), down),)

    @override
    def run_sharded(self, constrain: Constrain, dtype: str, *operands: jax.Array) -> Shards:
        x, gate_up, down = operands
        hidden = jnp.einsum(
            "mk,kgn->mgn",
            x,
            gate_up,
            precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
            preferred_element_type=x.dtype,
        )
        activated = _activated(constrain(hidden, PartitionSpec(None, None, AXIS)))
        out = constrain(dot(activated, down, out_dtype=dtype), _X)
        return (out.astype(x.dtype),)

    @override
    def run_alone(self, *operands: jax.Array) -> Shards:
        return self.run(Functions(dot, dot), *operands)

    @override
    def alone(self, case: Case, rank: int, seed: int, *, integers: bool = False) -> Shards:
        """All rows of x, and this rank's weights."""
        return self._rows(case, 0, seed), self.shard(case, 1, rank, seed), self.shard(case, 2, rank, seed)

    @override
    def compare(self, place: Place, results: Shards, *, num_roundings: int) -> list[Comparison]:
        expected = self._of_own_rows(place, num_roundings)
        return [_compare(result, one) for result, one in zip(results, (expected.out,), strict=True)]

    @override
    def compare_alone(self, place: Place, results: Shards) -> list[Comparison]:
        return [_compare(results[0], self._of_own_weights(place).out)]

    def _of_own_rows(self, place: Place, num_roundings: int) -> mlp_oracle.Expected:
        """Expected rows of the rank; they depend on all weights."""
        case, seed = place.case, place.seed
        weights = [
            jnp.concatenate([self.shard(case, index, source, seed) for source in range(case.num_ranks)], axis=axis)
            for index, axis in ((1, 2), (2, 0))
        ]
        return _expected(
            self.shard(case, 0, place.rank, seed),
            *weights,
            *(self.shard(case, index, place.rank, seed) for index in range(3, len(self.in_specs))),
            num_parts=case.num_ranks,
            partial_dtype=case.sent_dtype,
            num_roundings=num_roundings,
        )

    def _of_own_weights(self, place: Place) -> mlp_oracle.Expected:
        """Expected results of the rank's weights; they depend on all rows."""
        return _expected(*self.alone(place.case, place.rank, place.seed))

    def _rows(self, case: Case, index: int, seed: int) -> jax.Array:
        """All ranks' rows of an operand."""
        return jnp.concatenate([self.shard(case, index, source, seed) for source in range(case.num_ranks)])


class MlpGrad(Mlp):
    """``Mlp`` with a gradient of the result ``[m_shard, k]`` as a fourth operand.

    Results are that of ``Mlp``, and the gradients of x and of the weights. The partial sums of x's gradient travel in
    the same type as those of the result.
    """

    in_specs = (_X, _GATE_UP, _DOWN, _X)
    out_specs = (_X, _X, _GATE_UP, _DOWN)

    @override
    def shapes(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return *super().shapes(case), (case.m_shard, case.k)

    @override
    def run(self, functions: Functions, *operands: jax.Array) -> Shards:
        *operands_of_forward, d_out = operands

        def forward(*inputs: jax.Array) -> jax.Array:
            return super(MlpGrad, self).run(functions, *inputs)[0]

        out, backward = jax.vjp(forward, *operands_of_forward)
        return out, *backward(d_out)

    @override
    def run_sharded(self, constrain: Constrain, dtype: str, *operands: jax.Array) -> Shards:
        *operands_of_forward, d_out = operands

        def forward(*inputs: jax.Array) -> jax.Array:
            return super(MlpGrad, self).run_sharded(constrain, dtype, *inputs)[0]

        out, backward = jax.vjp(forward, *operands_of_forward)
        return out, *(constrain(d, spec) for d, spec in zip(backward(d_out), self.in_specs[:3], strict=True))

    @override
    def alone(self, case: Case, rank: int, seed: int, *, integers: bool = False) -> Shards:
        """The same, and all rows of the gradient."""
        return *super().alone(case, rank, seed), self._rows(case, 3, seed)

    @override
    def compare(self, place: Place, results: Shards, *, num_roundings: int) -> list[Comparison]:
        rows, weights = self._of_own_rows(place, num_roundings), self._of_own_weights(place)
        expected = rows.out, rows.d_x, weights.d_gate_up, weights.d_down
        return [_compare(result, one) for result, one in zip(results, expected, strict=True)]

    @override
    def compare_alone(self, place: Place, results: Shards) -> list[Comparison]:
        expected = self._of_own_weights(place)
        return [_compare(result, one) for result, one in zip(results, expected, strict=True)]


def _activated(hidden: jax.Array) -> jax.Array:
    """``silu(gate) * up`` in float32, rounded once; hidden ``[m, 2, n]`` -> ``[m, n]``."""
    gate, up = (hidden[:, i].astype(jnp.float32) for i in range(2))
    return (jax.nn.silu(gate) * up).astype(hidden.dtype)
