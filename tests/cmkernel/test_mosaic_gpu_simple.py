"""The Mosaic GPU kernel without a GPU: interpreted with race detection, lowered for CUDA, and refused on a CPU."""

from __future__ import annotations

import ctypes
import functools
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import PartitionSpec as P

from cmkernel import all_gather_matmul, hardware, mosaic_gpu_simple, reference
from cmkernel.config import MatmulDimension, SimpleKernelConfig
from tests.parameters import mostly_slow

RACE = "RACE DETECTED"  # What the interpreter prints.
# Copies that share one of the interpreter's TMA threads count as ordered, which would hide races between them.
INTERPRET = plgpu.InterpretGPUParams(detect_races=True, num_tma_threads_per_device=199)
M = MatmulDimension.M
SMALL = SimpleKernelConfig(tile_m=64, tile_n=64, max_concurrent_steps=2)


def integers(seed: int, shape: tuple[int, int], dtype) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(-4, 5, shape), dtype)


def normals(seed: int, shape: tuple[int, int], dtype) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def mesh_of(num_ranks: int, *, axis_names=("x",)) -> jax.sharding.Mesh:
    shape = (1,) * (len(axis_names) - 1) + (num_ranks,)
    auto = (jax.sharding.AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, axis_names, devices=jax.devices()[:num_ranks], axis_types=auto)


def sharded(function, mesh: jax.sharding.Mesh):
    return jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=(P("x", None), P(None, "x")), out_specs=P(None, "x"), check_vma=False
        )
    )


def interpreted(function):
    """``function``, with its kernels interpreted on the CPU."""
    compiled = jax.jit(function)

    def call(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        with plgpu.force_gpu_interpret_mode(INTERPRET):
            # Wait here: a program waiting for the result would hold one of the few CPU threads the interpreter needs.
            return jax.block_until_ready(compiled(lhs, rhs))

    return call


# The multiply, interpreted.


@pytest.mark.parametrize("dtype", mostly_slow([jnp.float16, jnp.bfloat16], fast=1))
@pytest.mark.parametrize(
    ("config", "shape", "num_sms"),
    [
        pytest.param(SMALL, (64, 64, 128), 1, id="one tile, fewer k steps than slots"),
        pytest.param(SMALL, (192, 320, 256), 3, id="six tiles on three CTAs, odd k steps"),
        pytest.param(SMALL, (128, 128, 128), 3, id="a CTA without tiles"),
        pytest.param(
            SimpleKernelConfig(tile_m=64, tile_n=64, wg_dimension=M, grid_minor_dim=M, grid_tile_width=1),
            (256, 192, 128),
            2,
            id="warpgroups and raster along M",
        ),
        pytest.param(
            SimpleKernelConfig(tile_m=64, tile_n=192, tile_k=32, max_concurrent_steps=3, grid_tile_width=2),
            (128, 160, 384),
            1,
            id="odd number of epilogue pieces",
        ),
        pytest.param(SimpleKernelConfig(tile_k=128, max_concurrent_steps=2), (256, 256, 256), 2, id="tile_k=128"),
    ],
)
def test_multiply_is_exact_and_free_of_races(config, shape, num_sms, dtype, capsys):
    m, k, n = shape
    multiply = interpreted(functools.partial(mosaic_gpu_simple.local_matmul, config=config, num_sms=num_sms))
    lhs, rhs = integers(0, (m, k), dtype), integers(1, (k, n), dtype)
    assert reference.num_different(multiply(lhs, rhs), lhs, rhs) == 0
    lhs, rhs = normals(2, (m, k), dtype), normals(3, (k, n), dtype)
    assert reference.compare(multiply(lhs, rhs), lhs, rhs).num_wrong == 0
    assert RACE not in capsys.readouterr().out


def test_the_race_detector_sees_a_wait_that_is_too_short(monkeypatch, capsys):
    wait = plgpu.wait_smem_to_gmem
    # One copy too many stays in flight: the epilogue overwrites a piece that its store may still be reading.
    monkeypatch.setattr(plgpu, "wait_smem_to_gmem", lambda n, wait_read_only: wait(n and n + 1, wait_read_only))
    config = SimpleKernelConfig(tile_m=64, max_concurrent_steps=2)
    lhs, rhs = integers(0, (64, 64), jnp.bfloat16), integers(1, (64, 512), jnp.bfloat16)
    interpreted(functools.partial(mosaic_gpu_simple.local_matmul, config=config, num_sms=1))(lhs, rhs)
    assert RACE in capsys.readouterr().out


# The device steps, interpreted: a rank that is its own neighbour.


class RolledRows:
    """Stands for the next rank's memory: this rank's own, where each M tile lands one tile further down."""

    def __init__(self, ref, device_id, device_id_type):
        self.ref = ref

    @property
    def at(self):
        return self

    def __getitem__(self, index):
        if not isinstance(index, tuple):
            return RolledRows(self.ref.at[index], None, None)
        rows, columns = index
        start = jax.lax.rem(rows.start + rows.size, self.ref.shape[0])
        return self.ref.at[pl.ds(start, rows.size), columns]


@pytest.mark.parametrize("num_ranks", mostly_slow([2, 3], fast=1))
@pytest.mark.parametrize(
    "config", [SMALL, SimpleKernelConfig(tile_m=64, tile_n=64, wg_dimension=M, max_concurrent_steps=3)]
)
def test_what_a_rank_sends_is_what_it_multiplies_next(config, num_ranks, monkeypatch, capsys):
    """The interpreter knows no other rank, so this one sends to itself, and every shard is the last one, rolled.

    Semaphores are dispensable: there is one CTA, and after a shard's last send it loads more tiles than it has slots.
    """
    rank = 1
    lax = types.SimpleNamespace(**vars(jax.lax))
    lax.axis_size = lambda axis_name: num_ranks
    lax.axis_index = lambda axis_name: jnp.int32(rank) if axis_name == "x" else jax.lax.axis_index(axis_name)
    monkeypatch.setattr(mosaic_gpu_simple, "lax", lax)
    monkeypatch.setattr(plgpu, "remote_ref", RolledRows)
    monkeypatch.setattr(pl, "get_global", lambda what: mock.MagicMock())
    monkeypatch.setattr(pl, "semaphore_wait", lambda *args, **kwargs: None)
    monkeypatch.setattr(pl, "semaphore_signal", lambda *args, **kwargs: None)
    monkeypatch.setattr(mosaic_gpu_simple, "_fence_async_proxy", lambda: None)
    lhs, rhs = integers(0, (384, 256), jnp.bfloat16), integers(1, (256, 256), jnp.bfloat16)
    multiply = functools.partial(mosaic_gpu_simple.ring_all_gather_matmul, axis_name="x", config=config, num_sms=1)
    shards = {(rank + step) % num_ranks: jnp.roll(lhs, step * config.cta_tile_m, axis=0) for step in range(num_ranks)}
    gathered = jnp.concatenate([shards[index] for index in range(num_ranks)])
    assert reference.num_different(interpreted(multiply)(lhs, rhs), gathered, rhs) == 0
    assert RACE not in capsys.readouterr().out


# The ring, lowered for CUDA: everything short of ptxas.


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "config",
    [
        SimpleKernelConfig(),
        SimpleKernelConfig(wg_dimension=M, grid_minor_dim=M, grid_tile_width=4),
        SimpleKernelConfig(tile_m=64, tile_n=256, wg_dimension=M),
        SimpleKernelConfig(tile_n=192, max_concurrent_steps=3),
        SimpleKernelConfig(tile_m=64, tile_n=16, tile_k=16, epi_tile_n=16),
    ],
    ids=str,
)
def test_ring_lowers_for_cuda(config, num_ranks):
    ring = functools.partial(mosaic_gpu_simple.ring_all_gather_matmul, axis_name="x", config=config, num_sms=132)
    text = lowered(ring, mesh_of(num_ranks), num_ranks=num_ranks, dtype=jnp.bfloat16)
    assert "mosaic_gpu" in text
    # Receive slots exist for D > 1 only, as the kernel's second result.
    assert (f"tensor<{num_ranks - 1}x1024x768xbf16>" in text) == (num_ranks > 1)


def test_ring_lowers_on_a_mesh_with_another_axis_of_size_one():
    ring = functools.partial(
        mosaic_gpu_simple.ring_all_gather_matmul, axis_name="x", config=SimpleKernelConfig(), num_sms=132
    )
    assert "mosaic_gpu" in lowered(ring, mesh_of(2, axis_names=("y", "x")), num_ranks=2, dtype=jnp.float16)


def lowered(function, mesh: jax.sharding.Mesh, *, num_ranks: int, dtype) -> str:
    lhs = jax.ShapeDtypeStruct((num_ranks * 1024, 768), dtype)
    rhs = jax.ShapeDtypeStruct((768, num_ranks * 768), dtype)
    return sharded(function, mesh).trace(lhs, rhs).lower(lowering_platforms=("cuda",)).as_text()


# Errors.


@pytest.mark.parametrize(
    ("lhs", "rhs", "error", "match"),
    [
        (((64, 64), jnp.int8), ((64, 128), jnp.int8), NotImplementedError, "int8.*float16 or bfloat16.*ppermute"),
        (((64, 64), jnp.float32), ((64, 128), jnp.float32), NotImplementedError, "float32"),
        (((64, 64), jnp.float16), ((64, 128), jnp.bfloat16), ValueError, r"float16\[64, 64\].*one dtype"),
        (((64, 64), jnp.float16), ((128, 128), jnp.float16), ValueError, r"\[128, 128\].*must be \[m_shard, k\]"),
        (((64,), jnp.float16), ((64, 128), jnp.float16), ValueError, r"float16\[64\]"),
        (((96, 64), jnp.float16), ((64, 128), jnp.float16), ValueError, "m_shard=96 .* multiple of cta_tile_m=64"),
        (((64, 96), jnp.float16), ((96, 128), jnp.float16), ValueError, "k=96 .* multiple of tile_k=64"),
        (((64, 64), jnp.float16), ((64, 64), jnp.float16), ValueError, "n_shard=64 .* multiple of cta_tile_n=128"),
    ],
)
def test_operands_that_do_not_fit(lhs, rhs, error, match):
    with pytest.raises(error, match=match):
        mosaic_gpu_simple.local_matmul(jnp.zeros(*lhs), jnp.zeros(*rhs), config=SMALL, num_sms=1)


def test_number_of_sms_is_unknown_on_a_cpu():
    lhs, rhs = jnp.zeros((64, 64), jnp.float16), jnp.zeros((64, 128), jnp.float16)
    with pytest.raises(NotImplementedError, match="num_sms is unknown for device_kind='cpu'"):
        mosaic_gpu_simple.local_matmul(lhs, rhs, config=SMALL)


# Requirements on the machine.


def test_cpu_is_refused():
    ring = functools.partial(all_gather_matmul, axis_name="x", implementation="mosaic_gpu_simple", config=SMALL)
    with pytest.raises(NotImplementedError, match=r"platform='cpu' must be 'gpu'.*ppermute"):
        lowered(ring, mesh_of(8), num_ranks=8, dtype=jnp.bfloat16)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({}, None),
        ({"num_processes": 1, "num_local_devices": 8, "nccl": None}, None),
        ({"capability": "10.0"}, "compute_capability='10.0' of NVIDIA H200 must be '9.0'"),
        ({"num_local_devices": 4, "num_processes": 2}, "num_devices=8 over num_processes=2 with num_local_devices=4"),
        ({"num_ranks": 4}, "axis 'x' has num_ranks=4 and must cover all num_devices=8"),
        (
            {"num_ranks": 64, "num_devices": 64, "num_processes": 64},
            "axis 'x' has num_ranks=64; XLA supports at most 32 peers",
        ),
        ({"nccl": (2, 28, 9)}, "NCCL 2.28.9 (libnccl.so.2); several processes need at least 2.29.0"),
        ({"nccl": None}, "NCCL not found"),
    ],
)
def test_what_the_machine_must_be(machine, reason, monkeypatch):
    default = {"num_ranks": 8, "num_devices": 8, "num_processes": 8, "num_local_devices": 1, "capability": "9.0"}
    machine = {**default, "nccl": (2, 30, 7), **machine}
    gpu = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", compute_capability=machine["capability"])
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    monkeypatch.setattr(jax, "device_count", lambda: machine["num_devices"])
    monkeypatch.setattr(jax, "process_count", lambda: machine["num_processes"])
    monkeypatch.setattr(jax, "local_device_count", lambda: machine["num_local_devices"])
    monkeypatch.setattr(jax.lax, "axis_size", lambda axis_name: machine["num_ranks"])
    monkeypatch.setattr(hardware, "nccl_version", lambda: machine["nccl"])
    found = hardware.unsupported_reason(axis_name="x")
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found
        assert found.endswith('use implementation="ppermute"')


def test_nccl_is_asked_for_its_version(monkeypatch):
    def get_version(code) -> int:
        ctypes.cast(code, ctypes.POINTER(ctypes.c_int))[0] = 23007
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: types.SimpleNamespace(ncclGetVersion=get_version))
    assert hardware.nccl_version() == (2, 30, 7)


def test_no_nccl_is_no_version(monkeypatch):
    def missing(path, mode):
        raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert hardware.nccl_version() is None
