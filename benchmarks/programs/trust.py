"""Attack the ring kernel's protocol on two Hopper GPUs, a process each.

    python benchmarks/programs/trust.py [--cpu] [item ...]      from the repository root

One line an item: how many calls, and how many elements were wrong. Operands are integers, fresh in each call, whose
products have one exact result; every call is compared on the device. --cpu rehearses the script with ppermute.
"""

import functools
import os
import random
import time

import pair
from pair import found, kernel, make, sharded, specs

# Forms of the kernel: options of KernelConfig; none: what the shape gets.
FORMS = {
    "heuristic": None,
    "communication CTAs": {"num_comm_ctas": 4},
    "in-tile": {"num_comm_ctas": 0},
    "polling warp": {"num_comm_ctas": 4, "wait_ahead": True, "num_chunks": 16},
    "both ways, halves": {"num_comm_ctas": 4, "num_in_tile_chunks": 1, "split_last_wave": True},
}
ITEMS = {
    **{f"1000 calls, {form}": ("calls", {"form": form, "count": 1000}, {}) for form in FORMS},
    **{f"late ranks, {form}": ("late", {"form": form}, {}) for form in FORMS if form != "heuristic"},
    **{f"slow warps, {form}": ("slow", {"form": form}, {}) for form in FORMS if form != "heuristic"},
    "run to run": ("same", {}, {}),
    "float32 result": ("float32", {}, {}),
}


def multiply(form, m_shard, k, n_shard, *, delay=None, out_dtype=None):
    """The kernel in one form, as a function of the shards."""
    from cmkernel import hardware, mosaic_gpu, performance_model, ppermute
    from cmkernel.config import KernelConfig

    if kernel() == "ppermute":
        return functools.partial(ppermute.ring_all_gather_matmul, axis_name="x", out_dtype=out_dtype)
    if (options := FORMS[form]) is None:
        config = performance_model.heuristic_config(
            m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=pair.NUM_RANKS, num_sms=hardware.num_sms()
        )
    else:
        config = KernelConfig(**options)
    return functools.partial(
        mosaic_gpu.ring_all_gather_matmul, axis_name="x", config=config, delay=delay, out_dtype=out_dtype
    )


def judge(function):
    """A program that draws operands from a seed, multiplies, and counts wrong elements on each rank."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    row, column = specs()

    @functools.lru_cache
    def programs(m_shard, k, n_shard):
        def draw(seed):
            def integers(stream, shape):
                key = jax.random.fold_in(jax.random.key(seed), stream)
                return jax.random.randint(key, shape, -2, 3).astype(jnp.bfloat16)

            rank = jax.lax.axis_index("x")
            gathered = jnp.concatenate([integers(i, (m_shard, k)) for i in range(pair.NUM_RANKS)])
            mine = jax.lax.dynamic_slice_in_dim(gathered, rank * m_shard, m_shard)
            return mine, integers(100 + rank, (k, n_shard)), gathered[None]

        def wrong(out, rhs, gathered):
            expected = jnp.dot(gathered[0], rhs, preferred_element_type=jnp.float32).astype(out.dtype)
            return jnp.sum(out != expected, dtype=jnp.int32)[None]

        every = P("x", None, None)
        return (
            sharded(draw, P(), (row, column, every)),
            sharded(function, (row, column), column),
            sharded(wrong, (column, column, every), P("x")),
        )

    def run(seed, m_shard, k, n_shard, before=lambda: None):
        draw, product, wrong = programs(m_shard, k, n_shard)
        lhs, rhs, gathered = draw(seed)
        before()
        return wrong(product(lhs, rhs), rhs, gathered)

    return run


def total(counts):
    import jax

    return sum(int(count.addressable_shards[0].data[0]) for count in jax.block_until_ready(counts))


SHAPE = 512, 1024, 1024


def item_calls(form, count, shape=SHAPE):
    run = judge(multiply(form, *shape))
    found(count, "calls:", total([run(seed, *shape) for seed in range(count)]), "wrong")


def item_late(form):
    """One rank, or the other, or neither, comes late to a call."""
    import jax

    run, draw = judge(multiply(form, *SHAPE)), random.Random(jax.process_index())
    counts = []
    for seed in range(200):
        late = draw.choice([0, 0, 1e-4, 1e-3, 5e-3])
        counts.append(run(seed, *SHAPE, before=lambda late=late: time.sleep(late)))
        if seed % 7 == 0:
            jax.block_until_ready(counts[-1])
    found("200 calls:", total(counts), "wrong")


def item_slow(form):
    """One warp of one rank sleeps at chosen steps; then all do, each CTA for another while."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def chosen(slow_rank, slow_warp, slow_step):
        def delay(rank, cta, warp, step):
            is_slow = (rank == slow_rank) & (step == slow_step)
            return lax.select(is_slow, jnp.int32(200 if warp == slow_warp else 0), jnp.int32(0))

        return delay

    def scattered(rank, cta, warp, step):
        # Neighbours should differ, and the sleeps reach 30 us.
        return lax.rem(rank * 79 + cta * 37 + (warp + 1) * 13 + step * 57, jnp.int32(30))

    delays = {"scattered": scattered}
    delays |= {(r, w, s): chosen(r, w, s) for r in range(2) for w in range(2) for s in range(2)}
    num_wrong = {}
    for name, delay in delays.items():
        run = judge(multiply(form, *SHAPE, delay=delay))
        num_wrong[name] = total([run(seed, *SHAPE) for seed in range(30)])
        jax.clear_caches()  # Each live executable maps the whole arena.
    bad = {name: count for name, count in num_wrong.items() if count}
    found(f"{len(delays)} delays (rank, warp, step) x 30 calls:", bad or 0, "wrong")


def item_same(shape=(1024, 4096, 4096)):
    """Normal data: every call gives the same bits."""
    import jax
    import jax.numpy as jnp

    m_shard, k, n_shard = shape
    row, column = specs()
    lhs, rhs = make(0, (2 * m_shard, k), row), make(1, (k, 2 * n_shard), column)
    function = sharded(multiply("heuristic", *shape), (row, column), column)
    first = function(lhs, rhs)
    different = jax.jit(lambda a, b: jnp.sum(a != b, dtype=jnp.int32))
    local = lambda a: a.addressable_shards[0].data  # noqa: E731
    counts = [different(local(function(lhs, rhs)), local(first)) for _ in range(300)]
    found("300 calls:", sum(map(int, counts)), "elements differ from the first call's")


def item_float32():
    import jax.numpy as jnp

    for form in FORMS:
        run = judge(multiply(form, *SHAPE, out_dtype=jnp.float32))
        found(form, "20 calls:", total([run(seed, *SHAPE) for seed in range(20)]), "wrong")


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.05")
    pair.main(__file__, ITEMS, globals(), item_s=60, total_s=150)
