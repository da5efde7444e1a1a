"""Float32 oracle, and the tolerance around it that rounding allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    import jax

# Error of an accumulation in float32, over the norms of its row and column.
# Tensor cores truncate, so a step errs by up to 2**-23, twice the unit roundoff of float32 (Fasi, Higham, Mikaitis,
# Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 2021). Factor 2: both sums may err, the
# implementation's and the oracle's. Factor 8: for independent zero-mean data the error of a sum of k products stays
# within a small multiple of unit * ||a|| * ||b||, for any k (Higham, Mary, "Sharper probabilistic backward error
# analysis for basic linear algebra kernels with random data", SISC 2020). By chance, about one element in 10**14
# exceeds a multiple of 8.
ACCUMULATION = 2 * 8 * 2.0**-23


class Comparison(NamedTuple):
    """Distance of a result from the oracle, as float32 or int32 scalars on the device."""

    num_wrong: jax.Array
    """Number of elements outside ``tolerance`` or not finite."""
    max_error: jax.Array
    """Largest absolute error."""
    relative_error: jax.Array
    """``||result - oracle|| / ||oracle||``, Frobenius norms."""
    relative_tolerance: jax.Array
    """Bound on ``relative_error``: the elements' tolerance carried over to the norms."""


def oracle(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Compute ``lhs @ rhs`` in float32: operands converted exactly, no rounding at the end.

    lhs ``[m, k]`` (gathered), rhs ``[k, n]`` -> float32 ``[m, n]``.
    """
    return jnp.dot(lhs.astype(jnp.float32), rhs.astype(jnp.float32), precision=lax.Precision.HIGHEST)


def unit_roundoff(dtype: jax.typing.DTypeLike) -> float:
    """Largest relative error of rounding to nearest in ``dtype``: half its spacing at 1."""
    return float(jnp.finfo(dtype).eps) / 2


def compare(result: jax.Array, lhs: jax.Array, rhs: jax.Array) -> Comparison:
    """Measure ``result`` against the oracle of the same operands.

    An element may differ by ``u |oracle| + 16 * 2**-23 ||a_i|| ||b_j||``. ``u`` is the unit roundoff of the result's
    dtype; the second term bounds what accumulation in float32 can lose (sources above). Meant for independent zero-mean
    data.

    result ``[m, n]``, lhs ``[m, k]`` (gathered), rhs ``[k, n]``.
    """
    return _compare(result, lhs, rhs, jnp.zeros((), jnp.float32))


def _compare(result: jax.Array, lhs: jax.Array, rhs: jax.Array, extra: jax.Array) -> Comparison:
    """Compare with ``extra`` added to each element's tolerance."""
    expected = oracle(lhs, rhs)
    row_norms = jnp.linalg.norm(lhs.astype(jnp.float32), axis=1)
    column_norms = jnp.linalg.norm(rhs.astype(jnp.float32), axis=0)
    accumulated = ACCUMULATION * row_norms[:, None] * column_norms[None, :]
    return compare_within(result, expected, unit_roundoff(result.dtype) * jnp.abs(expected) + accumulated + extra)


def compare_within(
    result: jax.Array, expected: jax.Array, tolerance: jax.Array, typical: jax.Array | None = None
) -> Comparison:
    """Measure ``result`` against ``expected``, where each element may differ by its ``tolerance``; all ``[m, n]``.

    The norm of the errors may be that of ``typical``, by default ``tolerance``.
    """
    error = jnp.abs(result.astype(jnp.float32) - expected)
    # `not <=` rather than `>`, so that a NaN counts as wrong.
    num_wrong = count(~(error <= tolerance))
    norm = jnp.linalg.norm(expected)
    allowed = jnp.linalg.norm(tolerance if typical is None else typical)
    return Comparison(num_wrong, jnp.max(error), jnp.linalg.norm(error) / norm, allowed / norm)


def compare_reduced(
    result: jax.Array,
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    num_ranks: int,
    partial_dtype: jax.typing.DTypeLike,
    num_roundings: int = 1,
) -> Comparison:
    """Measure a sum of ``num_ranks`` partial sums against the oracle over all of k.

    Rank r multiplied the r-th of ``num_ranks`` equal parts of k, and its partial sum ``p_r`` travelled in
    ``partial_dtype``. To the tolerance of ``compare`` each rounding to that dtype adds ``u_p sum_r |p_r|``, where it is
    narrower than float32: ``u_p`` is its unit roundoff, and every partial sum and every sum of them is at most ``sum_r
    |p_r|``. ``num_roundings`` is 1 where sums are float32 (``mosaic_gpu``, ``ppermute``), and up to ``num_ranks`` where
    the reduce-scatter itself adds in ``partial_dtype`` (``xla``).

    result ``[m, n]``, lhs ``[m, k]``, rhs ``[k, n]``: rows and columns of one rank or of all, and all of k.
    """
    extra = jnp.zeros(result.shape, jnp.float32)
    if jnp.finfo(partial_dtype).bits < 32:
        k_shard = lhs.shape[1] // num_ranks
        for first in range(0, lhs.shape[1], k_shard):
            extra += jnp.abs(oracle(lhs[:, first : first + k_shard], rhs[first : first + k_shard]))
        extra *= num_roundings * unit_roundoff(partial_dtype)
    return _compare(result, lhs, rhs, extra)


def num_different(result: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Number of elements of ``result`` that differ in any bit from the oracle rounded to the result's dtype.

    For integer-valued operands whose sums stay below 2**24. float32 then holds every partial sum exactly, so the order
    of the additions can't matter and the result must be exact.

    result ``[m, n]``, lhs ``[m, k]`` (gathered), rhs ``[k, n]``.
    """
    return count(result != oracle(lhs, rhs).astype(result.dtype))


def count(wrong: jax.Array) -> jax.Array:
    """Count the true elements of ``wrong``, bool ``[m, n]``, as int32.

    Exact below 2**24, and saturates just below 2**31: a count of 2**32 would wrap around to 0.
    """
    in_rows = jnp.sum(wrong, axis=1, dtype=jnp.int32)
    return jnp.minimum(jnp.sum(in_rows.astype(jnp.float32)), 2.0**31 - 2.0**7).astype(jnp.int32)
