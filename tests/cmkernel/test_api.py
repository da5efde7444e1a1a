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


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_float32_result_of_half_precision_operands_is_not_rounded(implementation, dtype):
    lhs, rhs = operands(4, dtype)
    result = run(lhs, rhs, implementation=implementation, out_dtype=jnp.float32)
    found = reference.compare(result, lhs, rhs)
    assert result.dtype == jnp.float32
    assert found.num_wrong == 0
    assert found.relative_error <= found.relative_tolerance < reference.unit_roundoff(dtype) / 4
    # The tolerance would see a rounding on the way.
    assert reference.compare(result.astype(dtype).astype(jnp.float32), lhs, rhs).num_wrong > 0


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
def test_the_result_of_a_batch_may_be_float32_too(implementation):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    product = functools.partial(
        cmkernel.all_gather_matmul, axis_name="x", implementation=implementation, out_dtype="float32"
    )
    rows, columns = PartitionSpec(None, "x", None), PartitionSpec(None, "x")
    function = jax.shard_map(
        product, mesh=mesh, in_specs=(rows, columns), out_specs=PartitionSpec(None, None, "x"), check_vma=False
    )
    lhs, rhs = operands(4, jnp.bfloat16)
    result = jax.jit(function)(lhs.reshape(2, -1, K), rhs)
    assert (result.shape, result.dtype) == ((2, 2 * M_SHARD, 4 * N_SHARD), jnp.float32)
    assert reference.compare(result.reshape(-1, 4 * N_SHARD), lhs, rhs).num_wrong == 0


@pytest.mark.parametrize("implementation", ["ppermute", "xla"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_the_operands_dtype_may_be_named(implementation, dtype):
    lhs, rhs = operands(4, dtype)
    named = run(lhs, rhs, implementation=implementation, out_dtype=dtype)
    assert named.dtype == dtype
    assert (named == run(lhs, rhs, implementation=implementation)).all()


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "implementation", "error", "message"),
    [
        ("float16", "bfloat16", "auto", ValueError, "out_dtype=bfloat16 must be lhs.dtype=float16 or float32"),
        ("bfloat16", jnp.float16, "xla", ValueError, "out_dtype=float16 must be lhs.dtype=bfloat16 or float32"),
        ("float32", jnp.bfloat16, "ppermute", ValueError, "out_dtype=bfloat16 must be lhs.dtype=float32 or float32"),
        ("bfloat16", "int32", "mosaic_gpu", ValueError, "out_dtype=int32 must be lhs.dtype=bfloat16 or float32"),
        (
            "bfloat16",
            jnp.float32,
            "mosaic_gpu_simple",
            NotImplementedError,
            "implementation='mosaic_gpu_simple' gives lhs.dtype=bfloat16, not out_dtype=float32",
        ),
    ],
)
def test_what_a_result_cannot_be(dtype, out_dtype, implementation, error, message):
    with pytest.raises(error, match=message):
        run(*operands(4, dtype), implementation=implementation, out_dtype=out_dtype)


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
