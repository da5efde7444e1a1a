"""Gradients and batches: by themselves, exactly, and in a tensor-parallel model. On eight CPU devices."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import cmkernel
from cmkernel import gradient, hardware, ppermute, reference, ring, xla
from tests.parameters import mostly_slow

ROWS, COLUMNS = PartitionSpec("x", None), PartitionSpec(None, "x")
M_SHARD, K, N_SHARD = 6, 40, 10
DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)


def on_ranks(function, in_specs, out_specs, *, num_ranks=4):
    mesh = jax.make_mesh((num_ranks,), ("x",), axis_types=(AxisType.Auto,))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def multiply(**options):
    return functools.partial(cmkernel.all_gather_matmul, axis_name="x", **options)


def integers(seed, shape, dtype=jnp.float32):
    """Sums of products of these exceed what a half-precision number holds, and are exact in float32."""
    return jax.random.randint(jax.random.key(seed), shape, -9, 10).astype(dtype)


def gradients(function, lhs, rhs, d_out, *, num_ranks):
    """Gradients of ``sum(function(lhs, rhs) * d_out)``, taken on the ranks."""

    def on_rank(lhs, rhs, d_out):
        return jax.vjp(function, lhs, rhs)[1](d_out)

    return on_ranks(on_rank, (ROWS, COLUMNS, COLUMNS), (ROWS, COLUMNS), num_ranks=num_ranks)(lhs, rhs, d_out)


def num_wrong_gradients(*, num_ranks=4, dtype=jnp.bfloat16, d_out_dtype=None, **options):
    """Elements of d_lhs and of d_rhs that aren't bit for bit the exact gradient, rounded once."""
    lhs, rhs = integers(0, (num_ranks * M_SHARD, K), dtype), integers(1, (K, num_ranks * N_SHARD), dtype)
    d_out = integers(2, (num_ranks * M_SHARD, num_ranks * N_SHARD), d_out_dtype or dtype)
    d_lhs, d_rhs = gradients(multiply(**options), lhs, rhs, d_out, num_ranks=num_ranks)
    assert (d_lhs.dtype, d_rhs.dtype) == (dtype, dtype)
    return int(reference.num_different(d_lhs, d_out, rhs.T)), int(reference.num_different(d_rhs, lhs.T, d_out))


@pytest.mark.parametrize("save_gathered_lhs", [False, True])
@pytest.mark.parametrize("implementation", ["ppermute", "xla"])
@pytest.mark.parametrize(("num_ranks", "dtype"), [(1, jnp.bfloat16), (3, jnp.bfloat16), *((4, t) for t in DTYPES)])
def test_gradients_are_exact(num_ranks, dtype, implementation, save_gathered_lhs):
    found = num_wrong_gradients(
        num_ranks=num_ranks, dtype=dtype, implementation=implementation, save_gathered_lhs=save_gathered_lhs
    )
    assert found == (0, 0)


@pytest.mark.parametrize("num_chunks", [4, 100])
def test_gradients_are_exact_where_shards_came_in_pieces(num_chunks):
    options = {"implementation": "ppermute", "config": cmkernel.PpermuteConfig(num_chunks=num_chunks)}
    assert num_wrong_gradients(num_ranks=3, **options, save_gathered_lhs=True) == (0, 0)


@pytest.mark.parametrize("save_gathered_lhs", [False, True])
@pytest.mark.parametrize("implementation", ["ppermute", "xla"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_gradients_of_a_float32_result_are_exact(dtype, implementation, save_gathered_lhs):
    options = {"implementation": implementation, "out_dtype": jnp.float32, "save_gathered_lhs": save_gathered_lhs}
    assert num_wrong_gradients(dtype=dtype, d_out_dtype=jnp.float32, **options) == (0, 0)


def test_a_float32_cotangent_is_rounded_to_the_operands_dtype_first():
    lhs, rhs = integers(0, (4 * M_SHARD, K), jnp.bfloat16), integers(1, (K, 4 * N_SHARD), jnp.bfloat16)
    d_out = jax.random.normal(jax.random.key(2), (4 * M_SHARD, 4 * N_SHARD))
    product = multiply(implementation="ppermute", out_dtype=jnp.float32)
    rounded = d_out.astype(jnp.bfloat16)
    assert (rounded != d_out).any()
    found = gradients(product, lhs, rhs, d_out, num_ranks=4)
    for a, b in zip(found, gradients(product, lhs, rhs, rounded.astype(jnp.float32), num_ranks=4), strict=True):
        assert a.dtype == jnp.bfloat16
        assert (a == b).all()
    # That of a result in the operands' dtype.
    for a, b in zip(found, gradients(multiply(implementation="ppermute"), lhs, rhs, rounded, num_ranks=4), strict=True):
        assert (a == b).all()


def scatter_to_the_next_rank(x, axis_name, **options):
    return lax.ppermute(lax.psum_scatter(x, axis_name, **options), axis_name, [(i, (i + 1) % 4) for i in range(4)])


def gather_from_the_next_rank_on(x, axis_name, **options):
    return jnp.roll(lax.all_gather(x, axis_name, **options), M_SHARD, axis=0)


def scatter_rounded(x, axis_name, **options):
    return lax.psum_scatter(x.astype(jnp.bfloat16), axis_name, **options)


@pytest.mark.parametrize(
    ("module", "used", "name", "wrong", "save_gathered_lhs"),
    [
        (xla, "lax", "psum_scatter", scatter_to_the_next_rank, False),
        (xla, "lax", "psum_scatter", scatter_rounded, False),
        (gradient, "lax", "all_gather", gather_from_the_next_rank_on, False),
        (ppermute, "ring", "scattered_block", lambda rank, step, num_ranks: (rank + step) % num_ranks, False),
        (gradient, "jnp", "roll", lambda x, shift, axis: x, True),
        (gradient, "jnp", "roll", lambda x, shift, axis: jnp.roll(x, -shift, axis), True),
    ],
    ids=["scatter order", "two roundings", "gather order", "block order", "ring order kept", "ring order reversed"],
)
def test_a_wrong_backward_pass_is_found(module, used, name, wrong, save_gathered_lhs, monkeypatch):
    original = {"lax": lax, "jnp": jnp, "ring": ring}[used]
    patched = type(original)(original.__name__)
    patched.__dict__.update({**vars(original), name: wrong})
    monkeypatch.setattr(module, used, patched)
    implementation = "xla" if module is xla else "ppermute"
    found = num_wrong_gradients(implementation=implementation, save_gathered_lhs=save_gathered_lhs)
    assert found > (0, 0)


# In a model.


def gather_then_dot(lhs, rhs):
    """The all-gather and dot that ``all_gather_matmul`` replaces, with the gradient that jax derives."""
    return jnp.dot(lax.all_gather(lhs, "x", axis=0, tiled=True), rhs, precision="highest")


def layer(product, x, weights):
    """A tensor-parallel MLP with a residual: x ``[m_shard, k]``, weights ``[k, n_shard]`` and ``[n_shard, k]``."""
    up, down = weights
    hidden = jax.nn.gelu(product(x, up))
    return x + lax.psum_scatter(jnp.dot(hidden, down, precision="highest"), "x", scatter_dimension=0, tiled=True)


def model_operands(dtype, *, num_ranks, num_layers):
    keys = jax.random.split(jax.random.key(7), 4)
    rows, columns = num_ranks * M_SHARD, num_ranks * N_SHARD
    x, target = jax.random.normal(keys[0], (rows, K)), jax.random.normal(keys[1], (rows, K))
    up = jax.random.normal(keys[2], (num_layers, K, columns)) / K**0.5
    down = jax.random.normal(keys[3], (num_layers, columns, K)) / columns**0.5
    return x.astype(dtype), (up.astype(dtype), down.astype(dtype)), target.astype(dtype)


def model_gradients(product, operands, *, num_ranks=4, remat=False, scan=True):
    """Gradients of the loss for x and all weights."""
    stacked = PartitionSpec(None, None, "x"), PartitionSpec(None, "x", None)

    def loss(x, weights, target):
        def step(x, layer_weights):
            return layer(product, x, layer_weights), None

        body = jax.checkpoint(step) if remat else step
        if scan:
            x, _ = lax.scan(body, x, weights)
        else:
            for i in range(len(weights[0])):
                x, _ = body(x, jax.tree.map(lambda w, i=i: w[i], weights))
        return jnp.sum(jnp.square((x - target).astype(jnp.float32)))

    def on_rank(x, weights, target):
        return jax.grad(loss, (0, 1))(x, weights, target)

    return on_ranks(on_rank, (ROWS, stacked, ROWS), (ROWS, stacked), num_ranks=num_ranks)(*operands)


def reference_gradients(operands):
    """The same in float32 on a single device."""

    def loss(x, weights, target):
        for up, down in zip(*weights, strict=True):
            x = x + jnp.dot(jax.nn.gelu(jnp.dot(x, up, precision="highest")), down, precision="highest")
        return jnp.sum(jnp.square(x - target))

    return jax.grad(loss, (0, 1))(*jax.tree.map(lambda a: a.astype(jnp.float32), operands[:2]), operands[2])


def relative_errors(found, expected):
    def error(a, b):
        return float(jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b))

    return [error(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)]


@functools.cache
def expectations(dtype, num_ranks):
    """The operands, their float32 gradients, and how far off jax's own gradient is in ``dtype``."""
    operands = model_operands(dtype, num_ranks=num_ranks, num_layers=3)
    expected = reference_gradients(operands)
    plain = model_gradients(gather_then_dot, operands, num_ranks=num_ranks, scan=False)
    return operands, expected, relative_errors(plain, expected)


@pytest.mark.parametrize(
    ("dtype", "num_ranks", "implementation", "save_gathered_lhs", "remat"),
    mostly_slow(
        [
            (jnp.float32, 4, "ppermute", False, False),
            (jnp.float32, 4, "ppermute", True, False),
            (jnp.float32, 4, "xla", True, False),
            (jnp.float32, 4, "auto", False, True),
            (jnp.float32, 1, "ppermute", True, False),
            (jnp.bfloat16, 4, "ppermute", True, True),
            (jnp.bfloat16, 4, "xla", False, True),
            (jnp.float16, 4, "ppermute", False, True),
        ],
        fast=4,
    ),
)
def test_scanned_layers_have_the_gradients_of_the_plain_model(
    dtype, num_ranks, implementation, save_gathered_lhs, remat
):
    operands, expected, plain_errors = expectations(dtype, num_ranks)
    product = multiply(implementation=implementation, save_gathered_lhs=save_gathered_lhs)
    found = model_gradients(product, operands, num_ranks=num_ranks, remat=remat)
    errors = relative_errors(found, expected)
    # Not further off than jax's own gradient in the same dtype; in float32 both are at its roundoff, and scatter.
    floor = 4 * reference.unit_roundoff(jnp.float32)
    assert all(error <= 1.5 * plain + floor for error, plain in zip(errors, plain_errors, strict=True)), errors


def test_the_gradient_can_be_taken_around_shard_map():
    lhs, rhs = integers(0, (4 * M_SHARD, K)), integers(1, (K, 4 * N_SHARD))
    d_out = integers(2, (4 * M_SHARD, 4 * N_SHARD))
    product = on_ranks(multiply(implementation="ppermute"), (ROWS, COLUMNS), COLUMNS)
    d_lhs, d_rhs = jax.grad(lambda *operands: jnp.sum(product(*operands) * d_out), (0, 1))(lhs, rhs)
    assert reference.num_different(d_lhs, d_out, rhs.T) == 0
    assert reference.num_different(d_rhs, lhs.T, d_out) == 0


def test_forward_mode_is_refused():
    lhs, rhs = jnp.ones((M_SHARD, K)), jnp.ones((K, N_SHARD))
    with pytest.raises(TypeError, match="forward-mode"):
        on_ranks(lambda *x: jax.jvp(multiply(), x, x), (ROWS, COLUMNS), (COLUMNS, COLUMNS), num_ranks=1)(lhs, rhs)


@pytest.mark.parametrize("module", [ppermute, xla])
def test_the_gathered_lhs_is_in_rank_order(module):
    def gathered(lhs, rhs):
        if module is xla:
            return xla.all_gather_then_dot_with_lhs(lhs, rhs, axis_name="x")[1]
        received = ppermute.ring_all_gather_matmul_with_received(lhs, rhs, axis_name="x")[1]
        return gradient.in_rank_order(lhs, received, axis_name="x")

    lhs = integers(0, (4 * M_SHARD, K))
    copies = on_ranks(gathered, (ROWS, COLUMNS), ROWS)(lhs, jnp.ones((K, 4)))
    assert (copies.reshape(4, *lhs.shape) == lhs).all()


# Over hosts: a flat axis of which the hosts are known, and an axis for each level.

TWO_AXES = ("host", "device")
HOSTS = [(1, 3, "x"), (3, 1, "x"), (2, 3, "x"), (2, 3, TWO_AXES), (4, 2, "x")]


def product_on_hosts(num_hosts, num_devices, axis_name, **options):
    """``(lhs, rhs, d_out) -> (out, d_lhs, d_rhs)`` by the two-level ring, with a batch or without."""
    hosts = {} if axis_name == TWO_AXES else {"devices_per_host": num_devices}
    product = functools.partial(
        cmkernel.all_gather_matmul, axis_name=axis_name, implementation="ppermute_two_level", **hosts, **options
    )

    def on_rank(lhs, rhs, d_out):
        out, pullback = jax.vjp(product, lhs, rhs)
        return out, *pullback(d_out)

    mesh = jax.make_mesh((num_hosts, num_devices), TWO_AXES, axis_types=(AxisType.Auto,) * 2)
    if axis_name != TWO_AXES:
        mesh = jax.make_mesh((num_hosts * num_devices,), (axis_name,), axis_types=(AxisType.Auto,))

    def run(lhs, rhs, d_out):
        batch = (None,) * (lhs.ndim - 2)
        lhs_spec, out_spec = PartitionSpec(*batch, axis_name, None), PartitionSpec(*batch, None, axis_name)
        rhs_spec = PartitionSpec(None, axis_name)
        specs = (lhs_spec, rhs_spec, out_spec), (out_spec, lhs_spec, rhs_spec)
        return jax.jit(jax.shard_map(on_rank, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False))(
            lhs, rhs, d_out
        )

    return run


@pytest.mark.parametrize("save_gathered_lhs", [False, True])
@pytest.mark.parametrize(("num_hosts", "num_devices", "axis_name"), HOSTS)
def test_gradients_over_hosts_are_exact(num_hosts, num_devices, save_gathered_lhs, axis_name):
    num_ranks, dtype = num_hosts * num_devices, jnp.bfloat16
    lhs, rhs = integers(0, (num_ranks * M_SHARD, K), dtype), integers(1, (K, num_ranks * N_SHARD), dtype)
    d_out = integers(2, (num_ranks * M_SHARD, num_ranks * N_SHARD), dtype)
    product = product_on_hosts(num_hosts, num_devices, axis_name, save_gathered_lhs=save_gathered_lhs)
    out, d_lhs, d_rhs = product(lhs, rhs, d_out)
    assert int(reference.num_different(out, lhs, rhs)) == 0
    assert int(reference.num_different(d_lhs, d_out, rhs.T)) == 0
    assert int(reference.num_different(d_rhs, lhs.T, d_out)) == 0


@pytest.mark.parametrize("save_gathered_lhs", [False, True])
def test_a_batch_over_hosts_keeps_its_order(save_gathered_lhs):
    lhs, rhs = integers(0, (3, 6 * M_SHARD, K)), integers(1, (K, 6 * N_SHARD))
    d_out = integers(2, (3, 6 * M_SHARD, 6 * N_SHARD))
    product = product_on_hosts(2, 3, "x", save_gathered_lhs=save_gathered_lhs, out_dtype=jnp.float32)
    out, d_lhs, d_rhs = product(lhs, rhs, d_out)
    assert (out == jnp.einsum("bmk,kn->bmn", lhs, rhs, precision="highest")).all()
    assert (d_lhs == jnp.einsum("bmn,kn->bmk", d_out, rhs, precision="highest")).all()
    assert (d_rhs == jnp.einsum("bmk,bmn->kn", lhs, d_out, precision="highest")).all()


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_wrong_order_of_what_came_over_hosts_is_found(skipped, monkeypatch):
    def roll(x, shift, axis):
        return x if axis == skipped else jnp.roll(x, shift, axis)

    patched = type(jnp)(jnp.__name__)
    patched.__dict__.update({**vars(jnp), "roll": roll})
    monkeypatch.setattr(gradient, "jnp", patched)
    lhs, rhs = integers(0, (6 * M_SHARD, K)), integers(1, (K, 6 * N_SHARD))
    d_out = integers(2, (6 * M_SHARD, 6 * N_SHARD))
    _, _, d_rhs = product_on_hosts(2, 3, "x", save_gathered_lhs=True)(lhs, rhs, d_out)
    assert int(reference.num_different(d_rhs, lhs.T, d_out)) > 0


# A batch.

BATCHED, BATCHED_OUT = PartitionSpec(None, "x", None), PartitionSpec(None, None, "x")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("save_gathered_lhs", [False, True])
def test_a_batch_keeps_its_order_forward_and_backward(batch, save_gathered_lhs):
    lhs, rhs = integers(0, (batch, 4 * M_SHARD, K)), integers(1, (K, 4 * N_SHARD))
    d_out = integers(2, (batch, 4 * M_SHARD, 4 * N_SHARD))

    def plain(lhs, rhs):
        return jnp.dot(lax.all_gather(lhs, "x", axis=1, tiled=True), rhs, precision="highest")

    def run(product):
        def on_rank(lhs, rhs, d_out):
            out, pullback = jax.vjp(product, lhs, rhs)
            return out, *pullback(d_out)

        specs = BATCHED, COLUMNS, BATCHED_OUT
        return on_ranks(on_rank, specs, (BATCHED_OUT, BATCHED, COLUMNS))(lhs, rhs, d_out)

    found = run(multiply(implementation="ppermute", save_gathered_lhs=save_gathered_lhs))
    assert found[0].shape == (batch, 4 * M_SHARD, 4 * N_SHARD)
    for a, b in zip(found, run(plain), strict=True):
        assert a.shape == b.shape
        assert (a == b).all()
    assert (found[0] == lhs @ rhs).all()


def test_more_than_one_batch_dimension_is_refused():
    with pytest.raises(ValueError, match=r"must be \[m_shard, k\] or \[batch, m_shard, k\], and \[k, n_shard\]"):
        on_ranks(multiply(), (PartitionSpec(), COLUMNS), COLUMNS)(jnp.ones((2, 2, 8, 8)), jnp.ones((8, 8)))


# The kernels, lowered for CUDA: everything short of ptxas.


@pytest.mark.parametrize("save_gathered_lhs", [False, True])
@pytest.mark.parametrize("implementation", ["mosaic_gpu", "mosaic_gpu_simple"])
def test_scanned_layers_lower_with_the_kernels(implementation, save_gathered_lhs, monkeypatch):
    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)
    num_layers, m_shard, k, n_shard = 3, 128, 128, 256
    product = multiply(implementation=implementation, save_gathered_lhs=save_gathered_lhs)

    def loss(x, weights):
        return jnp.sum(lax.scan(jax.checkpoint(lambda x, w: (layer(product, x, w), None)), x, weights)[0])

    stacked = PartitionSpec(None, None, "x"), PartitionSpec(None, "x", None)
    program = on_ranks(jax.grad(loss, 1), (ROWS, stacked), stacked, num_ranks=2)
    shapes = (2 * m_shard, k), (num_layers, k, 2 * n_shard), (num_layers, 2 * n_shard, k)
    x, up, down = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    text = program.trace(x, (up, down)).lower(lowering_platforms=("cuda",)).as_text()
    # Forward, again for the backward pass, and the reduce-scatter there, which the simple form hasn't.
    assert assert_barriers_around_kernels(text) == (3 if implementation == "mosaic_gpu" else 2)
    # One is the gradient of the layer's reduce-scatter. A saved lhs is what the kernel received, with no gather.
    assert text.count('"stablehlo.all_gather"(') == (1 if save_gathered_lhs else 2)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("implementation", ["mosaic_gpu", "mosaic_gpu_simple"])
def test_the_kernels_lower_where_integers_have_64_bits(implementation, num_ranks, monkeypatch):
    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((num_ranks * 256, 128), (128, num_ranks * 256)))
    with jax.enable_x64(True):
        product = on_ranks(multiply(implementation=implementation), (ROWS, COLUMNS), COLUMNS, num_ranks=num_ranks)
        assert "@mosaic_gpu" in product.trace(lhs, rhs).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("implementation", ["mosaic_gpu", "mosaic_gpu_simple"])
def test_vmap_of_a_kernel_is_refused(implementation, monkeypatch):
    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)
    product = jax.vmap(multiply(implementation=implementation), (0, None))
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((3, 256, 128), (128, 512)))
    with pytest.raises(NotImplementedError, match=r"axis_size=3 .* pass lhs as \[batch, m_shard, k\]"):
        on_ranks(product, (BATCHED, COLUMNS), BATCHED_OUT, num_ranks=2).trace(lhs, rhs)


def product_of_a_loss(transform):
    """Apply ``transform`` to the gradient of a loss, for arrays around ``jax.shard_map``."""

    def program(product, lhs, rhs):
        def loss(lhs):
            return jnp.sum(jnp.square(product(lhs, rhs).astype(jnp.float32)))

        return transform(jax.grad(loss), lhs)

    return program


SECOND_DERIVATIVES = {
    "reverse over reverse": product_of_a_loss(lambda grad, lhs: jax.vjp(grad, lhs)[1](lhs)[0]),
    "forward over reverse": product_of_a_loss(lambda grad, lhs: jax.jvp(grad, (lhs,), (lhs,))[1]),
}


@pytest.mark.parametrize("save_gathered_lhs", [False, True])
@pytest.mark.parametrize("second", SECOND_DERIVATIVES.values(), ids=SECOND_DERIVATIVES)
def test_second_derivatives_of_the_portable_implementations(second, save_gathered_lhs):
    lhs, rhs = integers(0, (4 * M_SHARD, K)), integers(1, (K, 4 * N_SHARD))
    options = {"implementation": "ppermute", "save_gathered_lhs": save_gathered_lhs}
    product = on_ranks(multiply(**options), (ROWS, COLUMNS), COLUMNS)
    assert (second(product, lhs, rhs) == second(functools.partial(jnp.dot, precision="highest"), lhs, rhs)).all()


@pytest.mark.parametrize("save_gathered_lhs", [False, True])
@pytest.mark.parametrize("implementation", ["mosaic_gpu", "mosaic_gpu_simple"])
@pytest.mark.parametrize("second", SECOND_DERIVATIVES.values(), ids=SECOND_DERIVATIVES)
def test_second_derivatives_of_a_kernel_are_refused(second, implementation, save_gathered_lhs, monkeypatch):
    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)
    options = {"implementation": implementation, "save_gathered_lhs": save_gathered_lhs}
    product = on_ranks(multiply(**options), (ROWS, COLUMNS), COLUMNS, num_ranks=2)
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 128), (128, 512)))
    with pytest.raises(NotImplementedError, match=r"gradient of the kernel can't be .* again; use .*ppermute"):
        jax.jit(functools.partial(second, product)).trace(lhs, rhs)


def assert_barriers_around_kernels(text):
    """Each array has a barrier of its own: without, XLA fuses slices into the kernel; returns the number of kernels."""
    lines = text.split("\n")
    calls = [i for i, line in enumerate(lines) if "stablehlo.custom_call @mosaic_gpu" in line]
    for i in calls:
        result, operands = re.search(r"(%\d+):\d+ = stablehlo\.custom_call @\w+\(%([^)]*)\)", lines[i]).groups()
        for operand in operands.split(", %")[:2]:
            definition = next(line for line in reversed(lines[:i]) if line.lstrip().startswith(f"%{operand} = "))
            assert re.search(r" = stablehlo\.optimization_barrier %[\w#]+ : tensor", definition)
        # Names count anew in each region, so that the next value of this name ends this one's.
        redefined = f"{result}:", f"{result} ="
        after = itertools.takewhile(
            lambda line, redefined=redefined: not line.lstrip().startswith(redefined), lines[i + 1 :]
        )
        uses = [line for line in after if re.search(rf"{result}#[01]", line)]
        assert uses
        assert all(re.search(rf" = stablehlo\.optimization_barrier {result}#[01] : tensor", line) for line in uses)
    return len(calls)
