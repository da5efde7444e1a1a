"""The check must pass what rounding explains, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cmkernel import reference
from cmkernel.dot import dot

DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32]
M, K, N = 96, 2048, 160


def operands(dtype, seed=0):
    keys = jax.random.split(jax.random.key(seed))
    return jax.random.normal(keys[0], (M, K), dtype), jax.random.normal(keys[1], (K, N), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_oracle_agrees_with_float64(dtype):
    lhs, rhs = operands(dtype)
    exact = np.asarray(lhs, np.float64) @ np.asarray(rhs, np.float64)
    assert np.abs(np.asarray(reference.oracle(lhs, rhs)) - exact).max() < 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_a_correct_result_passes(dtype, seed):
    lhs, rhs = operands(dtype, seed)
    found = reference.compare(dot(lhs, rhs), lhs, rhs)
    assert found.num_wrong == 0
    assert found.relative_error <= found.relative_tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1e3, np.nan, np.inf])
def test_one_wrong_element_is_found(dtype, value):
    lhs, rhs = operands(dtype)
    found = reference.compare(dot(lhs, rhs).at[7, 11].set(value), lhs, rhs)
    assert found.num_wrong == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_missing_pipeline_step_is_found(dtype):
    """A kernel loses the last 16 of 2048 products of every sum."""
    lhs, rhs = operands(dtype)
    found = reference.compare(dot(lhs[:, :-16], rhs[:-16]), lhs, rhs)
    assert found.num_wrong > 0.5 * M * N
    assert found.relative_error > found.relative_tolerance


def test_accumulation_in_bfloat16_is_found():
    lhs, rhs = operands(jnp.bfloat16)
    halves = [dot(lhs[:, i : i + 64], rhs[i : i + 64]) for i in range(0, K, 64)]
    found = reference.compare(sum(halves[1:], halves[0]), lhs, rhs)
    assert found.num_wrong > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_must_match_exactly(dtype):
    keys = jax.random.split(jax.random.key(3))
    lhs, rhs = (jax.random.randint(k, s, -2, 3).astype(dtype) for k, s in zip(keys, [(M, K), (K, N)], strict=True))
    result = dot(lhs, rhs)
    assert reference.num_different(result, lhs, rhs) == 0
    other = np.asarray(result).copy()
    other[0, 0] = np.nextafter(other[0, 0], other.dtype.type(np.inf))
    assert reference.num_different(jnp.asarray(other), lhs, rhs) == 1


@pytest.mark.parametrize(("rows", "expected"), [(0, 0), (3, 3 * 2**16), (2**16, 2**31 - 128)])
def test_wrong_elements_are_counted_without_wrapping_round(rows, expected):
    """In int32, all 2**32 elements of a large result would be none."""
    wrong = jax.jit(lambda rows: reference.count(jnp.broadcast_to(jnp.arange(2**16)[:, None] < rows, (2**16, 2**16))))
    assert wrong(rows) == expected
