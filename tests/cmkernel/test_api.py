"""The public function on a mesh of eight CPU devices."""

import functools
import logging

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

import cmkernel
from cmkernel import reference

M_SHARD, K, N_SHARD = 16, 128, 24


def run(lhs, rhs, *, shape=(4,), names=("x",), axis_name="x", **options):
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))
    function = jax.shard_map(
        functools.partial(cmkernel.all_gather_matmul, axis_name=axis_name, **options),
        mesh=mesh,
        in_specs=(PartitionSpec(axis_name, None), PartitionSpec(None, axis_name)),
        out_specs=PartitionSpec(None, axis_name),
        check_vma=False,
    )
    return jax.jit(function)(lhs, rhs)


def operands(num_ranks, dtype):
    keys = jax.random.split(jax.random.key(num_ranks))
    lhs = jax.random.normal(keys[0], (num_ranks * M_SHARD, K), dtype)
    return lhs, jax.random.normal(keys[1], (K, num_ranks * N_SHARD), dtype)


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_it_multiplies_the_gathered_lhs(implementation, num_ranks, dtype):
    lhs, rhs = operands(num_ranks, dtype)
    result = run(lhs, rhs, shape=(num_ranks,), implementation=implementation)
    found = reference.compare(result, lhs, rhs)
    assert result.dtype == dtype
    assert found.num_wrong == 0
    assert found.relative_error <= found.relative_tolerance


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
def test_it_gathers_along_the_named_axis_of_a_larger_mesh(implementation):
    lhs, rhs = operands(4, jnp.float32)
    result = run(lhs, rhs, shape=(2, 4), names=("data", "x"), implementation=implementation)
    assert reference.compare(result, lhs, rhs).num_wrong == 0


def test_mosaic_gpu_is_refused_with_the_reason():
    with pytest.raises(NotImplementedError, match="platform='cpu' must be 'gpu'"):
        run(*operands(4, jnp.bfloat16), implementation="mosaic_gpu")


def test_auto_logs_why_it_does_not_take_the_kernel(caplog):
    with caplog.at_level(logging.INFO, logger="cmkernel"):
        run(*operands(4, jnp.bfloat16))
    assert "takes ppermute, as mosaic_gpu can't run here: platform='cpu'" in caplog.text


@pytest.mark.parametrize(("m_shard", "expected"), [(8, "xla"), (512, "mosaic_gpu")])
def test_auto_takes_what_the_model_expects_to_be_fastest_where_all_can_run(m_shard, expected, monkeypatch, caplog):
    monkeypatch.setattr(cmkernel.hardware, "unsupported_reason", lambda axis_name: None)
    monkeypatch.setattr(cmkernel.hardware, "num_sms", lambda: 132)
    choices = []

    def choose(lhs, rhs):
        choices.append(cmkernel.choose_implementation(lhs, rhs, axis_name="x"))
        return lhs

    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec("x", None), PartitionSpec(None, "x")
    operands = jnp.zeros((2 * m_shard, 4096), jnp.bfloat16), jnp.zeros((4096, 2 * 4096), jnp.bfloat16)
    with caplog.at_level(logging.INFO, logger="cmkernel"):
        jax.eval_shape(jax.shard_map(choose, mesh=mesh, in_specs=specs, out_specs=specs[0]), *operands)
    assert choices[0].implementation == expected
    assert (choices[0].config is not None) == (expected == "mosaic_gpu")
    assert choices[0].reason.startswith("expected to be the fastest: mosaic_gpu ")
    assert f"takes {expected}, expected" in caplog.text


@pytest.mark.parametrize(
    ("lhs", "rhs", "options", "message"),
    [
        ((64, 32), (16, 64), {}, "must agree in k"),
        ((64, 32), (32, 64), {"implementation": "nccl"}, "implementation='nccl' must be one of auto, mosaic_gpu"),
        ((64, 32), (32, 64), {"implementation": "xla", "config": cmkernel.KernelConfig()}, "has no tiles"),
    ],
)
def test_mistakes_raise_before_compilation(lhs, rhs, options, message):
    with pytest.raises(ValueError, match=message):
        run(jnp.zeros(lhs, jnp.bfloat16), jnp.zeros(rhs, jnp.bfloat16), **options)


def test_dtypes_must_match_and_be_floating():
    lhs, rhs = operands(4, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"lhs.dtype=bfloat16 and rhs.dtype=float16 must be the same"):
        run(lhs, rhs.astype(jnp.float16))
    with pytest.raises(ValueError, match=r"lhs.dtype=int8 must be float16, bfloat16 or float32"):
        run(lhs.astype(jnp.int8), rhs.astype(jnp.int8))


def test_the_ring_lets_xla_overlap_its_exchange():
    """Each exchange must be independent of the multiply beside it, or nothing can run in parallel."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    function = jax.shard_map(
        functools.partial(cmkernel.all_gather_matmul, axis_name="x", implementation="ppermute"),
        mesh=mesh,
        in_specs=(PartitionSpec("x", None), PartitionSpec(None, "x")),
        out_specs=PartitionSpec(None, "x"),
        check_vma=False,
    )
    jaxpr = jax.make_jaxpr(function)(*operands(4, jnp.bfloat16)).jaxpr.eqns[0].params["jaxpr"]
    (product,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "custom_vjp_call"]
    jaxpr = product.params["call_jaxpr"].jaxpr
    depends_on_a_multiply = set()
    exchanges = 0
    for eqn in jaxpr.eqns:
        tainted = any(v in depends_on_a_multiply for v in eqn.invars if not hasattr(v, "val"))
        if eqn.primitive.name == "ppermute":
            exchanges += 1
            assert not tainted
        if tainted or eqn.primitive.name == "dot_general" or "dot" in str(eqn.params.get("name", "")):
            depends_on_a_multiply.update(eqn.outvars)
    assert exchanges == 3
