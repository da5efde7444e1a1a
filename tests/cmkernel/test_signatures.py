"""The shapes that the public signatures promise, enforced: arguments, result, and the dimensions that they share."""

import functools
import inspect
import typing

import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from jax.sharding import AxisType, PartitionSpec

import cmkernel
from cmkernel import api, choice

NUM_RANKS = 4
# The library imports these for type checkers alone.
NAMES = {"Array": jax.Array, "Float": jaxtyping.Float}


def enforced(function):
    """``function`` with the jaxtyping shapes of its signature checked; a dimension has one size throughout a call."""
    hints = typing.get_type_hints(function, localns=NAMES)
    shapes = {name: hint for name, hint in hints.items() if is_shape(hint)}
    signature = inspect.signature(function)

    def check(name, value):
        if not isinstance(value, shapes[name]):
            raise TypeError(f"{name} has shape {value.shape} and dtype {value.dtype}, not {shapes[name].__name__}")

    @functools.wraps(function)
    def call(*args, **options):
        with jaxtyping.jaxtyped("context"):
            for name, value in signature.bind(*args, **options).arguments.items():
                if name in shapes:
                    check(name, value)
            result = function(*args, **options)
            if "return" in shapes:
                check("return", result)
            return result

    call.shapes = shapes
    return call


def is_shape(hint):
    return inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)


def run(function, lhs_shape, rhs_shape, dtype=jnp.float32):
    """Trace ``function`` per rank, with these shapes per rank."""
    mesh = jax.make_mesh((NUM_RANKS,), ("x",), devices=jax.devices()[:NUM_RANKS], axis_types=(AxisType.Auto,))
    replicated = PartitionSpec()
    sharded = jax.shard_map(
        function, mesh=mesh, in_specs=(replicated, replicated), out_specs=replicated, check_vma=False
    )
    return jax.eval_shape(sharded, jax.ShapeDtypeStruct(lhs_shape, dtype), jax.ShapeDtypeStruct(rhs_shape, dtype))


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (cmkernel.all_gather_matmul, {"lhs", "rhs", "return"}),
        (cmkernel.matmul_reduce_scatter, {"lhs", "rhs", "return"}),
        (cmkernel.choose_implementation, {"lhs", "rhs"}),
    ],
)
def test_the_public_functions_state_their_shapes(function, names):
    assert set(enforced(function).shapes) == names


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "ppermute_two_level", "xla"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_shapes_are_as_promised(implementation, batch):
    multiply = functools.partial(
        enforced(api.all_gather_matmul), axis_name="x", implementation=implementation, devices_per_host=2
    )
    assert run(multiply, (*batch, 16, 32), (32, 24)).shape == (*batch, NUM_RANKS * 16, 24)


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_shapes_of_the_reduce_scatter_are_as_promised(implementation, batch):
    multiply = functools.partial(
        enforced(api.matmul_reduce_scatter), axis_name="x", implementation=implementation, out_dtype=jnp.float32
    )
    assert run(multiply, (*batch, NUM_RANKS * 16, 32), (32, 24)).shape == (*batch, 16, 24)


def test_a_choice_takes_the_shapes_of_the_call():
    def choose(lhs, rhs):
        assert enforced(choice.choose_implementation)(lhs, rhs, axis_name="x").implementation == "ppermute"
        return lhs

    run(choose, (16, 32), (32, 24))


@pytest.mark.parametrize(
    "function", [cmkernel.all_gather_matmul, cmkernel.matmul_reduce_scatter, cmkernel.choose_implementation]
)
@pytest.mark.parametrize(
    ("lhs", "rhs", "dtype", "name"),
    [
        pytest.param((16, 32), (31, 24), jnp.float32, "rhs", id="another k"),
        pytest.param((16, 32), (2, 32, 24), jnp.float32, "rhs", id="batched rhs"),
        pytest.param((32,), (32, 24), jnp.float32, "lhs", id="lhs is a vector"),
        pytest.param((16, 32), (32, 24), jnp.int8, "lhs", id="integers"),
    ],
)
def test_wrong_operands_fail(function, lhs, rhs, dtype, name):
    with pytest.raises(TypeError, match=f"{name} has shape"):
        run(functools.partial(enforced(function), axis_name="x"), lhs, rhs, dtype)


@pytest.mark.parametrize(
    "spoil", [lambda out: out[..., :-1], lambda out: out[0], lambda out: out[:2], lambda out: out.astype(jnp.int32)]
)
def test_a_wrong_result_fails(spoil):
    @functools.wraps(cmkernel.all_gather_matmul)
    def spoiled(*args, **options):
        return spoil(cmkernel.all_gather_matmul(*args, **options))

    with pytest.raises(TypeError, match="return has shape"):
        run(functools.partial(enforced(spoiled), axis_name="x"), (3, 16, 32), (32, 24))
