"""The fast ring kernel without a GPU: its compute part interpreted with race detection, and all of it lowered for CUDA.

Who waits for whom between ranks is the matter of ``test_kernel_model``.
"""

from __future__ import annotations

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import PartitionSpec as P

from cmkernel import all_gather_matmul, mosaic_gpu, mosaic_gpu_cta, reference, ring, stamps
from cmkernel.config import KernelConfig, MatmulDimension
from cmkernel.protocol import make_protocol
from tests.parameters import mostly_slow

RACE = "RACE DETECTED"  # What the interpreter prints.
# Copies that share one of the interpreter's TMA threads count as ordered, which would hide races between them.
INTERPRET = plgpu.InterpretGPUParams(detect_races=True, num_tma_threads_per_device=199)
M, N = MatmulDimension.M, MatmulDimension.N
SMALL = KernelConfig(tile_m=64, tile_n=64, max_concurrent_steps=2)


def integers(seed: int, shape: tuple[int, ...], dtype=jnp.bfloat16) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(-4, 5, shape), dtype)


def gathered_matmul(lhs, rhs, received, rank, *, interpret=INTERPRET, **options):
    multiply = jax.jit(functools.partial(mosaic_gpu.gathered_matmul, rank=rank, **options))
    with plgpu.force_gpu_interpret_mode(interpret):
        # Wait here: a program waiting for the result would hold one of the few CPU threads the interpreter needs.
        return jax.block_until_ready(multiply(lhs, rhs, received))


def check_gathered(
    *, num_ranks, rank, m_shard, k, n_shard, config, num_sms, capsys, dtype=jnp.bfloat16, out_dtype=None
):
    """Each rank's rows are those of its shard, times rhs, and nothing races; returns the result."""
    gathered, rhs = integers(0, (num_ranks, m_shard, k), dtype), integers(1, (k, n_shard), dtype)
    order = [ring.source_shard(rank, step, num_ranks) for step in range(num_ranks)]
    received = gathered[np.array(order[1:])] if num_ranks > 1 else None
    result = gathered_matmul(gathered[rank], rhs, received, rank, config=config, num_sms=num_sms, out_dtype=out_dtype)
    assert result.dtype == (out_dtype or dtype)
    assert reference.num_different(result, gathered.reshape(num_ranks * m_shard, k), rhs) == 0
    assert RACE not in capsys.readouterr().out
    return result


# The multiply, interpreted.


@pytest.mark.parametrize(("num_ranks", "rank"), mostly_slow([(1, 0), (2, 1), (4, 2), (8, 5)], fast=2))
def test_every_shard_gives_its_own_rows(num_ranks, rank, capsys):
    check_gathered(
        num_ranks=num_ranks, rank=rank, m_shard=128, k=128, n_shard=128, config=SMALL, num_sms=3, capsys=capsys
    )


@pytest.mark.parametrize(
    ("config", "shape", "num_sms"),
    mostly_slow(
        [
            pytest.param(SMALL, (136, 192, 192), 2, id="tiles over the edges"),
            pytest.param(SMALL, (8, 64, 64), 2, id="less than a tile, CTAs without tiles"),
            pytest.param(SMALL, (133, 100, 75), 1, id="padded operands"),
            pytest.param(
                KernelConfig(tile_m=64, tile_n=192, tile_k=32, max_concurrent_steps=3, grid_tile_width=1),
                (200, 160, 200),
                1,
                id="odd number of epilogue pieces",
            ),
            pytest.param(
                KernelConfig(
                    tile_m=128, tile_n=64, wg_dimension=N, tile_k=128, max_concurrent_steps=3, grid_tile_width=2
                ),
                (384, 384, 256),
                2,
                id="warpgroups along N, a last raster group of one",
            ),
            pytest.param(KernelConfig(), (8, 64, 64), 1, id="one column of epilogue units where a tile has four"),
        ],
        fast=3,
    ),
)
def test_any_shape_is_exact_and_free_of_races(config, shape, num_sms, capsys):
    m_shard, k, n_shard = shape
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard}
    check_gathered(num_ranks=2, rank=1, **sizes, config=config, num_sms=num_sms, capsys=capsys, dtype=jnp.float16)


def test_a_last_wave_of_halves_is_exact():
    config = KernelConfig(tile_n=128, max_concurrent_steps=2, split_last_wave=True)
    lhs, rhs = integers(0, (2, 136, 192)), integers(1, (192, 300))
    # Halves lie in the slots of whole tiles, seen through another reference: to the race detector, all of that is one.
    interpret = plgpu.InterpretGPUParams()
    result = gathered_matmul(lhs[0], rhs, lhs[1:], 0, config=config, num_sms=5, interpret=interpret)
    assert reference.num_different(result, lhs.reshape(-1, 192), rhs) == 0


@pytest.mark.parametrize(
    ("config", "shape", "num_ranks", "rank"),
    mostly_slow(
        [
            pytest.param(SMALL, (136, 192, 192), 4, 2, id="tiles over the edges"),
            pytest.param(
                KernelConfig(tile_m=64, tile_n=192, tile_k=32, max_concurrent_steps=3, grid_tile_width=1),
                (200, 320, 200),
                1,
                0,
                id="odd number of epilogue pieces",
            ),
            pytest.param(KernelConfig(epi_tile_n=32), (64, 320, 96), 2, 1, id="narrow epilogue pieces"),
            pytest.param(KernelConfig(), (8, 640, 32), 2, 1, id="one column of epilogue units where a tile has eight"),
            pytest.param(
                KernelConfig(tile_m=128, tile_n=64, wg_dimension=N, tile_k=128, max_concurrent_steps=3),
                (133, 300, 75),
                2,
                0,
                id="padded operands, warpgroups along N",
            ),
        ],
        fast=1,
    ),
)
def test_a_float32_result_is_exact_and_free_of_races(config, shape, num_ranks, rank, capsys):
    m_shard, k, n_shard = shape
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard}
    result = check_gathered(
        num_ranks=num_ranks, rank=rank, **sizes, config=config, num_sms=2, capsys=capsys, out_dtype=jnp.float32
    )
    # Sums that the operands' type would have rounded.
    assert (result != result.astype(jnp.bfloat16)).any()


def test_normal_data_is_within_the_tolerance():
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((128, 320), (320, 64)))
    result = gathered_matmul(lhs, rhs, None, 0, config=SMALL, num_sms=1)
    assert reference.compare(result, lhs, rhs).num_wrong == 0


def test_the_race_detector_sees_a_wait_that_is_too_short(monkeypatch, capsys):
    wait = plgpu.wait_smem_to_gmem
    # One copy too many stays in flight: the epilogue overwrites a piece that its store may still be reading.
    monkeypatch.setattr(plgpu, "wait_smem_to_gmem", lambda n, wait_read_only: wait(n and n + 1, wait_read_only))
    lhs, rhs = integers(0, (128, 64)), integers(1, (64, 512))
    gathered_matmul(lhs, rhs, None, 0, config=KernelConfig(max_concurrent_steps=3), num_sms=1)
    assert RACE in capsys.readouterr().out


# The ring, lowered for CUDA: everything short of ptxas.


def lowered(
    *,
    num_ranks: int,
    shape=(1024, 768, 768),
    dtype=jnp.bfloat16,
    config=None,
    ring_function=mosaic_gpu.ring_all_gather_matmul,
    out_specs=None,
    **options,
) -> str:
    mesh = jax.make_mesh(
        (num_ranks,), ("x",), devices=jax.devices()[:num_ranks], axis_types=(jax.sharding.AxisType.Auto,)
    )
    function = functools.partial(ring_function, axis_name="x", config=config or KernelConfig(), num_sms=132, **options)
    ring = jax.shard_map(
        function, mesh=mesh, in_specs=(P("x", None), P(None, "x")), out_specs=out_specs or P(None, "x"), check_vma=False
    )
    m_shard, k, n_shard = shape
    lhs = jax.ShapeDtypeStruct((num_ranks * m_shard, k), dtype)
    rhs = jax.ShapeDtypeStruct((k, num_ranks * n_shard), dtype)
    return jax.jit(ring).trace(lhs, rhs).lower(lowering_platforms=("cuda",)).as_text()


RINGS = {
    "communication CTAs": KernelConfig(),
    "in-tile": KernelConfig(num_comm_ctas=0, tile_m=128, tile_n=128, wg_dimension=N),
    "polling warp": KernelConfig(tile_n=128, max_concurrent_steps=6, num_comm_ctas=20, num_chunks=16, wait_ahead=True),
    "in-tile, polling warp": KernelConfig(
        tile_m=64, tile_n=64, tile_k=32, num_comm_ctas=0, num_chunks=3, wait_ahead=True
    ),
    "both ways, halves": KernelConfig(num_in_tile_chunks=2, split_last_wave=True, wait_ahead=True),
}


def outputs_of(text: str) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and types of the results of the one kernel in a program."""
    (call,) = [line for line in text.splitlines() if "custom_call @mosaic_gpu" in line]
    found = re.findall(r"tensor<([0-9x]+)x([a-z]+[0-9]+)>", call.split("->")[-1])
    return [(tuple(map(int, sizes.split("x"))), dtype) for sizes, dtype in found]


# Form of the kernel by config and number of ranks: every pair of values but those of one rank, which has no stamps.
FORMS = {
    "communication CTAs": {1: ["plain"], 2: ["float32"], 4: ["stamped"], 8: ["delayed", "plain"]},
    "in-tile": {1: ["plain"], 2: ["delayed"], 4: ["float32"], 8: ["stamped"]},
    "polling warp": {1: ["plain"], 2: ["stamped"], 4: ["delayed"], 8: ["float32"]},
    "in-tile, polling warp": {1: ["float32"], 2: ["plain"], 4: ["stamped"], 8: ["delayed"]},
    "both ways, halves": {1: ["float32"], 2: ["delayed"], 4: ["plain"], 8: ["stamped"]},
}
CASES = [
    (name, num_ranks, form)
    for name, by_ranks in FORMS.items()
    for num_ranks, forms in by_ranks.items()
    for form in forms
]


def scattered_delay(rank, cta, warp, step):
    """Other sleeps for neighbouring ranks and CTAs, for either warp, at each step."""
    return jax.lax.rem(rank * 79 + cta * 37 + (warp + 1) * 13 + step * 57, jnp.int32(30))


def test_the_cases_cover_every_pair_of_values():
    all_forms = {"plain", "float32", "stamped", "delayed"}
    assert {case[:2] for case in CASES} == set(itertools.product(RINGS, (1, 2, 4, 8)))
    assert {(name, form) for name, _, form in CASES} == set(itertools.product(RINGS, all_forms))
    one_rank, more = {(1, "plain"), (1, "float32")}, set(itertools.product((2, 4, 8), all_forms))
    assert {case[1:] for case in CASES} == one_rank | more


@pytest.mark.parametrize(("name", "num_ranks", "form"), CASES)
def test_the_ring_lowers_for_cuda(name, num_ranks, form):
    config, sleepers = RINGS[name], set()

    def delay(rank, cta, warp, step):
        sleepers.add(warp)
        return scattered_delay(rank, cta, warp, step)

    options = {
        "plain": {},
        "float32": {"out_dtype": jnp.float32},
        "stamped": {
            "ring_function": mosaic_gpu.stamped_ring_all_gather_matmul,
            "out_specs": (P(None, "x"), P("x", None, None)),
        },
        "delayed": {"delay": delay},
    }[form]
    text = lowered(num_ranks=num_ranks, config=config, **options)
    outputs = outputs_of(text)
    assert outputs[0] == ((num_ranks, 1024, 768), "f32" if form == "float32" else "bf16")
    # Receive slots exist for D > 1 only, as the kernel's second result. What travels has the operands' type.
    assert outputs[1:2] == ([((num_ranks - 1, 1024, 768), "bf16")] if num_ranks > 1 else [])
    assert ("globaltimer_lo" in text) == (form == "stamped")
    if form == "stamped":
        protocol = make_protocol(config, num_ranks=num_ranks, m_shard=1024, k=768, n_shard=768, num_sms=132)
        assert outputs[2] == (stamps.shape(protocol), "i32")
    assert ("nanosleep" in text) == (form == "delayed")
    assert sleepers == ({mosaic_gpu_cta.LOAD_WARP, mosaic_gpu_cta.SEND_WARP} if form == "delayed" else set())


@pytest.mark.parametrize("options", [{"max_concurrent_steps": 32}, {"tile_m": 1024, "max_concurrent_steps": 2}])
def test_the_most_that_the_laws_allow_lowers(options):
    narrow = {"tile_n": 16, "tile_k": 16, "epi_tile_n": 16, "wg_dimension": M}
    assert "mosaic_gpu" in lowered(num_ranks=2, config=KernelConfig(**narrow, **options))


@pytest.mark.parametrize(
    ("shape", "result", "scratch"),
    [
        pytest.param((1000, 4104, 4200), (1000, 4224), (1000, 4160), id="padded in k and n"),
        pytest.param((133, 64, 192), (136, 192), (136, 64), id="padded in m"),
        # Mosaic would store what lies right of a single unit of 64 columns on top of it.
        pytest.param((8, 64, 64), (8, 128), (8, 64), id="a second unit of columns"),
    ],
)
def test_what_the_kernel_pads(shape, result, scratch):
    text = lowered(num_ranks=2, shape=shape, dtype=jnp.float16)
    assert outputs_of(text)[:2] == [((2, *result), "f16"), ((1, *scratch), "f16")]


def test_what_the_kernel_pads_of_a_float32_result():
    text = lowered(num_ranks=2, shape=(133, 64, 160), out_dtype=jnp.float32)
    assert outputs_of(text)[:2] == [((2, 136, 192), "f32"), ((1, 136, 64), "bf16")]


def test_one_rank_has_no_stamps():
    with pytest.raises(ValueError, match="axis 'x' has one rank"):
        lowered(num_ranks=1, ring_function=mosaic_gpu.stamped_ring_all_gather_matmul)


@pytest.mark.parametrize(
    ("epi_tile_n", "n_shard", "dtype", "columns"),
    [
        (64, 64, jnp.bfloat16, 128),
        (64, 100, jnp.bfloat16, 128),
        (32, 32, jnp.bfloat16, 64),
        (128, 64, jnp.bfloat16, 128),
        (64, 1, jnp.bfloat16, 128),
        (64, 192, jnp.bfloat16, 192),
        # A unit is as many bytes, so half as many columns.
        (64, 64, jnp.float32, 64),
        (64, 32, jnp.float32, 64),
        (64, 100, jnp.float32, 128),
        (32, 16, jnp.float32, 32),
    ],
)
def test_columns_of_the_result(epi_tile_n, n_shard, dtype, columns):
    config = KernelConfig(epi_tile_n=epi_tile_n, max_concurrent_steps=3)
    assert mosaic_gpu.num_result_columns(config, n_shard, dtype) == columns


def test_a_tile_of_one_unit_needs_no_second():
    assert mosaic_gpu.num_result_columns(SMALL, 64, jnp.bfloat16) == 64


# Errors.


@pytest.mark.parametrize(
    ("lhs", "rhs", "error", "match"),
    [
        (((64, 64), jnp.int8), ((64, 128), jnp.int8), NotImplementedError, "int8.*float16 or bfloat16.*ppermute"),
        (((64, 64), jnp.float32), ((64, 128), jnp.float32), NotImplementedError, "float32"),
        (((64, 64), jnp.float16), ((64, 128), jnp.bfloat16), ValueError, r"float16\[64, 64\].*one dtype"),
        (((64, 64), jnp.float16), ((128, 128), jnp.float16), ValueError, r"\[128, 128\].*must be \[m_shard, k\]"),
        (((64,), jnp.float16), ((64, 128), jnp.float16), ValueError, r"float16\[64\]"),
    ],
)
def test_operands_that_do_not_fit(lhs, rhs, error, match):
    with pytest.raises(error, match=match):
        mosaic_gpu.gathered_matmul(jnp.zeros(*lhs), jnp.zeros(*rhs), config=SMALL, num_sms=1)


@pytest.mark.parametrize("out_dtype", [jnp.float16, jnp.int32])
def test_results_of_another_type_are_refused(out_dtype):
    lhs, rhs = jnp.zeros((64, 64), jnp.bfloat16), jnp.zeros((64, 128), jnp.bfloat16)
    message = rf"out_dtype={jnp.dtype(out_dtype)} must be that of the operands or float32"
    with pytest.raises(NotImplementedError, match=message):
        mosaic_gpu.gathered_matmul(lhs, rhs, config=SMALL, num_sms=1, out_dtype=out_dtype)


def test_number_of_sms_is_unknown_on_a_cpu():
    lhs, rhs = jnp.zeros((64, 64), jnp.float16), jnp.zeros((64, 128), jnp.float16)
    with pytest.raises(NotImplementedError, match="num_sms is unknown for device_kind='cpu'"):
        mosaic_gpu.gathered_matmul(lhs, rhs, config=SMALL)


def test_a_cpu_is_refused():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    function = jax.shard_map(
        functools.partial(all_gather_matmul, axis_name="x", implementation="mosaic_gpu"),
        mesh=mesh,
        in_specs=(P("x", None), P(None, "x")),
        out_specs=P(None, "x"),
        check_vma=False,
    )
    with pytest.raises(NotImplementedError, match=r"platform='cpu' must be 'gpu'.*ppermute"):
        jax.jit(function)(jnp.zeros((16, 64), jnp.bfloat16), jnp.zeros((64, 128), jnp.bfloat16))
