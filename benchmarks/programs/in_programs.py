"""The kernels inside programs, on two Hopper GPUs, a process each.

    python benchmarks/programs/in_programs.py [--cpu] [item ...]      from the repository root

Each item has a pair of processes of its own, 60 s at most; two pairs at a time. One line an item. --cpu rehearses the
script itself with ppermute in the kernels' place.
"""

import os
import re
import sys

import pair
from pair import distances, found, kernel, make, product, sharded, specs

FLAG = "--xla_gpu_enable_dynamic_slice_fusion=false"
ITEMS = {  # name: (function, arguments, environment)
    "jit": ("jit", {}, {}),
    "scan": ("scan", {}, {}),
    "scan, no barrier": ("scan", {"barrier": False}, {}),
    "scan, no barrier, XLA_FLAGS": ("scan", {"barrier": False}, {"XLA_FLAGS": FLAG}),
    "scan, no barrier, compiler_options": ("scan", {"barrier": False, "option": True}, {}),
    "scan, XLA_FLAGS": ("scan", {}, {"XLA_FLAGS": FLAG}),
    "fori_loop": ("fori", {}, {}),
    "gradient, mosaic_gpu": ("gradient", {"implementation": "mosaic_gpu"}, {}),
    "gradient, mosaic_gpu_simple": ("gradient", {"implementation": "mosaic_gpu_simple"}, {}),
    "batch": ("batch", {}, {}),
    "shapes, executables, donation": ("shapes", {}, {}),
    "10000 calls": ("repeated", {}, {}),
    "window limit": ("window_limit", {}, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}),
}
ALONE = {"window limit", "10000 calls"}


def item_jit():
    row, column = specs()
    lhs, rhs = make(0, (2048, 4096), row, integers=True), make(1, (4096, 4096), column, integers=True)
    out = [sharded(product(name), (row, column), column)(lhs, rhs) for name in (kernel(), "xla")]
    found("integers", distances(*out))


def without_barriers():
    import types

    from jax import lax

    import cmkernel

    fake = types.SimpleNamespace(**vars(lax))
    fake.optimization_barrier = lambda x: x
    cmkernel.mosaic_gpu.lax = fake


def stacked_operands(num_layers=3, m_shard=1024, k=1024, n_shard=2048):
    from jax.sharding import PartitionSpec as P

    row, _ = specs()
    weight_specs = P(None, None, "x"), P(None, "x", None)
    x = make(0, (2 * m_shard, k), row)
    up = make(1, (num_layers, k, 2 * n_shard), weight_specs[0], scale=k**-0.5)
    down = make(2, (num_layers, 2 * n_shard, k), weight_specs[1], scale=(2 * n_shard) ** -0.5)
    target = make(3, (2 * m_shard, k), row)
    return (x, (up, down), target), (row, weight_specs, row)


def layer(multiply, x, weights):
    import jax
    import jax.numpy as jnp

    hidden = multiply(x, weights[0])
    y = jnp.dot(jax.nn.gelu(hidden), weights[1])
    return x + jax.lax.psum_scatter(y, "x", scatter_dimension=0, tiled=True), hidden


def item_scan(barrier=True, option=False):
    import jax
    from jax.sharding import PartitionSpec as P

    operands, (row, weights, _) = stacked_operands()
    options = {"compiler_options": {"xla_gpu_enable_dynamic_slice_fusion": False}} if option else {}
    results = []
    for name in (kernel(), "xla"):
        if name != "xla" and not barrier:
            without_barriers()

        def program(x, weights, name=name):
            # Slices of the weights go in, slices of the stacked results come out.
            return jax.lax.scan(lambda x, w: layer(product(name), x, w), x, weights)

        function = sharded(program, (row, weights), (row, P(None, None, "x")), **options)
        compiled = function.lower(*operands[:2]).compile()
        if name != "xla":
            found("slice fusions", compiled.as_text().count("calls=%dynamic-slice-fusion"))
        results.append([jax.block_until_ready(compiled(*operands[:2])) for _ in range(3)][-1])
    found("x and stacked results", distances(*results))


def item_fori():
    import jax

    operands, (row, weights, _) = stacked_operands()
    results = []
    for name in (kernel(), "xla"):

        def program(x, weights, name=name):
            def step(i, x):
                up, down = (jax.lax.dynamic_index_in_dim(w, i % 3, keepdims=False) for w in weights)
                x, hidden = layer(product(name), x, (up, down))
                return x.at[0, 0].set(hidden[0, 0] * 0)

            return jax.lax.fori_loop(0, 6, step, x)

        results.append(sharded(program, (row, weights), row)(*operands[:2]))
    found("x", distances(*results))


def item_gradient(implementation):
    import jax
    import jax.numpy as jnp

    operands, in_specs = stacked_operands()

    def program(multiply, remat):
        def loss(x, weights, target):
            def step(x, w):
                return layer(multiply, x, w)[0], None

            x, _ = jax.lax.scan(jax.checkpoint(step) if remat else step, x, weights)
            return jnp.sum(jnp.square((x - target).astype(jnp.float32)))

        return sharded(jax.grad(loss, (0, 1)), in_specs, in_specs[:2])

    plain = program(lambda a, b: jnp.dot(jax.lax.all_gather(a, "x", axis=0, tiled=True), b), False)(*operands)
    for save in (False, True):
        for remat in (False, True):
            # No reference to the program stays: each live one maps the whole arena.
            multiply = product(kernel(implementation), save_gathered_lhs=save)
            gradients = program(multiply, remat)(*operands)
            found(f"{save=} {remat=}", re.sub(r" \(\d+ differ\)", "", distances(gradients, plain)))
            del gradients
            jax.clear_caches()


def item_batch():
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    batched, column, out = P(None, "x", None), P(None, "x"), P(None, None, "x")
    lhs, rhs = make(0, (4, 512, 1024), batched, integers=True), make(1, (1024, 2048), column, integers=True)

    def plain(a, b):
        return jnp.dot(jax.lax.all_gather(a, "x", axis=1, tiled=True), b, preferred_element_type=jnp.float32)

    results = [
        sharded(lambda a, b, f=f: f(a, b).astype(a.dtype), (batched, column), out)(lhs, rhs)
        for f in (product(kernel()), plain)
    ]
    found("integers", distances(*results))


def item_shapes():
    import jax

    row, column = specs()
    lhs, rhs = make(0, (2048, 1024), row, integers=True), make(1, (1024, 4096), column, integers=True)
    lhs2, rhs2 = make(2, (512, 2048), row, integers=True), make(3, (2048, 1024), column, integers=True)

    def both(multiply):
        return lambda a, b, c, d: (multiply(a, b), multiply(c, d))

    pairs = row, column, row, column
    results = [sharded(both(product(n)), pairs, (column, column))(lhs, rhs, lhs2, rhs2) for n in (kernel(), "xla")]
    found("two shapes in one program", distances(*results))
    jax.clear_caches()

    first, second = (sharded(product(kernel()), (row, column), column) for _ in range(2))
    out = [(first(lhs, rhs), second(lhs2, rhs2)) for _ in range(10)][-1]
    found("two executables in turn", distances(out, results[1]))
    del first, second
    jax.clear_caches()

    donating = sharded(product(kernel()), (row, column), column, donate_argnums=0)
    for _ in range(5):
        copy = jax.jit(lambda a: a + 0)(lhs)
        out = donating(copy, rhs)
    found("donated lhs", distances(out, results[1][0]), "deleted" if copy.is_deleted() else "not deleted")


def item_repeated():
    import jax

    row, column = specs()
    function = sharded(product(kernel()), (row, column), column)
    lhs, rhs = make(0, (512, 1024), row), make(1, (1024, 2048), column)

    def in_use():
        stats = jax.local_devices()[0].memory_stats() or {}
        return stats.get("bytes_in_use", 0)

    for i in range(10_010):
        out = jax.block_until_ready(function(lhs, rhs)) if i % 50 == 0 else function(lhs, rhs)
        if i == 9:
            del out
            before = in_use()
    jax.block_until_ready(out)
    del out
    found("bytes_in_use before", before, "after 10,000 calls", in_use())


def item_window_limit():
    import jax

    row, column = specs()
    alive = []
    for i in range(6):
        lhs, rhs = make(0, (512 * (i + 1), 1024), row), make(1, (1024, 2048), column)
        function = sharded(product(kernel()), (row, column), column)
        alive.append(function)
        try:
            jax.block_until_ready(function(lhs, rhs))
        except Exception as error:
            found("executables before the error", i, type(error).__module__, type(error).__name__, str(error)[:1500])
            sys.stdout.flush()
            os._exit(0)
    found("no error with", len(alive), "executables")


if __name__ == "__main__":
    pair.main(__file__, ITEMS, globals(), item_s=60, total_s=145, alone=ALONE)
