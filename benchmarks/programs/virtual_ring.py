"""The kernel's body for D virtual ranks on one Hopper GPU: exact on integers, whatever is delayed.

    PYTHONPATH=. python benchmarks/programs/virtual_ring.py [--op OP] [--calls N] [--ranks D ...]
        [--forms ...] [--delays ...]

One line for each number of ranks, form of the kernel and delay. Operands are fresh in each call and all calls are
compared on the device. Exits 1 where an element is wrong. Small enough for compute-sanitizer with --calls 1.
"""

import argparse
import functools
import sys
import time

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import ring
from cmkernel.config import KernelConfig, MatmulDimension, ScatterKernelConfig
from cmkernel.mosaic_gpu_cta import LOAD_WARP, SEND_WARP
from cmkernel.virtual_ring import virtual_ring_all_gather_matmul, virtual_ring_matmul_reduce_scatter

tiles = functools.partial(KernelConfig, tile_m=64, tile_n=64, max_concurrent_steps=3, num_chunks=3)
FORMS = {
    "communication CTAs": tiles(num_comm_ctas=2),
    "in-tile": tiles(num_comm_ctas=0),
    "polling warp": tiles(num_comm_ctas=3, wait_ahead=True, num_chunks=6),
    "in-tile, polling warp": tiles(num_comm_ctas=0, wait_ahead=True, num_chunks=6),
    "both ways, halves": tiles(tile_n=128, num_comm_ctas=1, num_in_tile_chunks=1, split_last_wave=True),
}
scatter_tiles = functools.partial(ScatterKernelConfig, tile_m=64, tile_n=64, max_concurrent_steps=3)
# Config, and the types of partial sums and result.
SCATTER_FORMS = {
    "small tiles": (scatter_tiles(), jnp.bfloat16, jnp.bfloat16),
    "largest tiles": (ScatterKernelConfig(), jnp.bfloat16, jnp.bfloat16),
    "along N": (scatter_tiles(wg_dimension=MatmulDimension.N), jnp.bfloat16, jnp.bfloat16),
    "float32 partials": (scatter_tiles(tile_n=128), jnp.float32, jnp.bfloat16),
    "float32 result": (scatter_tiles(), jnp.bfloat16, jnp.float32),
}
# Tiles over the edges of the shard, and more tiles than CTAs.
M_SHARD, K, N_SHARD = 328, 832, 712


def scattered(rank, cta, warp, step):
    """Everybody sleeps, each another while, up to 50 us."""
    return lax.rem(rank * 79 + cta * 37 + (warp + 1) * 13 + step * 57, jnp.int32(50))


def late(slow_warp):
    def delay(rank, cta, warp, step):
        """Rank 1 sleeps 200 us in each of its odd steps."""
        is_late = (rank == 1) & (lax.rem(step, jnp.int32(2)) == 1)
        return lax.select(is_late, jnp.int32(200 if warp == slow_warp else 0), jnp.int32(0))

    return delay


DELAYS = {"none": None, "scattered": scattered, "late loads": late(LOAD_WARP), "late sends": late(SEND_WARP)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4, 8])
    parser.add_argument("--op", choices=ATTACKS, default="all_gather_matmul")
    parser.add_argument("--forms", nargs="*")
    parser.add_argument("--delays", nargs="*", default=list(DELAYS))
    options = parser.parse_args()
    forms, attack = ATTACKS[options.op]
    bad = 0
    for num_ranks in options.ranks:
        for form in options.forms or forms:
            for delay in options.delays:
                began = time.monotonic()
                num_wrong = attack(num_ranks, forms[form], DELAYS[delay], options.calls)
                bad += num_wrong > 0
                took = time.monotonic() - began
                case = f"{options.op} D={num_ranks} {form}, delay: {delay}"
                print(f"{case}: {options.calls} calls, {num_wrong} wrong [{took:.1f} s]")
                sys.stdout.flush()
    return int(bad > 0)


def attack_gather(num_ranks, config, delay, calls):
    @jax.jit
    def call(seed):
        keys = jax.random.split(jax.random.key(seed))
        lhs = jax.random.randint(keys[0], (num_ranks, M_SHARD, K), -2, 3).astype(jnp.bfloat16)
        rhs = jax.random.randint(keys[1], (num_ranks, K, N_SHARD), -2, 3).astype(jnp.bfloat16)
        out = virtual_ring_all_gather_matmul(lhs, rhs, config=config, delay=delay)
        gathered = lhs.reshape(num_ranks * M_SHARD, K)
        expected = jnp.einsum("mk,dkn->dmn", gathered, rhs, preferred_element_type=jnp.float32)
        return jnp.sum(out != expected.astype(out.dtype), dtype=jnp.int32)

    return sum(int(count) for count in [call(seed) for seed in range(calls)])


def attack_scatter(num_ranks, form, delay, calls):
    config, partial_dtype, out_dtype = form

    @jax.jit
    def call(seed):
        keys = jax.random.split(jax.random.key(seed))
        lhs = jax.random.randint(keys[0], (num_ranks, num_ranks * M_SHARD, K), -2, 3).astype(jnp.bfloat16)
        rhs = jax.random.randint(keys[1], (num_ranks, K, N_SHARD), -2, 3).astype(jnp.bfloat16)
        out = virtual_ring_matmul_reduce_scatter(
            lhs, rhs, config=config, out_dtype=out_dtype, partial_dtype=partial_dtype, delay=delay
        )
        partials = jnp.einsum("dmk,dkn->dmn", lhs, rhs, preferred_element_type=jnp.float32)
        partials = partials.reshape(num_ranks, num_ranks, M_SHARD, N_SHARD)  # by sender and owner
        # lax.reduce_precision rather than a conversion there and back, which XLA may drop.
        info = jnp.finfo(partial_dtype)
        rounded = lax.reduce_precision(partials, info.nexp, info.nmant)
        num_wrong = jnp.int32(0)
        for owner in range(num_ranks):
            total = partials[owner, owner]
            for slot in range(num_ranks - 1):
                total += rounded[ring.partial_sender(owner, slot, num_ranks), owner]
            num_wrong += jnp.sum(out[owner] != total.astype(out_dtype), dtype=jnp.int32)
        return num_wrong

    return sum(int(count) for count in [call(seed) for seed in range(calls)])


ATTACKS = {
    "all_gather_matmul": (FORMS, attack_gather),
    "matmul_reduce_scatter": (SCATTER_FORMS, attack_scatter),
}

if __name__ == "__main__":
    sys.exit(main())
