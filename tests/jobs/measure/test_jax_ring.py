"""jax's own ring as a baseline: its tiles, its lowering for CUDA, and its refusals."""

import sys
import types

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.gpu import collective_matmul_mgpu
from jax.sharding import AxisType

from cmkernel import hardware
from jobs.measure import inputs, jax_ring, programs
from jobs.measure.programs import Request
from jobs.records.case import Case
from tests.jobs.composed import composed

REQUEST = Request("baseline", "jax_ring")


def mesh_of(num_ranks):
    devices = jax.devices()[:num_ranks]
    return jax.make_mesh((num_ranks,), (inputs.AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def operands(mesh, dtype, *, m_shard=256, k=512, n_shard=384):
    num_ranks = mesh.size
    return (
        jax.ShapeDtypeStruct((num_ranks * m_shard, k), dtype),
        jax.ShapeDtypeStruct((k, num_ranks * n_shard), dtype),
    )


def built(mesh, example):
    (rows, k), columns = example[0].shape, example[1].shape[1]
    sizes = {"m_shard": rows // mesh.size, "k": k, "n_shard": columns // mesh.size}
    case = Case(name="x", **sizes, dtype=example[0].dtype.name, num_ranks=mesh.size)
    return programs.build(REQUEST, case, mesh, example, chain_length=5)


@pytest.fixture
def hopper(monkeypatch):
    """Tracing as on an H200: jax's code asks the device for its number of SMs."""
    devices = [types.SimpleNamespace(core_count=132)]
    monkeypatch.setattr(
        collective_matmul_mgpu, "jax", types.SimpleNamespace(**{**vars(jax), "devices": lambda: devices})
    )
    monkeypatch.setattr(hardware, "unsupported_reason", lambda axis_name: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)


def choose(m_shard, k, n_shard):
    return jax_ring.plain(jax_ring.choose_config(m_shard=m_shard, k=k, n_shard=n_shard, num_sms=132))


def test_the_tutorials_shape_has_the_tutorials_config():
    tutorial = composed("kernel=mosaic_gpu_simple").kernel.config
    expected = {name: getattr(value, "name", value) for name, value in tutorial.items()}
    for shape in ((1024, 4096, 4096), (4096, 8192, 7168)):
        assert choose(*shape) | expected == choose(*shape)


def test_few_rows_have_smaller_tiles_that_keep_more_sms_busy():
    config = choose(256, 8192, 3584)
    assert (config["tile_m"], config["tile_n"]) == (64, 64)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1000, 4096, 4096), "m_shard=1000 and n_shard=4096 must be multiples of 64 and 128"),
        ((64, 4096, 64), "m_shard=64 and n_shard=64 must be multiples"),
        ((1024, 4104, 4096), "k=4104 must be a multiple of 64"),
        ((1024, 64, 4096), "k=64 must be a multiple of 64, and at least 128"),
    ],
)
def test_shapes_that_no_tiles_divide(shape, message):
    with pytest.raises(ValueError, match=message):
        choose(*shape)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_call_and_chain_lower_for_cuda(hopper, dtype):
    mesh = mesh_of(8)
    lhs, rhs = operands(mesh, dtype)
    program = built(mesh, (lhs, rhs))
    assert program.opened.implementation == "jax_ring"
    assert program.opened.config["tile_k"] == 64

    call = program.call.trace(lhs, rhs).lower(lowering_platforms=("cuda",)).as_text()
    chain = program.chain.trace([(lhs, rhs)] * 2).lower(lowering_platforms=("cuda",)).as_text()
    for text in (call, chain):
        assert text.count("custom_call @mosaic_gpu") == 1
        assert text.count("optimization_barrier") == 3, "one for each array: together they would be a tuple"
    assert chain.count("call @function") == 5


def test_what_it_cannot_run_is_refused_with_the_reason(hopper, monkeypatch):
    for num_ranks, dtype, reason in (
        (8, jnp.float32, "float32 must be float16 or bfloat16"),
        (1, jnp.float16, "2 ranks"),
    ):
        with pytest.raises(NotImplementedError, match=reason):
            built(mesh_of(num_ranks), operands(mesh_of(num_ranks), dtype))
    with pytest.raises(ValueError, match="m_shard=100 and"):
        built(mesh_of(8), operands(mesh_of(8), jnp.float16, m_shard=100))
    monkeypatch.undo()
    with pytest.raises(NotImplementedError, match="jax_ring can't run here: platform='cpu' must be 'gpu'"):
        built(mesh_of(8), operands(mesh_of(8), jnp.float16))


def test_without_absl_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, collective_matmul_mgpu.__name__, None)
    with pytest.raises(NotImplementedError, match="can't be imported"):
        choose(1024, 4096, 4096)
