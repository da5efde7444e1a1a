"""The reduce-scatter kernel for D virtual ranks on one GPU: exact on integers, whatever is delayed; and a rehearsal."""

import functools

import jax
import jax.numpy as jnp
import pytest

from cmkernel import reference
from tests.gpu import attacks, scatter_attacks

SHAPE = attacks.Shape(8, 64, 16)


@pytest.mark.gpu
@pytest.mark.parametrize("delay", ["none", "scattered", "late loads, odd steps", "late sends, odd steps"])
@pytest.mark.parametrize("form", scatter_attacks.FORMS)
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_every_call_is_exact(one_gpu, num_ranks, form, delay, num_calls, timeout_s):
    attack = scatter_attacks.virtual_scatter
    assert one_gpu.call(attack, num_ranks, form, delay, calls=num_calls, timeout_s=timeout_s) == [0]


@pytest.mark.gpu
@pytest.mark.parametrize("form", scatter_attacks.FORMS)
def test_normal_data_stay_within_the_tolerance(one_gpu, form, timeout_s):
    attack = scatter_attacks.virtual_scatter
    assert one_gpu.call(attack, 4, form, "scattered", calls=20, kind="normal", timeout_s=timeout_s) == [0]


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["small tiles", "largest tiles"])
def test_every_call_gives_the_same_bits(one_gpu, form, num_calls, timeout_s):
    assert one_gpu.call(scatter_attacks.virtual_scatter_repeated, 4, form, calls=num_calls, timeout_s=timeout_s) == [0]


# Without a GPU: other multiplies in the kernel's place, wrong ones among them.


def product(lhs, rhs):
    """Compute the expected result, without rounding the partial sums."""
    out = sum(reference.oracle(a, b) for a, b in zip(lhs, rhs, strict=True))
    return out.astype(lhs.dtype).reshape(len(rhs), -1, rhs.shape[-1])


def one_wrong(lhs, rhs):
    return product(lhs, rhs).at[-1, -1, -1].add(1000)


@pytest.mark.parametrize("kind", ["integers", "normal"])
def test_the_judges_count_wrong_elements(kind):
    form = scatter_attacks.FORMS["float32 partials"]
    judge = functools.partial(scatter_attacks.judge, num_ranks=2, form=form, shape=SHAPE, calls=3, kind=kind)
    assert judge(product) == 0
    # 1 beside the elements: a norm is too far off as well.
    assert judge(one_wrong) == {"integers": 3, "normal": 6}[kind]


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize("form", scatter_attacks.FORMS)
def test_the_attacks_lower_for_cuda(form, num_ranks):
    shape = attacks.SMALL_SHAPE
    lhs = jax.ShapeDtypeStruct((num_ranks, num_ranks * shape.m_shard, shape.k), jnp.bfloat16)
    rhs = jax.ShapeDtypeStruct((num_ranks, shape.k, shape.n_shard), jnp.bfloat16)
    multiply = scatter_attacks.multiply_of(form, "late sends, odd steps", num_sms=132)
    jax.jit(multiply).trace(lhs, rhs).lower(lowering_platforms=("cuda",))
