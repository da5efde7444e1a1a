"""A mesh whose devices aren't in the order of their ids: jax refuses the kernels, and the project relies on that.

In another order, rank i of the axis would write into the memory of a device that isn't its neighbour (jax#29849).
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import cmkernel
from cmkernel import hardware, mosaic_gpu, mosaic_gpu_simple

ROWS, COLUMNS = P("x", None), P(None, "x")
ASCENDING = (0, 1, 2, 3, 4, 5, 6, 7)
SWAPPED = (1, 0, 2, 3, 4, 5, 6, 7)
RINGS = {
    "mosaic_gpu": functools.partial(mosaic_gpu.ring_all_gather_matmul, config=cmkernel.KernelConfig()),
    "mosaic_gpu_simple": functools.partial(
        mosaic_gpu_simple.ring_all_gather_matmul, config=cmkernel.SimpleKernelConfig()
    ),
}


def mesh_of(order, shape=(8,), names=("x",)):
    devices = np.array([jax.devices()[i] for i in order]).reshape(shape)
    return jax.sharding.Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def traced(function, mesh, *, num_ranks=8):
    """``function`` on the shards; without a mesh, over that of the context."""
    sharded = jax.shard_map(function, mesh=mesh, in_specs=(ROWS, COLUMNS), out_specs=COLUMNS, check_vma=False)
    lhs = jax.ShapeDtypeStruct((num_ranks * 128, 128), jnp.bfloat16)
    return jax.jit(sharded).trace(lhs, jax.ShapeDtypeStruct((128, num_ranks * 256), jnp.bfloat16))


def lowered(program):
    return program.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
@pytest.mark.parametrize(("shape", "names"), [((8,), ("x",)), ((1, 8), ("y", "x"))], ids=["one axis", "two axes"])
@pytest.mark.parametrize("order", [SWAPPED, ASCENDING[::-1]], ids=["swapped", "reversed"])
def test_another_order_is_refused_when_the_program_is_lowered(ring, order, shape, names):
    ring = functools.partial(ring, axis_name="x", num_sms=132)
    program = traced(ring, mesh_of(order, shape, names))
    with pytest.raises(NotImplementedError, match=r"row-major device ids. Got: \[") as error:
        lowered(program)
    assert " ".join(map(str, order)) in str(error.value)
    assert "mosaic_gpu" in lowered(traced(ring, mesh_of(ASCENDING, shape, names)))


def test_another_order_is_refused_whatever_stands_around_the_kernel(monkeypatch):
    """By the public function, in a gradient of scanned and rematerialized layers, over the mesh of the context."""
    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)

    def on_rank(lhs, rhs):
        def step(lhs, _):
            product = cmkernel.all_gather_matmul(lhs, rhs, axis_name="x")
            return lhs + product[:128, :128], jnp.sum(product.astype(jnp.float32))

        def loss(lhs):
            return jnp.sum(jax.lax.scan(jax.checkpoint(step), lhs, length=2)[1])

        value, d_lhs = jax.value_and_grad(loss)(lhs)
        return value * jnp.sum(d_lhs) * rhs

    with jax.set_mesh(mesh_of(ASCENDING)):
        assert "mosaic_gpu" in lowered(traced(on_rank, None))
    with jax.set_mesh(mesh_of(SWAPPED)), pytest.raises(NotImplementedError, match="row-major device ids"):
        lowered(traced(on_rank, None))


def test_ppermute_takes_any_order():
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.integers(-4, 5, shape), jnp.float32) for shape in ((64, 32), (32, 64)))
    product = functools.partial(cmkernel.all_gather_matmul, axis_name="x", implementation="ppermute")
    mesh = mesh_of(SWAPPED)
    sharded = jax.shard_map(product, mesh=mesh, in_specs=(ROWS, COLUMNS), out_specs=COLUMNS, check_vma=False)
    np.testing.assert_array_equal(jax.jit(sharded)(lhs, rhs), lhs @ rhs)


def test_a_further_axis_is_refused_when_the_program_is_traced(monkeypatch):
    gpu = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    ring = functools.partial(cmkernel.all_gather_matmul, axis_name="x", implementation="mosaic_gpu")
    with pytest.raises(NotImplementedError, match="axis 'x' has num_ranks=4 and must cover all num_devices=8"):
        traced(ring, mesh_of(ASCENDING, (2, 4), ("data", "x")), num_ranks=4)
