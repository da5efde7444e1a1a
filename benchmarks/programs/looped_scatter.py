"""Matmul + reduce-scatter of D ranks on one Hopper GPU whose rank is its own neighbour: kernel times without D GPUs.

    PYTHONPATH=. python benchmarks/programs/looped_scatter.py [M_SHARD,K_SHARD,N ...] [--ranks D ...] [--configs ...]

All SMs play one rank, and whatever it sends, it receives: every copy, counter and wait of the kernel runs. Its result
is the sum of its own D blocks, and is checked. Its own memory is faster than NVLink, so sends are paced: a compute CTA
sends at most 20 GB/s, all of them together at most 260 GB/s, and a signal comes 1 us late. These rates were fitted to
the all-gather kernel's times on 2x H200. Looped times of that kernel are within 5 % (rms) of real ones.

One line for each shape and number of ranks: kernel time paced and unpaced, the multiply alone in the same run (the
faster of XLA's and cuBLAS's GEMM), the link's time at 260 GB/s, and the ratio. Medians of ``--count`` calls that take
turns. Exits 1 if a result is wrong.
"""

import argparse
import dataclasses
import functools
import statistics
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils as mosaic_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from cmkernel import hardware, reference
from cmkernel.config import SEND_BLOCK_ROW_BYTES, SEND_BLOCK_ROWS, MatmulDimension, ScatterKernelConfig
from cmkernel.mosaic_gpu_cta import await_count
from cmkernel.mosaic_gpu_scatter import Launch
from cmkernel.mosaic_gpu_scatter_cta import ScatterCta
from cmkernel.scatter_model import scatter_heuristic_config
from jobs.measure.profile import profile

CTA_GBYTES_PER_S, LINK_GBYTES_PER_S, SIGNAL_NS = 20, 260, 1000
BLOCK_BYTES = SEND_BLOCK_ROWS * SEND_BLOCK_ROW_BYTES
SHAPES = [(1024, 4096, 4096)]
CUBLAS = {"xla_gpu_enable_triton_gemm": False}


def asm(ptx, *refs):
    def emit(_, *values):
        mosaic_utils.inline_ptx(ptx, *map(mosaic_utils.memref_ptr, values), has_side_effects=True)
        mosaic_utils.warp_barrier()

    plgpu.inline_mgpu(arg_types=tuple(plgpu.RefType() for _ in refs))(emit)(*refs)


def take_link(own_due, link_due, own_ns, link_ns):
    """Spin until this CTA and the link may take another block. A due time is 64 bits of the clock, 0 at first."""
    asm(
        "{ .reg .b64 now, due, start, step; .reg .b32 lane, ns; .reg .pred other, early; mov.u32 lane, %laneid;"
        " setp.ne.u32 other, lane, 0; @other bra done; mov.u64 now, %globaltimer; atom.global.max.u64 due, [$1], now;"
        " ld.global.b32 ns, [$3]; cvt.u64.u32 step, ns; atom.global.add.u64 start, [$1], step; ld.global.b64 due, [$0];"
        " max.u64 start, start, due; again: mov.u64 now, %globaltimer; setp.lt.u64 early, now, start; @early bra again;"
        " ld.global.b32 ns, [$2]; cvt.u64.u32 step, ns; add.u64 now, now, step; st.global.b64 [$0], now; done: }",
        own_due,
        link_due,
        own_ns,
        link_ns,
    )


def wait(ns):
    asm(
        "{ .reg .b32 now, begun, step, diff; .reg .pred p; ld.global.b32 step, [$0]; mov.u32 begun, %globaltimer_lo;"
        " again: mov.u32 now, %globaltimer_lo; sub.u32 diff, now, begun; setp.lt.u32 p, diff, step; @p bra again; }",
        ns,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopedCta(ScatterCta):
    """A CTA that sends to its own rank. Due times lie behind the counters, two words each: they start at zero."""

    steps_ns: Any  # of a block on a CTA's share of the link, of a block on the link, of a signal

    def scratch_of(self, rank):
        return self.scratch_gmem

    def signal_rank(self, rank, counter):
        wait(self.steps_ns.at[2])
        pl.semaphore_signal(self.counters.at[counter])

    def await_arrival(self, counter):
        await_count(self.counters.at[counter])

    def pace(self):
        first = first_due(self.protocol)
        own, link = self.counters.at[first + 2 + 2 * self.index], self.counters.at[first]
        take_link(own, link, self.steps_ns.at[0], self.steps_ns.at[1])


def first_due(protocol):
    return protocol.num_counters + protocol.num_counters % 2


def looped(lhs, rhs, steps_ns, *, num_ranks, config, partial_dtype):
    launch = Launch.of(lhs, rhs, num_ranks, config, None, partial_dtype, hardware.num_sms())
    num_words = first_due(launch.protocol) + 2 + 2 * launch.protocol.num_compute_ctas

    def body(lhs_gmem, rhs_gmem, steps_ns, out_gmem, scratch_gmem, staging_gmem, **smem):
        return LoopedCta(
            config=config, protocol=launch.protocol, communicates=True, rank=0, index=lax.axis_index("sm"),
            lhs_gmem=lhs_gmem, rhs_gmem=rhs_gmem, out_gmem=out_gmem, scratch_gmem=scratch_gmem,
            staging_gmem=staging_gmem, counters=pl.get_global(plgpu.SemaphoreType.REGULAR((num_words,))),
            steps_ns=steps_ns, **smem,
        )  # fmt: skip

    return launch.sliced(launch.run(body, *launch.padded(lhs, rhs), steps_ns)[0])


@jax.jit
def busy(x):
    return lax.fori_loop(0, 8, lambda _, y: (y @ x) * 0.01, x)


def align():
    busy(jax.random.normal(jax.random.key(9), (2048, 2048), jnp.bfloat16))
    return "jit_busy"


CONFIGS = {
    "heuristic": None,
    "default": ScatterKernelConfig(),
    "wide 16": ScatterKernelConfig(grid_tile_width=16),
    "64x192": ScatterKernelConfig(tile_n=192),
    "64x128": ScatterKernelConfig(tile_n=128, max_concurrent_steps=6),
    "128x128N": ScatterKernelConfig(tile_m=128, tile_n=128, wg_dimension=MatmulDimension.N),
}


def check(function, steps, lhs, rhs, num_ranks, partial_dtype):
    """Number of wrong elements: the D blocks of lhs side by side are the operand of a sum over all of k."""
    result = function(lhs, rhs, steps)
    side_by_side = jnp.concatenate(jnp.split(lhs, num_ranks), axis=1)
    stacked = jnp.concatenate([rhs] * num_ranks)
    compare = functools.partial(reference.compare_reduced, num_ranks=num_ranks, partial_dtype=partial_dtype)
    # XLA tunes GEMMs of its own at compilation, which takes long.
    compare = jax.jit(compare, compiler_options=CUBLAS)
    return int(compare(result, side_by_side, stacked).num_wrong)


def measure(shape, num_ranks, names, partial_dtype, count):
    m_shard, k, n = shape
    sets = []
    for seed in range(3):
        keys = jax.random.split(jax.random.key(seed))
        sizes = (num_ranks * m_shard, k), (k, n)
        sets.append([jax.random.normal(key, size, jnp.bfloat16) for key, size in zip(keys, sizes, strict=True)])
    steps = [round(BLOCK_BYTES / CTA_GBYTES_PER_S), round(BLOCK_BYTES / LINK_GBYTES_PER_S), SIGNAL_NS]
    paced, free = jnp.array(steps, jnp.int32), jnp.zeros(3, jnp.int32)
    dot = functools.partial(jnp.dot, preferred_element_type=jnp.bfloat16)
    calls = [
        (jax.jit(dot), sets),
        (jax.jit(dot, compiler_options=CUBLAS), sets),
    ]
    num_wrong = {}
    for name in names:
        sizes = {"m_shard": m_shard, "k": k, "n_shard": n, "num_ranks": num_ranks, "num_sms": hardware.num_sms()}
        config = CONFIGS[name] or scatter_heuristic_config(**sizes)
        function = jax.jit(functools.partial(looped, num_ranks=num_ranks, config=config, partial_dtype=partial_dtype))
        num_wrong[name] = check(function, paced, *sets[0], num_ranks, partial_dtype)
        calls.append((lambda lhs, rhs, function=function: function(lhs, rhs, paced), sets))
        calls.append((lambda lhs, rhs, function=function: function(lhs, rhs, free), sets))
    for function, operands in calls:
        function(*operands[0]).block_until_ready()
    times = [statistics.median(found.kernel_us) for found in profile(calls, count=count, align_on_device=align)]
    alone_us = min(times[:2])
    link_us = (num_ranks - 1) * m_shard * n * jnp.dtype(partial_dtype).itemsize / (LINK_GBYTES_PER_S * 1e3)
    for i, name in enumerate(names):
        paced_us, free_us = times[2 + 2 * i : 4 + 2 * i]
        print(
            f"looped D={num_ranks} m_shard,k_shard,n={m_shard},{k},{n} partials {jnp.dtype(partial_dtype)} {name}: "
            f"paced {paced_us:.1f} us, unpaced {free_us:.1f}, multiply alone {alone_us:.1f} (XLA {times[0]:.1f}, "
            f"cuBLAS {times[1]:.1f}), link {link_us:.1f}, ratio {paced_us / alone_us:.3f}, link over multiply "
            f"{link_us / alone_us:.2f}, {num_wrong[name]} wrong",
            flush=True,
        )
    return sum(num_wrong.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shapes", nargs="*", default=[",".join(map(str, shape)) for shape in SHAPES])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--configs", nargs="*", default=["heuristic"], choices=list(CONFIGS))
    parser.add_argument("--partials", default="bfloat16")
    parser.add_argument("--count", type=int, default=12)
    options = parser.parse_args()
    align()
    num_wrong = 0
    for shape in options.shapes:
        for num_ranks in options.ranks:
            sizes = tuple(map(int, shape.split(",")))
            num_wrong += measure(sizes, num_ranks, options.configs, options.partials, options.count)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
