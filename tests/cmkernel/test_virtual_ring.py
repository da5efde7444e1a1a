"""The ring of D ranks on one GPU, without the GPU: lowered for CUDA, and what it refuses."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from cmkernel.config import KernelConfig, MatmulDimension
from cmkernel.protocol import make_protocol
from cmkernel.virtual_ring import virtual_ring_all_gather_matmul
from tests.parameters import mostly_slow

CONFIGS = {
    "communication CTAs": KernelConfig(),
    "in-tile": KernelConfig(num_comm_ctas=0, tile_m=128, tile_n=128, wg_dimension=MatmulDimension.N),
    "polling warp": KernelConfig(tile_n=128, num_comm_ctas=2, num_chunks=16, wait_ahead=True),
    "both ways, halves": KernelConfig(num_in_tile_chunks=2, split_last_wave=True, wait_ahead=True),
}


def delay(rank, cta, warp, step):
    return jax.lax.rem(rank * 79 + cta * 37 + (warp + 1) * 13 + step * 57, jnp.int32(30))


def traced(config, num_ranks, *, m_shard=256, k=256, n_shard=512, dtype=jnp.bfloat16, num_sms=132, **options):
    function = functools.partial(virtual_ring_all_gather_matmul, config=config, num_sms=num_sms, **options)
    lhs = jax.ShapeDtypeStruct((num_ranks, m_shard, k), dtype)
    return jax.jit(function).trace(lhs, jax.ShapeDtypeStruct((num_ranks, k, n_shard), dtype))


def kernel_of(traced):
    """The one kernel of the program lowered for CUDA: everything short of ptxas."""
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    (call,) = [line for line in text.splitlines() if "custom_call @mosaic_gpu" in line]
    return call


@pytest.mark.parametrize("delay", [None, delay], ids=["", "delayed"])
@pytest.mark.parametrize("num_ranks", mostly_slow([2, 4, 8], fast=1))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_it_lowers_for_cuda_as_a_kernel_of_one_gpu(config, num_ranks, delay):
    kernel = kernel_of(traced(config, num_ranks, delay=delay))
    assert "uses_xla_collective_metadata = false" in kernel
    assert ("nanosleep" in kernel) == (delay is not None)
    outputs = re.findall(r"tensor<([0-9x]+x[a-z0-9]+)>", kernel.split("->")[-1])
    sizes = {"num_ranks": num_ranks, "m_shard": 256, "k": 256, "n_shard": 512}
    num_counters = make_protocol(config, **sizes, num_sms=132 // num_ranks).num_counters
    # Results, scratch memory and counters of every rank.
    assert outputs == [
        f"{num_ranks}x{num_ranks}x256x512xbf16",
        f"{num_ranks}x{num_ranks - 1}x256x256xbf16",
        f"{num_ranks * num_counters}xi32",
    ]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_any_shape_and_a_float32_result(config):
    program = traced(config, 4, m_shard=133, k=100, n_shard=75, dtype=jnp.float16, out_dtype=jnp.float32)
    (out,) = jax.tree.leaves(program.out_info)
    assert (out.shape, out.dtype) == ((4, 4 * 133, 75), jnp.float32)
    outputs = re.findall(r"tensor<([0-9x]+x[a-z0-9]+)>", kernel_of(program).split("->")[-1])
    # The copies need rows in multiples of 8, and columns in multiples of the swizzles.
    assert outputs[0].startswith("4x4x136x")
    assert outputs[0].endswith("xf32")
    assert outputs[1] == "4x3x136x128xf16"


@pytest.mark.parametrize(
    ("lhs", "rhs", "error", "message"),
    [
        ((64, 64), (2, 64, 64), ValueError, r"lhs.shape=\(64, 64\) and .* must be \[D, m_shard, k\]"),
        ((2, 64, 64), (64, 64), ValueError, r"rhs.shape=\(64, 64\) must be .* \[D, k, n_shard\]"),
        ((2, 64, 64), (4, 64, 64), ValueError, r"lhs.shape=\(2, 64, 64\) and rhs.shape=\(4, 64, 64\) must be"),
        ((1, 64, 64), (1, 64, 64), ValueError, "D at least 2"),
        ((2, 64, 64), (2, 128, 64), ValueError, r"bfloat16\[64, 64\] and rhs bfloat16\[128, 64\] must be"),
    ],
)
def test_operands_that_do_not_fit(lhs, rhs, error, message):
    lhs, rhs = jnp.zeros(lhs, jnp.bfloat16), jnp.zeros(rhs, jnp.bfloat16)
    with pytest.raises(error, match=message):
        virtual_ring_all_gather_matmul(lhs, rhs, config=KernelConfig(), num_sms=132)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": jnp.float32}, "float32.*must be float16 or bfloat16"),
        ({"out_dtype": jnp.float16}, "out_dtype=float16 must be that of the operands or float32"),
        ({"num_sms": None}, "num_sms is unknown for device_kind='cpu'"),
    ],
)
def test_what_it_cannot_do(options, message):
    with pytest.raises(NotImplementedError, match=message):
        traced(KernelConfig(), 2, **options)


def test_each_rank_needs_a_cta_that_computes():
    with pytest.raises(ValueError, match=r"num_comm_ctas=4 must be less than num_sms=4, or no CTA computes"):
        traced(KernelConfig(), 4, num_sms=19)
    with pytest.raises(ValueError, match=r"num_comm_ctas=0 must be less than num_sms=0, or no CTA computes"):
        traced(CONFIGS["in-tile"], 8, num_sms=7)
    kernel_of(traced(KernelConfig(), 4, num_sms=20))
