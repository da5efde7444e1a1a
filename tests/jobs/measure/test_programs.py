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
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.records.layout import Layout
from tests.jobs.composed import composed

CASE = Case(name="tiny", m_shard=16, k=64, n_shard=32, dtype="float32", num_ranks=1)
LENGTH = 5


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((1,), (inputs.AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])


def sets(mesh, count, is_local):
    draw = (
        (lambda seed: inputs.local_operands(CASE, 0, seed))
        if is_local
        else (lambda seed: inputs.operands(CASE, mesh, 0, seed))
    )
    return tuple(zip(*[draw(seed) for seed in range(count)], strict=True))


@pytest.mark.parametrize("implementation", ["ppermute", "xla", "local"])
def test_a_chain_ends_with_the_result_of_its_last_operands(mesh, implementation):
    program = programs.build(
        Request("baseline", implementation), mesh, inputs.operands(CASE, mesh, 0, 0), chain_length=LENGTH
    )
    lhs_sets, rhs_sets = sets(mesh, 3, program.is_local)
    last = (LENGTH - 1) % 3
    np.testing.assert_array_equal(program.chain(lhs_sets, rhs_sets), program.call(lhs_sets[last], rhs_sets[last]))


def test_the_two_level_ring_is_built_for_the_hosts(mesh):
    request, example = Request("ppermute_two_level", "ppermute_two_level"), inputs.operands(CASE, mesh, 0, 0)
    with pytest.raises(ValueError, match="needs to know the hosts"):
        programs.build(request, mesh, example, chain_length=LENGTH)
    layout = Layout((1,), Links(1.0, nic_gbytes_per_s=1.0))
    program = programs.build(request, mesh, example, chain_length=LENGTH, layout=layout)
    lhs_sets, rhs_sets = sets(mesh, 3, program.is_local)
    last = (LENGTH - 1) % 3
    np.testing.assert_array_equal(program.chain(lhs_sets, rhs_sets), program.call(lhs_sets[last], rhs_sets[last]))


@pytest.mark.parametrize("implementation", ["ppermute", "xla", "local"])
def test_the_compiler_keeps_every_call_of_a_chain(mesh, implementation):
    program = programs.build(
        Request("baseline", implementation), mesh, inputs.operands(CASE, mesh, 0, 0), chain_length=LENGTH
    )
    compiled = program.chain.lower(*sets(mesh, 3, program.is_local)).compile().as_text()
    assert len(re.findall(r"= f32\[16,32\]\S* (?:dot|custom-call)\(", compiled)) == LENGTH


def test_a_request_tells_what_it_turned_into(mesh):
    example = inputs.operands(CASE, mesh, 0, 0)
    opened = programs.build(Request("auto", "auto"), mesh, example, chain_length=2).opened
    assert opened.implementation == "ppermute"
    assert "platform='cpu' must be 'gpu'" in opened.reason
    with pytest.raises(NotImplementedError, match="mosaic_gpu"):
        programs.build(Request("mosaic_gpu", "mosaic_gpu", {"tile_m": 64}), mesh, example, chain_length=2)


@pytest.mark.parametrize("name", ["local_cublas", "xla_cublas"])
def test_a_multiply_by_cublas_needs_a_gpu(name, mesh):
    with pytest.raises(NotImplementedError, match=f"{name} needs a GPU: platform='cpu' must be 'gpu'"):
        programs.build(Request("baseline", name), mesh, inputs.operands(CASE, mesh, 0, 0), chain_length=2)


@pytest.mark.parametrize("name", ["local_cublas", "xla_cublas"])
def test_a_multiply_by_cublas_is_compiled_without_triton(name, mesh, monkeypatch):
    """Both programs; and they take, and are taken for, what the same baseline by XLA's choice takes."""
    example = inputs.operands(CASE, mesh, 0, 0)
    gpu = types.SimpleNamespace(platform="gpu")
    compiled = []

    def jit(function, **options):
        compiled.append(options.get("compiler_options"))
        return jax.jit(function, **options)

    monkeypatch.setattr(programs, "jax", types.SimpleNamespace(**{**vars(jax), "devices": lambda: [gpu], "jit": jit}))
    program = programs.build(Request("baseline", name), mesh, example, chain_length=LENGTH)
    without_triton = {"xla_gpu_enable_triton_gemm": False}
    assert [options for options in compiled if options] == [without_triton] * 2
    assert program.opened.implementation == name
    assert program.is_local == (name == "local_cublas")
    lhs_sets, rhs_sets = sets(mesh, 3, program.is_local)
    last = (LENGTH - 1) % 3
    np.testing.assert_array_equal(program.chain(lhs_sets, rhs_sets), program.call(lhs_sets[last], rhs_sets[last]))


def test_every_rank_draws_the_same_lhs_for_the_oracle(mesh):
    case = Case(name="tiny", m_shard=16, k=64, n_shard=32, dtype="bfloat16", num_ranks=3)
    gathered = [np.asarray(inputs.local_operands(case, rank, 7).gathered_lhs) for rank in range(3)]
    rhs = [np.asarray(inputs.local_operands(case, rank, 7).rhs) for rank in range(3)]
    np.testing.assert_array_equal(gathered[0], gathered[2])
    assert (rhs[0] != rhs[1]).any()
    shards = gathered[0].reshape(3, 16, 64)
    assert (shards[0] != shards[1]).any()
    assert abs(float(gathered[0].astype(np.float32).std()) - 1) < 0.05
    integers = np.asarray(inputs.local_operands(case, 0, 7, integers=True).gathered_lhs, np.float32)
    assert set(np.unique(integers)) == {-2, -1, 0, 1, 2}


def test_the_tiles_that_the_user_sets_reach_the_kernel_as_they_are():
    options = ("kernel.wg_dimension=M", "kernel.grid_minor_dim=M", "kernel.tile_m=64")
    request = requests_of(composed("kernel=mosaic_gpu_simple", *options))[0]
    config = cmkernel.SimpleKernelConfig(**request.config)
    assert config.wg_dimension is config.grid_minor_dim is cmkernel.MatmulDimension.M
    assert (config.cta_tile_m, config.cta_tile_n) == (128, 128)
    with pytest.raises(ValueError, match="wg_dimension='M' must be of type MatmulDimension"):
        cmkernel.SimpleKernelConfig(wg_dimension="M")
