"""The timed programs compute the claimed results, and the compiler skips none of their calls."""

import re
import types

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import cmkernel
from cmkernel import Links
from jobs.driver.plan import requests_of
from jobs.measure import inputs, programs
from jobs.measure.operations import OPERATIONS
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.records.layout import Layout
from tests.jobs.composed import composed

CASE = Case(name="tiny", m_shard=16, k=64, n_shard=32, dtype="float32", num_ranks=1)
LENGTH = 5


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((1,), (inputs.AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])


GATHER = OPERATIONS[CASE.op]


def example(mesh):
    return GATHER.operands(CASE, mesh, 0, 0)


def build(request, mesh, **options):
    return programs.build(request, CASE, mesh, example(mesh), **{"chain_length": LENGTH, **options})


def sets(program, mesh, count):
    return [program.draw(CASE, mesh, 0, seed) for seed in range(count)]


def assert_chain_ends_with_its_last_operands(program, mesh):
    of_chain = sets(program, mesh, 3)
    (chained,), (called,) = program.chain(of_chain), program.call(*of_chain[(LENGTH - 1) % 3])
    np.testing.assert_array_equal(chained, called)


@pytest.mark.parametrize("implementation", ["ppermute", "xla", "local"])
def test_a_chain_ends_with_the_result_of_its_last_operands(mesh, implementation):
    assert_chain_ends_with_its_last_operands(build(Request("baseline", implementation), mesh), mesh)


def test_the_two_level_ring_is_built_for_the_hosts(mesh):
    request = Request("ppermute_two_level", "ppermute_two_level")
    with pytest.raises(ValueError, match="needs to know the hosts"):
        build(request, mesh)
    layout = Layout((1,), Links(1.0, nic_gbytes_per_s=1.0))
    assert_chain_ends_with_its_last_operands(build(request, mesh, layout=layout), mesh)


@pytest.mark.parametrize("implementation", ["ppermute", "xla", "local"])
def test_the_compiler_keeps_every_call_of_a_chain(mesh, implementation):
    program = build(Request("baseline", implementation), mesh)
    compiled = program.chain.lower(sets(program, mesh, 3)).compile().as_text()
    assert len(re.findall(r"= f32\[16,32\]\S* (?:dot|custom-call)\(", compiled)) == LENGTH


def test_a_request_tells_what_it_turned_into(mesh):
    opened = build(Request("auto", "auto"), mesh).opened
    assert opened.implementation == "ppermute"
    assert "platform='cpu' must be 'gpu'" in opened.reason
    with pytest.raises(NotImplementedError, match="mosaic_gpu"):
        build(Request("mosaic_gpu", "mosaic_gpu", {"tile_m": 64}), mesh)


@pytest.mark.parametrize("name", ["local_cublas", "xla_cublas"])
def test_a_multiply_by_cublas_needs_a_gpu(name, mesh):
    with pytest.raises(NotImplementedError, match=f"{name} needs a GPU: platform='cpu' must be 'gpu'"):
        build(Request("baseline", name), mesh)


@pytest.mark.parametrize("name", ["local_cublas", "xla_cublas"])
def test_a_multiply_by_cublas_is_compiled_without_triton(name, mesh, monkeypatch):
    """Both programs; and they take, and are taken for, what the same baseline by XLA's choice takes."""
    gpu = types.SimpleNamespace(platform="gpu")
    compiled = []

    def jit(function, **options):
        compiled.append(options.get("compiler_options"))
        return jax.jit(function, **options)

    monkeypatch.setattr(programs, "jax", types.SimpleNamespace(**{**vars(jax), "devices": lambda: [gpu], "jit": jit}))
    program = build(Request("baseline", name), mesh)
    without_triton = {"xla_gpu_enable_triton_gemm": False}
    assert [options for options in compiled if options] == [without_triton] * 2
    assert program.opened.implementation == name
    assert program.is_local == (name == "local_cublas")
    assert_chain_ends_with_its_last_operands(program, mesh)


def test_every_rank_draws_the_same_lhs_for_the_oracle(mesh):
    case = Case(name="tiny", m_shard=16, k=64, n_shard=32, dtype="bfloat16", num_ranks=3)
    gathered, rhs = zip(*(map(np.asarray, GATHER.alone(case, rank, 7)) for rank in range(3)), strict=True)
    np.testing.assert_array_equal(gathered[0], gathered[2])
    assert (rhs[0] != rhs[1]).any()
    shards = gathered[0].reshape(3, 16, 64)
    assert (shards[0] != shards[1]).any()
    assert abs(float(gathered[0].astype(np.float32).std()) - 1) < 0.05
    integers = np.asarray(GATHER.alone(case, 0, 7, integers=True)[0], np.float32)
    assert set(np.unique(integers)) == {-2, -1, 0, 1, 2}


def test_the_tiles_that_the_user_sets_reach_the_kernel_as_they_are():
    options = ("kernel.wg_dimension=M", "kernel.grid_minor_dim=M", "kernel.tile_m=64")
    request = requests_of(composed("kernel=mosaic_gpu_simple", *options))[0]
    config = cmkernel.SimpleKernelConfig(**request.config)
    assert config.wg_dimension is config.grid_minor_dim is cmkernel.MatmulDimension.M
    assert (config.cta_tile_m, config.cta_tile_n) == (128, 128)
    with pytest.raises(ValueError, match="wg_dimension='M' must be of type MatmulDimension"):
        cmkernel.SimpleKernelConfig(wg_dimension="M")
