"""Float32 oracle of the MLP and its gradients, with the tolerance that rounding allows each element.

Every intermediate is known with a bound of its error: what its own rounding and accumulation can lose, and what the
errors of its factors can move it by. Of a sum over k products with independent errors of at most ``c_i`` and mean zero,
one in 10**13 errs by more than ``8 sqrt(sum c_i**2)`` (Hoeffding, "Probability inequalities for sums of bounded random
variables", JASA 1963).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cmkernel.reference import ACCUMULATION, Comparison, compare_within, oracle, unit_roundoff

_DEVIATIONS, _DEVIATIONS_OF_NORM = 8.0, 2.0
# Relative error of exp, division and products in float32, which the elementwise part computes in.
_ELEMENTWISE = 2.0**-20
# Largest second derivative of silu.
_SILU_CURVATURE = 0.5


class Value(NamedTuple):
    """Float32 values, and a bound of the error that a correct result may have."""

    value: jax.Array
    error: jax.Array
    spread: jax.Array | float = 0.0
    """Standard deviation, at most, of the part of the error that comes from the factors; ``error`` has 8 of them."""


class Expected(NamedTuple):
    """Results of the MLP ``[m, k]``, and gradients of the same shapes as the operands; ``None`` without a cotangent."""

    out: Value
    d_x: Value | None = None
    d_gate_up: Value | None = None
    d_down: Value | None = None


def compare(result: jax.Array, expected: Value) -> Comparison:
    """Measure ``result`` against the oracle; both of the same shape.

    The norm of all errors together may be that of twice their standard deviations: among many they average out.
    """
    value, error, spread = expected
    typical = error - (_DEVIATIONS - _DEVIATIONS_OF_NORM) * spread
    return compare_within(*(one.reshape(-1, one.shape[-1]) for one in (result, value, error, typical)))


def expected(
    x: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    d_out: jax.Array | None = None,
    *,
    num_parts: int = 1,
    partial_dtype: str = "float32",
    num_roundings: int = 0,
) -> Expected:
    """Results for rows of x and columns of the weights.

    Args:
      x: rows ``[m, k]``.
      gate_up: columns of gate and up ``[k, 2, n]``.
      down: rows of down ``[n, k]``.
      d_out: gradient of the result ``[m, k]``.
      num_parts: number of ranks whose partial sums are added, each of an equal part of n.
      partial_dtype: type that they travel in.
      num_roundings: how often a sum is rounded to it.
    """
    u = unit_roundoff(x.dtype)
    unit = u + _ELEMENTWISE
    lost = num_roundings * unit_roundoff(partial_dtype) if jnp.finfo(partial_dtype).bits < 32 else 0.0
    rounding = _Rounding(u, lost, num_parts)
    rows, w_gate, w_up, w_down = (_exact(one) for one in (x, gate_up[:, 0], gate_up[:, 1], down))
    gate, up = rounding.product(rows, w_gate), rounding.product(rows, w_up)
    sigmoid = jax.nn.sigmoid(gate.value)
    silu = gate.value * sigmoid
    slope = sigmoid * (1 + gate.value * (1 - sigmoid))
    slope_error = _SILU_CURVATURE * gate.error
    silu_error = (jnp.abs(slope) + slope_error) * gate.error
    hidden = silu * up.value
    up_size = jnp.abs(up.value) + up.error
    h = Value(hidden, silu_error * up_size + jnp.abs(silu) * up.error + unit * jnp.abs(hidden))
    out = rounding.sum_of_parts([(h, w_down)])
    if d_out is None:
        return Expected(out)
    cotangent = _exact(d_out)
    d_h = rounding.product(cotangent, _transposed(w_down))
    d_h_size = jnp.abs(d_h.value)
    d_up = Value(
        d_h.value * silu,
        d_h.error * (jnp.abs(silu) + silu_error) + d_h_size * silu_error + unit * jnp.abs(d_h.value * silu),
    )
    d_gate = Value(
        d_h.value * up.value * slope,
        (d_h.error * up_size + d_h_size * up.error) * (jnp.abs(slope) + slope_error)
        + d_h_size * jnp.abs(up.value) * slope_error
        + unit * jnp.abs(d_h.value * up.value * slope),
    )
    d_x = rounding.sum_of_parts([(d_gate, _transposed(w_gate)), (d_up, _transposed(w_up))])
    d_both = [rounding.product(_transposed(rows), one) for one in (d_gate, d_up)]
    d_gate_up = Value(*(jnp.stack(pair, axis=1) for pair in zip(*d_both, strict=True)))
    return Expected(out, d_x, d_gate_up, rounding.product(_transposed(h), cotangent))


class _Rounding(NamedTuple):
    """Rounding errors of a multiply of half-precision operands."""

    u: float
    """Unit roundoff of its result."""
    lost: float
    """Share of ``sum_r |partial_r|`` that the type which travels may lose."""
    num_parts: int

    def product(self, lhs: Value, rhs: Value) -> Value:
        """``lhs @ rhs``, rounded once."""
        value = oracle(lhs.value, rhs.value)
        return _sum(value, self.u * jnp.abs(value), lhs, rhs)

    def sum_of_parts(self, factors: list[tuple[Value, Value]]) -> Value:
        """Sum of ``lhs @ rhs`` over ``factors`` and ranks, each of which has an equal part of the contracted size."""
        size = factors[0][0].value.shape[1] // self.num_parts
        total = sizes = jnp.zeros((), jnp.float32)
        for first in range(0, size * self.num_parts, size):
            last = first + size
            part = sum(oracle(lhs.value[:, first:last], rhs.value[first:last]) for lhs, rhs in factors)
            total, sizes = total + part, sizes + jnp.abs(part)
        joined = _joined([lhs for lhs, _ in factors], axis=1)
        weights = _joined([rhs for _, rhs in factors], axis=0)
        return _sum(total, self.u * jnp.abs(total) + self.lost * sizes, joined, weights)


def _sum(value: jax.Array, rounding: jax.Array, lhs: Value, rhs: Value) -> Value:
    """``lhs @ rhs``, whose error has three parts: its rounding, its accumulation, and the errors of its factors."""
    rows, columns = jnp.linalg.norm(lhs.value, axis=1), jnp.linalg.norm(rhs.value, axis=0)
    accumulation = ACCUMULATION * rows[:, None] * columns[None, :]
    spread = jnp.sqrt(oracle(lhs.error**2, rhs.value**2 + rhs.error**2) + oracle(lhs.value**2, rhs.error**2))
    return Value(value, rounding + accumulation + _DEVIATIONS * spread, spread)


def _exact(operand: jax.Array) -> Value:
    value = operand.astype(jnp.float32)
    return Value(value, jnp.zeros_like(value))


def _joined(parts: list[Value], axis: int) -> Value:
    return Value(*(jnp.concatenate([part[i] for part in parts], axis=axis) for i in range(2)))


def _transposed(one: Value) -> Value:
    return Value(one.value.T, one.error.T)
