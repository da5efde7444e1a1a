"""The check of a rank finds errors in either program."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from jobs.config.choices import Fault
from jobs.measure import inputs, programs
from jobs.measure.check import Subject, check
from jobs.measure.operations import OPERATIONS
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.records.op import Op

CASE = Case(name="tiny", m_shard=16, k=64, n_shard=32, dtype="bfloat16", num_ranks=1)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((1,), (inputs.AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])


def checked(mesh, implementation="ppermute", fault=Fault.none, case=CASE, **changes):
    example = OPERATIONS[case.op].operands(case, mesh, 0, 0)
    built = programs.build(Request("baseline", implementation), case, mesh, example, chain_length=5)
    subject = Subject(dataclasses.replace(built, **changes), case, mesh, 0, fault)
    return check(subject, calls=2, num_sets=3, chain_length=5, seed=7)


@pytest.mark.parametrize("implementation", ["ppermute", "xla", "local"])
def test_what_is_right_passes(mesh, implementation):
    found = checked(mesh, implementation)
    assert found.passed
    assert found.calls == 2 + 1 + 2
    assert found.num_elements == 5 * 16 * 32


@pytest.mark.parametrize("element", [jnp.nan, 1e4])
def test_one_wrong_element_of_a_single_call_is_found(mesh, element):
    right = jax.jit(lambda lhs, rhs: ((lhs @ rhs).at[3, 4].set(element),))
    found = checked(mesh, call=right)
    assert not found.passed
    assert found.num_wrong == 3


def test_a_chain_that_skips_its_last_multiply_is_found(mesh):
    """The program behind the headline time: fast, and wrong."""
    skipping = jax.jit(lambda sets: (sets[0][0] @ sets[0][1],))
    found = checked(mesh, chain=skipping)
    assert not found.passed
    assert not found.integers_exact


@pytest.mark.parametrize("op", Op)
def test_a_planted_fault_is_found(mesh, op):
    found = checked(mesh, fault=Fault.wrong_element, case=dataclasses.replace(CASE, op=op))
    assert not found.passed
    assert found.num_wrong == (3 if op.is_layer else 5)
    assert found.integers_exact == (None if op.is_layer else False)


@pytest.mark.parametrize("rows", [1, 16])
def test_swapped_halves_of_a_scattered_result_are_found(mesh, rows):
    case = dataclasses.replace(CASE, op=Op.matmul_reduce_scatter, m_shard=rows)
    assert not checked(mesh, fault=Fault.swapped_shards, case=case).passed
