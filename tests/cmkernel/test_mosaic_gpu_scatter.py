"""The reduce-scatter kernel without a GPU: one rank interpreted with race detection, and all of it lowered for CUDA.

Who waits for whom between ranks is the matter of ``test_scatter_kernel_model``.
"""

from __future__ import annotations

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import PartitionSpec as P

import cmkernel
from cmkernel import hardware, mosaic_gpu_cta, ring
from cmkernel.config import MatmulDimension, ScatterKernelConfig
from cmkernel.mosaic_gpu_scatter import local_matmul_reduce_scatter, ring_matmul_reduce_scatter
from cmkernel.mosaic_gpu_scatter_cta import ScatterCta, scatter_smem_types
from cmkernel.scatter_model import modelled_scatter_us, scatter_heuristic_config
from cmkernel.virtual_ring import virtual_ring_matmul_reduce_scatter
from tests.parameters import mostly_slow

RACE = "RACE DETECTED"  # What the interpreter prints.
# Copies that share one of the interpreter's TMA threads count as ordered, which would hide races between them.
INTERPRET = plgpu.InterpretGPUParams(detect_races=True, num_tma_threads_per_device=199)
M, N = MatmulDimension.M, MatmulDimension.N
SMALL = ScatterKernelConfig(tile_m=64, tile_n=64, max_concurrent_steps=2)


def integers(seed: int, shape: tuple[int, ...], dtype=jnp.bfloat16, most: int = 2) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(-most, most + 1, shape), dtype)


def run_rank(lhs, rhs, received, *, interpret=INTERPRET, **options):
    function = jax.jit(functools.partial(local_matmul_reduce_scatter, **options))
    with plgpu.force_gpu_interpret_mode(interpret):
        # Wait here: a program waiting for the result would hold one of the few CPU threads the interpreter needs.
        return jax.block_until_ready(function(lhs, rhs, received))


def check_rank(
    *,
    num_ranks,
    rank,
    m_shard,
    k,
    n,
    config,
    num_sms,
    dtype=jnp.bfloat16,
    out_dtype=None,
    partial_dtype=None,
    **options,
):
    """The rank's result is the exact sum, and it sends the others their rounded partial sums."""
    partial_dtype = partial_dtype or dtype
    lhs, rhs = integers(0, (num_ranks * m_shard, k), dtype), integers(1, (k, n), dtype)
    received = integers(2, (num_ranks - 1, m_shard, n), partial_dtype, most=50)
    sizes = {"rank": rank, "config": config, "num_sms": num_sms, "out_dtype": out_dtype}
    out, sent = run_rank(lhs, rhs, received, **sizes, **options)
    products = np.asarray(lhs, np.float32) @ np.asarray(rhs, np.float32)
    blocks = jnp.asarray(products).reshape(num_ranks, m_shard, n)
    assert (out.dtype, sent.dtype) == (out_dtype or dtype, partial_dtype)
    assert (out == (blocks[rank] + received.astype(jnp.float32).sum(0)).astype(out.dtype)).all()
    for step in range(num_ranks - 1):
        assert (sent[step] == blocks[ring.scattered_block(rank, step, num_ranks)].astype(partial_dtype)).all()


SLOW = pytest.mark.slow
# One rank, interpreted. Without `overlaid`, as memory with several views is all one to the race detector.


@pytest.mark.parametrize(
    ("config", "sizes", "types"),
    [
        pytest.param(SMALL, (2, 1, 128, 128, 128, 3), {}, id="two ranks"),
        pytest.param(SMALL, (4, 2, 136, 192, 192, 2), {"dtype": jnp.float16}, id="tiles over the edges"),
        pytest.param(SMALL, (3, 0, 8, 64, 64, 2), {}, id="less than a tile", marks=SLOW),
        pytest.param(
            SMALL, (3, 0, 133, 100, 75, 2), {"partial_dtype": jnp.float32}, id="float32 partials, padded", marks=SLOW
        ),
        pytest.param(SMALL, (2, 0, 133, 100, 75, 2), {"out_dtype": jnp.float32}, id="float32 result", marks=SLOW),
        pytest.param(SMALL, (2, 1, 72, 64, 32, 2), {"out_dtype": jnp.float32}, id="one column of pieces", marks=SLOW),
        pytest.param(
            ScatterKernelConfig(tile_m=128, tile_n=64, wg_dimension=N, tile_k=128, max_concurrent_steps=3),
            (2, 1, 264, 384, 256, 2),
            {},
            id="warpgroups along N",
            marks=SLOW,
        ),
        pytest.param(
            ScatterKernelConfig(tile_n=192, epi_tile_n=64, max_concurrent_steps=3, grid_tile_width=1),
            (3, 1, 200, 160, 200, 1),
            {},
            id="odd number of epilogue pieces",
            marks=SLOW,
        ),
        pytest.param(ScatterKernelConfig(), (8, 5, 8, 64, 64, 3), {}, id="eight ranks", marks=SLOW),
    ],
)
def test_a_rank_is_exact_and_free_of_races(config, sizes, types, capsys):
    names = ("num_ranks", "rank", "m_shard", "k", "n", "num_sms")
    check_rank(**dict(zip(names, sizes, strict=True)), config=config, **types, overlaid=False)
    assert RACE not in capsys.readouterr().out


@pytest.mark.parametrize(
    "types",
    [{"partial_dtype": jnp.float32}, *(pytest.param(t, marks=SLOW) for t in ({}, {"out_dtype": jnp.float32}))],
    ids=str,
)
def test_a_rank_is_exact_where_memory_has_several_views(types):
    sizes = {"num_ranks": 3, "rank": 2, "m_shard": 136, "k": 128, "n": 192, "num_sms": 2}
    check_rank(**sizes, config=SMALL, **types, interpret=plgpu.InterpretGPUParams())


def report_too_early(monkeypatch):
    """The sending warp reads what may not have been written."""
    wait, report = plgpu.wait_smem_to_gmem, ScatterCta.report_staged

    def report_staged(self, i):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plgpu, "wait_smem_to_gmem", lambda n, wait_read_only: wait(9, wait_read_only))
            report(self, i)

    monkeypatch.setattr(ScatterCta, "report_staged", report_staged)


def release_before_reading(monkeypatch):
    """The TMA unit overwrites a span that the threads may not have read."""
    monkeypatch.setattr(plgpu, "commit_smem", lambda: None)


@pytest.mark.parametrize("bug", [report_too_early, release_before_reading])
def test_the_race_detector_sees_a_missing_wait(bug, monkeypatch, capsys):
    bug(monkeypatch)
    lhs, rhs, received = integers(0, (512, 64)), integers(1, (64, 128)), integers(2, (1, 256, 128))
    run_rank(lhs, rhs, received, config=SMALL, num_sms=1, overlaid=False)
    assert RACE in capsys.readouterr().out


# All ranks, lowered for CUDA: everything short of ptxas.


def lowered(*, num_ranks, shape=(1024, 768, 768), dtype=jnp.bfloat16, config=None, **options) -> str:
    mesh = jax.make_mesh(
        (num_ranks,), ("x",), devices=jax.devices()[:num_ranks], axis_types=(jax.sharding.AxisType.Auto,)
    )
    config = config or ScatterKernelConfig()
    function = functools.partial(ring_matmul_reduce_scatter, axis_name="x", config=config, num_sms=132, **options)
    specs = {"in_specs": (P(None, "x"), P("x", None)), "out_specs": P("x", None)}
    m_shard, k, n = shape
    lhs = jax.ShapeDtypeStruct((num_ranks * m_shard, num_ranks * k), dtype)
    rhs = jax.ShapeDtypeStruct((num_ranks * k, n), dtype)
    program = jax.jit(jax.shard_map(function, mesh=mesh, check_vma=False, **specs))
    return program.trace(lhs, rhs).lower(lowering_platforms=("cuda",)).as_text()


def outputs_of(text: str) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and types of the results of the one kernel in a program."""
    (call,) = [line for line in text.splitlines() if "custom_call @mosaic_gpu" in line]
    found = re.findall(r"tensor<([0-9x]+)x([a-z]+[0-9]+)>", call.split("->")[-1])
    return [(tuple(map(int, sizes.split("x"))), dtype) for sizes, dtype in found]


FORMS = {
    "default": ScatterKernelConfig(),
    "along N": ScatterKernelConfig(tile_m=128, tile_n=128, wg_dimension=N),
    "small tiles": ScatterKernelConfig(tile_m=64, tile_n=64, max_concurrent_steps=6),
    "odd pieces": ScatterKernelConfig(tile_n=192),
}
TYPES = {
    "plain": {},
    "float32 partials": {"partial_dtype": jnp.float32},
    "float32 result": {"out_dtype": jnp.float32},
    "delayed": {},
}
# Every pair of form, number of ranks and types.
CASES = [
    (form, num_ranks, list(TYPES)[(i + j) % 4])
    for (i, form), (j, num_ranks) in itertools.product(enumerate(FORMS), enumerate((1, 2, 4, 8)))
]


@pytest.mark.parametrize(("form", "num_ranks", "types"), CASES)
def test_it_lowers_for_cuda(form, num_ranks, types):
    sleepers = set()

    def delay(rank, cta, warp, step):
        sleepers.add(warp)
        return jax.lax.rem(rank * 79 + cta * 37 + (warp + 1) * 13 + step * 57, jnp.int32(30))

    options = {"delay": delay} if types == "delayed" else TYPES[types]
    text = lowered(num_ranks=num_ranks, config=FORMS[form], **options)
    out, *others = outputs_of(text)
    out_type = "f32" if types == "float32 result" else "bf16"
    partial_type = "f32" if types == "float32 partials" else "bf16"
    if num_ranks == 1:
        assert out == ((1, 1024, 768), out_type)
        assert not others
        return
    assert out == ((1024, 768), out_type)
    config = FORMS[form]
    assert others[:2] == [
        ((num_ranks - 1, 1024, 768), partial_type),
        ((2 * 132, config.cta_tile_m, config.cta_tile_n), partial_type),
    ]
    assert sleepers == ({mosaic_gpu_cta.LOAD_WARP, mosaic_gpu_cta.SEND_WARP} if types == "delayed" else set())
    assert ("nanosleep" in text) == (types == "delayed")


@pytest.mark.parametrize("num_ranks", mostly_slow([2, 4, 8], fast=1))
@pytest.mark.parametrize("types", ["plain", "float32 partials", "float32 result"])
def test_virtual_ranks_lower_as_a_kernel_of_one_gpu(num_ranks, types):
    function = functools.partial(
        virtual_ring_matmul_reduce_scatter, config=ScatterKernelConfig(), num_sms=132, **TYPES[types]
    )
    lhs = jax.ShapeDtypeStruct((num_ranks, num_ranks * 133, 100), jnp.float16)
    rhs = jax.ShapeDtypeStruct((num_ranks, 100, 75), jnp.float16)
    program = jax.jit(function).trace(lhs, rhs)
    assert program.out_info.shape == (num_ranks, 133, 75)
    text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert "uses_xla_collective_metadata = false" in text
    out, scratch, *_ = outputs_of(text)
    assert (out[0][:2], scratch[0][:3]) == ((num_ranks, 136), (num_ranks, num_ranks - 1, 136))


def test_what_the_kernel_pads():
    text = lowered(num_ranks=2, shape=(133, 100, 75), dtype=jnp.float16)
    assert outputs_of(text)[:2] == [((136, 128), "f16"), ((1, 136, 128), "f16")]
    # A single unit of 32 columns would lose its dimension in a copy.
    assert outputs_of(lowered(num_ranks=2, shape=(8, 64, 32)))[0] == ((8, 64), "bf16")


# Choice, model and laws.


def on_two_fake_gpus(function, lhs, rhs, monkeypatch):
    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"in_specs": (P(None, "x"), P("x", None)), "out_specs": P("x", None)}
    shapes = jax.ShapeDtypeStruct(lhs, jnp.bfloat16), jax.ShapeDtypeStruct(rhs, jnp.bfloat16)
    return jax.jit(jax.shard_map(function, mesh=mesh, check_vma=False, **specs)).trace(*shapes)


@pytest.mark.parametrize(("rows", "expected"), [(8, "xla"), (2048, "mosaic_gpu")])
def test_auto_takes_what_the_model_expects_to_be_fastest(rows, expected, monkeypatch):
    choices = []

    def choose(lhs, rhs):
        for partial_dtype in (None, jnp.float32):
            choices.append(
                cmkernel.choose_implementation(
                    lhs, rhs, axis_name="x", op="matmul_reduce_scatter", partial_dtype=partial_dtype
                )
            )
        return rhs

    on_two_fake_gpus(choose, (rows, 8192), (8192, 4096), monkeypatch)
    assert [choice.implementation for choice in choices] == [expected] * 2
    assert choices[0].reason.startswith("expected to be the fastest: mosaic_gpu ")
    if rows == 2048:
        assert choices[0].reason != choices[1].reason, "float32 partials take longer"


def test_the_public_function_runs_the_kernel_forward_and_backward(monkeypatch):
    def gradients(lhs, rhs):
        product = functools.partial(cmkernel.matmul_reduce_scatter, axis_name="x", implementation="mosaic_gpu")
        out, pullback = jax.vjp(product, lhs, rhs)
        d_lhs, d_rhs = pullback(out)
        return out + jnp.sum(d_lhs) + jnp.sum(d_rhs)

    text = (
        on_two_fake_gpus(gradients, (512, 512), (512, 256), monkeypatch).lower(lowering_platforms=("cuda",)).as_text()
    )
    assert text.count("custom_call @mosaic_gpu") == 2, "the reduce-scatter, and the all-gather of its gradient"
    assert '"stablehlo.all_gather"(' not in text, "the gradient of rhs uses what that gathered"


@pytest.mark.parametrize("partial_dtype", [None, jnp.float32])
def test_scanned_layers_lower_with_both_kernels(partial_dtype, monkeypatch):
    options = {"axis_name": "x", "implementation": "mosaic_gpu", "partial_dtype": partial_dtype}

    def layer(x, weights):
        up, down = weights
        hidden = jax.nn.silu(cmkernel.all_gather_matmul(x, up, **options))
        return x + cmkernel.matmul_reduce_scatter(hidden, down, **options), None

    def loss(weights, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, weights)[0].astype(jnp.float32))

    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    stacked = P(None, None, "x"), P(None, "x", None)
    gradient = jax.shard_map(
        jax.grad(loss), mesh=mesh, in_specs=(stacked, P("x", None)), out_specs=stacked, check_vma=False
    )
    shapes = (3, 128, 512), (3, 512, 128), (256, 128)
    up, down, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    text = jax.jit(gradient).trace((up, down), x).lower(lowering_platforms=("cuda",)).as_text()
    # Forward; forward again but for the last one, whose result nobody needs; and the gradient of each.
    assert text.count("custom_call @mosaic_gpu") == 2 + 1 + 2
    kernels = [line.split("->")[-1] for line in text.splitlines() if "custom_call @mosaic_gpu" in line]
    # By default only the gradient of the gather sends float32.
    assert sum("x128xf32>" in results for results in kernels) == (1 if partial_dtype is None else 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epi_tile_n": 16}, "epi_tile_n=16 must be a multiple of 32"),
        ({"epi_tile_n": 64}, "the limit is 232448"),
        ({"tile_n": 64, "epi_tile_n": 64}, "epi_tile_m=64 x epi_tile_n=64 must divide the rhs of a pipeline slot"),
        ({"tile_n": 32, "tile_k": 32, "epi_tile_n": 32}, "must divide the rhs of a pipeline slot"),
    ],
)
def test_laws_of_the_config(options, message):
    with pytest.raises(ValueError, match=message):
        ScatterKernelConfig(**options)


def test_rows_must_divide_among_the_ranks():
    lhs, rhs = jnp.zeros((129, 64), jnp.bfloat16), jnp.zeros((64, 64), jnp.bfloat16)
    with pytest.raises(ValueError, match="m=129, the rows of lhs, must be a multiple of num_ranks=2"):
        local_matmul_reduce_scatter(lhs, rhs, jnp.zeros((1, 64, 64), jnp.bfloat16), config=SMALL, num_sms=1)


@pytest.mark.parametrize(
    ("shape", "num_ranks", "measured_us"),
    # Looped and paced on one H200, 2026-12-01.
    [
        ((1024, 4096, 4096), 2, 85.5),
        ((1024, 4096, 4096), 4, 176.4),
        ((1024, 4096, 4096), 8, 357.4),
        ((4096, 7168, 4096), 2, 600.0),
        ((4096, 4096, 8192), 2, 706.0),
        ((2048, 7168, 8192), 4, 1218.5),
        ((1024, 3584, 8192), 8, 636.4),
    ],
)
def test_the_model_is_near_looped_times(shape, num_ranks, measured_us):
    sizes = dict(zip(("m_shard", "k", "n_shard"), shape, strict=True), num_ranks=num_ranks, num_sms=132)
    config = ScatterKernelConfig()
    assert modelled_scatter_us(config, **sizes) == pytest.approx(measured_us, rel=0.1)
    assert modelled_scatter_us(scatter_heuristic_config(**sizes), **sizes) <= modelled_scatter_us(config, **sizes)


@pytest.mark.parametrize(("out_dtype", "partial_dtype"), [(jnp.float32, jnp.bfloat16), (jnp.bfloat16, jnp.float32)])
def test_a_warpgroup_stages_in_the_same_memory_whatever_the_type(out_dtype, partial_dtype):
    """A tile to store may come while the other warpgroup's copies still read a tile to send."""
    types = scatter_smem_types(
        ScatterKernelConfig(),
        communicates=True,
        dtype=jnp.bfloat16,
        out_dtype=out_dtype,
        partial_dtype=partial_dtype,
        overlaid=False,
    )
    sizes = [math.prod(ref.shape[1:]) * ref.dtype.itemsize for ref in (types["out_smem"], types["partial_smem"])]
    assert sizes[0] == sizes[1]
