"""The kernel's body for D virtual ranks on one Hopper GPU: exact on integers, whatever is delayed.

    PYTHONPATH=. python benchmarks/programs/virtual_ring.py [--calls N] [--ranks D ...] [--forms ...] [--delays ...]

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

from cmkernel.config import KernelConfig
from cmkernel.mosaic_gpu_cta import LOAD_WARP, SEND_WARP
from cmkernel.virtual_ring import virtual_ring_all_gather_matmul

tiles = functools.partial(KernelConfig, tile_m=64, tile_n=64, max_concurrent_steps=3, num_chunks=3)
FORMS = {
    "communication CTAs": tiles(num_comm_ctas=2),
    "in-tile": tiles(num_comm_ctas=0),
    "polling warp": tiles(num_comm_ctas=3, wait_ahead=True, num_chunks=6),
    "in-tile, polling warp": tiles(num_comm_ctas=0, wait_ahead=True, num_chunks=6),
    "both ways, halves": tiles(tile_n=128, num_comm_ctas=1, num_in_tile_chunks=1, split_last_wave=True),
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
    parser.add_argument("--forms", nargs="*", default=list(FORMS))
    parser.add_argument("--delays", nargs="*", default=list(DELAYS))
    options = parser.parse_args()
    bad = 0
    for num_ranks in options.ranks:
        for form in options.forms:
            for delay in options.delays:
                began = time.monotonic()
                num_wrong = attack(num_ranks, FORMS[form], DELAYS[delay], options.calls)
                bad += num_wrong > 0
                took = time.monotonic() - began
                print(f"D={num_ranks} {form}, delay: {delay}: {options.calls} calls, {num_wrong} wrong [{took:.1f} s]")
                sys.stdout.flush()
    return int(bad > 0)


def attack(num_ranks, config, delay, calls):
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


if __name__ == "__main__":
    sys.exit(main())
