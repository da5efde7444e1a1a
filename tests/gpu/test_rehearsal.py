"""The attacks without a GPU: other multiplies in the kernel's place, wrong ones among them."""

import functools
import os
import time

import jax
import jax.numpy as jnp
import pytest

from cmkernel.virtual_ring import virtual_ring_all_gather_matmul
from tests.gpu import attacks, ranks

SHAPE = attacks.Shape(8, 64, 16)


def product(lhs, rhs):
    """Result of the virtual ring, computed by einsum."""
    out = jnp.einsum("smk,dkn->dsmn", lhs, rhs, preferred_element_type=jnp.float32).astype(lhs.dtype)
    return out.reshape(len(rhs), -1, rhs.shape[-1])


def one_wrong(lhs, rhs):
    """The product with one wrong element of the last rank."""
    return product(lhs, rhs).at[-1, -1, -1].add(1000)


@pytest.mark.parametrize("kind", attacks.JUDGES)
def test_the_judges_count_wrong_elements(kind):
    judge = functools.partial(attacks.judge_virtual_ring, num_ranks=2, shape=SHAPE, calls=3, kind=kind)
    assert judge(product) == 0
    # 1 beside the elements: a norm is too far off as well.
    assert judge(one_wrong) == {"integers": 3, "normal": 6}[kind]


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize("form", attacks.SMALL_FORMS)
def test_the_attacks_lower_for_cuda(form, num_ranks):
    shape, config = attacks.SMALL_SHAPE, attacks.SMALL_FORMS[form]
    multiply = functools.partial(
        virtual_ring_all_gather_matmul, config=config, delay=attacks.DELAYS["late sends, odd steps"], num_sms=132
    )
    lhs = jax.ShapeDtypeStruct((num_ranks, shape.m_shard, shape.k), jnp.bfloat16)
    rhs = jax.ShapeDtypeStruct((num_ranks, shape.k, shape.n_shard), jnp.bfloat16)
    jax.jit(multiply).trace(lhs, rhs).lower(lowering_platforms=("cuda",))


@pytest.fixture(scope="module")
def world():
    world = ranks.Ranks(num_on_cpu=2)
    yield world
    world.kill()


@pytest.mark.slow
def test_a_ring_over_processes(world):
    assert world.call(attacks.ring, attacks.HEURISTIC, calls=3, late_ranks=True) == [0, 0]
    assert world.call(attacks.ring, attacks.HEURISTIC, calls=2, kind="normal", out_dtype="float32") == [0, 0]
    assert all("must be 'gpu'" in reason for reason in world.call(attacks.unsupported_reason))


@pytest.mark.slow
def test_ranks_that_fail_or_hang_are_replaced(world):
    first = world.call(os.getpid)
    with pytest.raises(KeyError, match="no such form"):
        world.call(attacks.virtual_ring, 2, "no such form", calls=1)
    second = world.call(os.getpid)
    with pytest.raises(TimeoutError, match="2 of 2 ranks hung in sleep"):
        world.call(time.sleep, 60, timeout_s=0.2)
    third = world.call(os.getpid)
    assert len({*first, *second, *third}) == 6


@pytest.mark.parametrize(
    ("visible", "gpus"), [("0,2", ["0", "2"]), ("", []), ("-1", []), ("NoDevFiles", []), ("GPU-8f", ["GPU-8f"])]
)
def test_visible_gpus(visible, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert ranks.visible_gpus() == gpus
