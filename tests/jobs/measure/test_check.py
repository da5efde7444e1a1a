"""The check of a rank finds errors in either program."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from jobs.config.choices import Fault
from jobs.measure import inputs, programs
from jobs.measure.check import Subject, check
from jobs.measure.programs import Request
from jobs.records.case import Case

CASE = Case(name="tiny", m_shard=16, k=64, n_shard=32, dtype="bfloat16", num_ranks=1)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((1,), (inputs.AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])


def checked(mesh, implementation="ppermute", fault=Fault.none, **changes):
    example = inputs.operands(CASE, mesh, 0, 0)
    built = programs.build(Request("baseline", implementation), mesh, example, chain_length=5)
    subject = Subject(dataclasses.replace(built, **changes), CASE, mesh, 0, fault)
    return check(subject, calls=2, num_sets=3, chain_length=5, seed=7)


@pytest.mark.parametrize("implementation", ["ppermute", "xla", "local"])
def test_what_is_right_passes(mesh, implementation):
    found = checked(mesh, implementation)
    assert found.passed
    assert found.calls == 2 + 1 + 2
    assert found.num_elements == 5 * 16 * 32


@pytest.mark.parametrize("element", [jnp.nan, 1e4])
def test_one_wrong_element_of_a_single_call_is_found(mesh, element):
    right = jax.jit(lambda lhs, rhs: (lhs @ rhs).at[3, 4].set(element))
    found = checked(mesh, call=right)
    assert not found.passed
    assert found.num_wrong == 3


def test_a_chain_that_skips_its_last_multiply_is_found(mesh):
    """The program behind the headline time: fast, and wrong."""
    skipping = jax.jit(lambda lhs_sets, rhs_sets: lhs_sets[0] @ rhs_sets[0])
    found = checked(mesh, chain=skipping)
    assert not found.passed
    assert not found.integers_exact


def test_a_planted_fault_is_found(mesh):
    found = checked(mesh, fault=Fault.wrong_element)
    assert not found.passed
    assert found.num_wrong == 5
