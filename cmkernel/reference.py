"""The float32 oracle and the tolerance that rounding allows around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    import jax

# Unit of the accumulation: tensor cores truncate, so a step errs by up to 2**-23 (Fasi, Higham, Mikaitis, Pranesh,
# "Numerical behavior of NVIDIA tensor cores", PeerJ CS 2021), twice the unit roundoff of float32.
_ACCUMULATION_UNIT = 2.0**-23
# Both sums, the implementation's and the oracle's, may err. For independent zero-mean data the error of a sum of k
# products stays within a small multiple of unit * ||a|| * ||b||, whatever k (Higham, Mary, "Sharper probabilistic
# backward error analysis for basic linear algebra kernels with random data", SISC 2020); a multiple of 8 is passed
# by chance about once in 10**14 elements.
_ACCUMULATION_FACTOR = 2 * 8


class Comparison(NamedTuple):
    """Distance of a result from the oracle, as float32 or int32 scalars on the device."""

    num_wrong: jax.Array
    """Elements outside ``tolerance``, or not finite."""
    max_error: jax.Array
    """Largest absolute error."""
    relative_error: jax.Array
    """``||result - oracle|| / ||oracle||``, Frobenius norms."""
    relative_tolerance: jax.Array
    """The elements' tolerance carried over to the norms: what ``relative_error`` must not exceed."""


def oracle(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """``lhs @ rhs`` in float32: operands converted exactly, products and sums in float32, no rounding at the end.

    lhs ``[m, k]`` (gathered), rhs ``[k, n]`` -> float32 ``[m, n]``.
    """
    return jnp.dot(lhs.astype(jnp.float32), rhs.astype(jnp.float32), precision=lax.Precision.HIGHEST)


def unit_roundoff(dtype: jax.typing.DTypeLike) -> float:
    """Largest relative error of rounding to nearest in ``dtype``: half its spacing at 1."""
    return float(jnp.finfo(dtype).eps) / 2


def compare(result: jax.Array, lhs: jax.Array, rhs: jax.Array) -> Comparison:
    """Measure ``result`` against the oracle of the same operands.

    An element may differ by ``u |oracle| + 16 * 2**-23 ||a_i|| ||b_j||``: ``u`` is the roundoff of the result's dtype,
    the second term what accumulation in float32 can lose (sources above). Meant for independent zero-mean data.

    result ``[m, n]``, lhs ``[m, k]`` (gathered), rhs ``[k, n]``.
    """
    expected = oracle(lhs, rhs)
    u = unit_roundoff(result.dtype)
    row_norms = jnp.linalg.norm(lhs.astype(jnp.float32), axis=1)
    column_norms = jnp.linalg.norm(rhs.astype(jnp.float32), axis=0)
    accumulation = _ACCUMULATION_FACTOR * _ACCUMULATION_UNIT
    error = jnp.abs(result.astype(jnp.float32) - expected)
    tolerance = u * jnp.abs(expected) + accumulation * row_norms[:, None] * column_norms[None, :]
    # `not <=` rather than `>`: a NaN must count as wrong.
    num_wrong = count(~(error <= tolerance))
    norm = jnp.linalg.norm(expected)
    accumulated = accumulation * jnp.linalg.norm(row_norms) * jnp.linalg.norm(column_norms)
    return Comparison(num_wrong, jnp.max(error), jnp.linalg.norm(error) / norm, u + accumulated / norm)


def num_different(result: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Elements of ``result`` that aren't bit for bit the oracle rounded to the result's dtype.

    For integer-valued operands whose sums stay below 2**24: float32 then holds every partial sum exactly, so the order
    of the additions can't matter and the result must be exact.
    """
    return count(result != oracle(lhs, rhs).astype(result.dtype))


def count(wrong: jax.Array) -> jax.Array:
    """How many of ``wrong``, bool ``[m, n]``, as int32, which ends just below 2**31: 2**32 would wrap round to 0.

    Exact below 2**24.
    """
    in_rows = jnp.sum(wrong, axis=1, dtype=jnp.int32)
    return jnp.minimum(jnp.sum(in_rows.astype(jnp.float32)), 2.0**31 - 2.0**7).astype(jnp.int32)
