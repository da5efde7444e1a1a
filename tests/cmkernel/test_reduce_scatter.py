"""``matmul_reduce_scatter`` on CPU devices: against float64, exactly, its gradients, and in a tensor-parallel layer."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import cmkernel
from cmkernel import reference, ring
from cmkernel.tuned import Entry, Shape
from tests.parameters import mostly_slow

ROWS, COLUMNS = PartitionSpec("x", None), PartitionSpec(None, "x")
M_SHARD, K_SHARD, N = 6, 24, 20
HALVES = (jnp.bfloat16, jnp.float16)


def on_ranks(function, in_specs, out_specs, *, num_ranks, names=("x",)):
    sizes = num_ranks if isinstance(num_ranks, tuple) else (num_ranks,)
    mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def scatter(**options):
    return functools.partial(cmkernel.matmul_reduce_scatter, axis_name="x", **options)


def run(lhs, rhs, *, num_ranks, **options):
    return on_ranks(scatter(**options), (COLUMNS, ROWS), ROWS, num_ranks=num_ranks)(lhs, rhs)


def normal(num_ranks, dtype, *, k_shard=K_SHARD):
    keys = jax.random.split(jax.random.key(num_ranks))
    lhs = jax.random.normal(keys[0], (num_ranks * M_SHARD, num_ranks * k_shard), dtype)
    return lhs, jax.random.normal(keys[1], (num_ranks * k_shard, N), dtype)


def integers(seed, shape, dtype=jnp.float32, most=9):
    return jax.random.randint(jax.random.key(seed), shape, -most, most + 1).astype(dtype)


def relative_error_of_float64(result, lhs, rhs):
    exact = np.asarray(lhs, np.float64) @ np.asarray(rhs, np.float64)
    return np.linalg.norm(np.asarray(result, np.float64) - exact) / np.linalg.norm(exact)


# The result.


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
@pytest.mark.parametrize(
    ("num_ranks", "dtype", "partial_dtype"),
    [
        (1, jnp.bfloat16, None),
        (2, jnp.bfloat16, None),
        (2, jnp.float16, jnp.float32),
        (3, jnp.float16, None),
        (3, jnp.float32, None),
        (4, jnp.bfloat16, jnp.float32),
        (4, jnp.bfloat16, None),
        (4, jnp.float32, jnp.float32),
    ],
)
def test_it_is_the_sum_over_ranks_within_the_derived_tolerance(implementation, num_ranks, dtype, partial_dtype):
    lhs, rhs = normal(num_ranks, dtype)
    result = run(lhs, rhs, num_ranks=num_ranks, implementation=implementation, partial_dtype=partial_dtype)
    assert (result.shape, result.dtype) == ((num_ranks * M_SHARD, N), dtype)
    compared = reference.compare_reduced(
        result,
        lhs,
        rhs,
        num_ranks=num_ranks,
        partial_dtype=partial_dtype or dtype,
        num_roundings=num_ranks if implementation == "xla" else 1,
    )
    assert compared.num_wrong == 0
    assert compared.relative_error <= compared.relative_tolerance
    limit = {jnp.float32: 1e-6, jnp.float16: 1e-3, jnp.bfloat16: 8e-3}[dtype]
    assert relative_error_of_float64(result, lhs, rhs) < limit


@pytest.mark.parametrize("num_chunks", [1, 4, 100])
@pytest.mark.parametrize(("dtype", "partial_dtype"), [(jnp.bfloat16, None), (jnp.float16, jnp.float32)])
def test_the_ring_in_pieces_gives_the_same_bits(num_chunks, dtype, partial_dtype):
    lhs, rhs = normal(4, dtype)
    options = {"num_ranks": 4, "implementation": "ppermute", "partial_dtype": partial_dtype}
    pieces = run(lhs, rhs, **options, config=cmkernel.PpermuteConfig(num_chunks=num_chunks))
    # By hand: each partial sum rounded once, the owner's in float32, added in the order of the slots.
    parts = [
        reference.oracle(lhs[:, r * K_SHARD : (r + 1) * K_SHARD], rhs[r * K_SHARD : (r + 1) * K_SHARD])
        for r in range(4)
    ]
    for rank in range(4):
        rows = slice(rank * M_SHARD, (rank + 1) * M_SHARD)
        total = parts[rank][rows]
        for slot in range(3):
            sender = ring.partial_sender(rank, slot, 4)
            total += parts[sender][rows].astype(partial_dtype or dtype).astype(jnp.float32)
        error = jnp.abs(pieces[rows].astype(jnp.float32) - total)
        assert (error <= reference.unit_roundoff(dtype) * jnp.abs(total) * 1.01 + 1e-5).all()


@pytest.mark.parametrize("implementation", ["ppermute", "xla"])
@pytest.mark.parametrize(("num_ranks", "dtype"), [(2, jnp.bfloat16), (3, jnp.float16), (4, jnp.float32)])
def test_integers_are_exact(implementation, num_ranks, dtype):
    lhs = integers(0, (num_ranks * M_SHARD, num_ranks * K_SHARD), dtype)
    rhs = integers(1, (num_ranks * K_SHARD, N), dtype)
    options = {"num_ranks": num_ranks, "implementation": implementation, "partial_dtype": jnp.float32}
    assert reference.num_different(run(lhs, rhs, **options), lhs, rhs) == 0
    wide = run(lhs, rhs, **options, out_dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert (wide == reference.oracle(lhs, rhs)).all()


def test_integers_that_fit_the_partials_type_are_exact_in_it():
    lhs, rhs = integers(0, (24, 4 * K_SHARD), jnp.bfloat16, most=2), integers(1, (4 * K_SHARD, N), jnp.bfloat16, most=2)
    assert reference.num_different(run(lhs, rhs, num_ranks=4, implementation="ppermute"), lhs, rhs) == 0


def test_a_float32_result_of_rounded_partials_shows_one_rounding_each():
    lhs, rhs = normal(4, jnp.bfloat16, k_shard=128)
    result = run(lhs, rhs, num_ranks=4, implementation="ppermute", out_dtype=jnp.float32)
    options = {"num_ranks": 4, "partial_dtype": jnp.bfloat16}
    assert reference.compare_reduced(result, lhs, rhs, **options).num_wrong == 0
    assert reference.compare(result, lhs, rhs).num_wrong > 0, "the partial sums were rounded"
    wide = run(lhs, rhs, num_ranks=4, implementation="ppermute", out_dtype=jnp.float32, partial_dtype="float32")
    assert reference.compare(wide, lhs, rhs).num_wrong == 0


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda rank, step, num: (rank + step) % num, id="order of blocks"),
        pytest.param(lambda rank, step, num: (rank + 2 + step) % num, id="own block not last"),
    ],
)
def test_a_wrong_schedule_is_seen(spoil, monkeypatch):
    monkeypatch.setattr(ring, "scattered_block", spoil)
    lhs, rhs = integers(0, (18, 3 * K_SHARD)), integers(1, (3 * K_SHARD, N))
    result = run(lhs, rhs, num_ranks=3, implementation="ppermute")
    assert reference.num_different(result, lhs, rhs) > 0


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_the_schedule(num_ranks):
    for rank in range(num_ranks):
        blocks = [ring.scattered_block(rank, step, num_ranks) for step in range(num_ranks)]
        assert sorted(blocks) == list(range(num_ranks))
        assert blocks[-1] == rank
    for step in range(num_ranks - 1):
        for source, owner in ring.scatter_permutation(step, num_ranks):
            assert ring.partial_sender(owner, step, num_ranks) == source


@pytest.mark.parametrize("implementation", ["ppermute", "xla"])
def test_two_axes_are_one(implementation):
    lhs, rhs = integers(0, (4 * M_SHARD, 4 * K_SHARD)), integers(1, (4 * K_SHARD, N))
    axes = ("host", "device")
    product = functools.partial(cmkernel.matmul_reduce_scatter, axis_name=axes, implementation=implementation)
    specs = (PartitionSpec(None, axes), PartitionSpec(axes, None)), PartitionSpec(axes, None)
    result = on_ranks(product, *specs, num_ranks=(2, 2), names=axes)(lhs, rhs)
    assert reference.num_different(result, lhs, rhs) == 0


def test_exchanges_do_not_wait_for_later_multiplies():
    """Each exchange depends on one multiply alone, or nothing can run in parallel."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    function = jax.shard_map(
        scatter(implementation="ppermute"), mesh=mesh, in_specs=(COLUMNS, ROWS), out_specs=ROWS, check_vma=False
    )
    jaxpr = jax.make_jaxpr(function)(*normal(4, jnp.bfloat16)).jaxpr.eqns[0].params["jaxpr"]
    (product,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "custom_vjp_call"]
    multiplies_behind, found = {}, []
    for eqn in product.params["call_jaxpr"].jaxpr.eqns:
        behind = frozenset().union(*(multiplies_behind.get(v, ()) for v in eqn.invars if not hasattr(v, "val")))
        if eqn.primitive.name == "ppermute":
            found.append(len(behind))
        if eqn.primitive.name == "dot_general" or "dot" in str(eqn.params.get("name", "")):
            behind |= {id(eqn)}
        multiplies_behind.update(dict.fromkeys(eqn.outvars, behind))
    assert found == [1, 1, 1]


# Gradients.


def pullback(product, lhs, rhs, d_out, *, num_ranks, batch=False):
    """Result and gradients of ``sum(product(lhs, rhs) * d_out)``, taken on the ranks."""

    def on_rank(lhs, rhs, d_out):
        out, pull = jax.vjp(product, lhs, rhs)
        return out, *pull(d_out)

    lhs_spec, out_spec = (PartitionSpec(None, *spec) if batch else spec for spec in (COLUMNS, ROWS))
    specs = (lhs_spec, ROWS, out_spec), (out_spec, lhs_spec, ROWS)
    return on_ranks(on_rank, *specs, num_ranks=num_ranks)(lhs, rhs, d_out)


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
@pytest.mark.parametrize(
    ("num_ranks", "dtype", "out_dtype"),
    [
        (1, jnp.bfloat16, None),
        (2, jnp.float16, jnp.float32),
        (3, jnp.bfloat16, None),
        (4, jnp.float32, None),
        (4, jnp.bfloat16, jnp.float32),
    ],
)
def test_gradients_are_exact(implementation, num_ranks, dtype, out_dtype):
    lhs = integers(0, (num_ranks * M_SHARD, num_ranks * K_SHARD), dtype)
    rhs, d_out = integers(1, (num_ranks * K_SHARD, N), dtype), integers(2, (num_ranks * M_SHARD, N), out_dtype or dtype)
    product = scatter(implementation=implementation, out_dtype=out_dtype)
    _, d_lhs, d_rhs = pullback(product, lhs, rhs, d_out, num_ranks=num_ranks)
    assert (d_lhs.dtype, d_rhs.dtype) == (dtype, dtype)
    assert reference.num_different(d_lhs, d_out, rhs.T) == 0
    assert reference.num_different(d_rhs, lhs.T, d_out) == 0


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_keeps_its_order_forward_and_backward(batch):
    lhs, rhs = integers(0, (batch, 4 * M_SHARD, 4 * K_SHARD)), integers(1, (4 * K_SHARD, N))
    d_out = integers(2, (batch, 4 * M_SHARD, N))
    product = scatter(implementation="ppermute")
    out, d_lhs, d_rhs = pullback(product, lhs, rhs, d_out, num_ranks=4, batch=True)
    assert (out == jnp.einsum("bmk,kn->bmn", lhs, rhs, precision="highest")).all()
    assert (d_lhs == jnp.einsum("bmn,kn->bmk", d_out, rhs, precision="highest")).all()
    assert (d_rhs == jnp.einsum("bmk,bmn->kn", lhs, d_out, precision="highest")).all()


@pytest.mark.parametrize("partial_dtype", [None, jnp.bfloat16])
def test_the_gradient_of_the_gather_sends_what_it_is_told(partial_dtype):
    """float32 by default: rounded once. In the operands' dtype each partial sum is rounded too."""
    lhs, rhs = normal(4, jnp.bfloat16, k_shard=16)[0][:, :40], integers(1, (40, 4 * N), jnp.bfloat16)
    d_out = jax.random.normal(jax.random.key(5), (24, 4 * N), jnp.bfloat16)
    product = functools.partial(
        cmkernel.all_gather_matmul, axis_name="x", implementation="ppermute", partial_dtype=partial_dtype
    )

    def d_lhs_of(lhs, rhs, d_out):
        return jax.vjp(product, lhs, rhs)[1](d_out)[0]

    d_lhs = on_ranks(d_lhs_of, (ROWS, COLUMNS, COLUMNS), ROWS, num_ranks=4)(lhs, rhs, d_out)
    once = reference.compare_reduced(d_lhs, d_out, rhs.T, num_ranks=4, partial_dtype=jnp.float32)
    twice = reference.compare_reduced(d_lhs, d_out, rhs.T, num_ranks=4, partial_dtype=jnp.bfloat16)
    assert twice.num_wrong == 0
    assert (once.num_wrong == 0) == (partial_dtype is None)


def test_second_derivatives_of_the_portable_ring():
    lhs, rhs = integers(0, (12, 2 * K_SHARD), most=3), integers(1, (2 * K_SHARD, N), most=3)
    product = on_ranks(scatter(implementation="ppermute"), (COLUMNS, ROWS), ROWS, num_ranks=2)

    def second(product):
        def loss(lhs):
            return jnp.sum(jnp.square(product(lhs, rhs)))

        return jax.jvp(jax.grad(loss), (lhs,), (lhs,))[1]

    assert (second(product) == second(functools.partial(jnp.dot, precision="highest"))).all()


def test_forward_mode_is_refused():
    operands = normal(2, jnp.float32)
    with pytest.raises(TypeError, match="forward-mode"):
        on_ranks(lambda *x: jax.jvp(scatter(), x, x), (COLUMNS, ROWS), (ROWS, ROWS), num_ranks=2)(*operands)


# A layer: gather and up, an activation, down and reduce-scatter.

LAYERS, WIDTH, HIDDEN = 2, 16, 8  # hidden columns of a rank


def layer(x, weights, **options):
    up, down = weights
    gather = functools.partial(cmkernel.all_gather_matmul, axis_name="x", **options)
    return x + scatter(**options)(jax.nn.silu(gather(x, up)), down)


def layer_operands(num_ranks, dtype):
    keys = jax.random.split(jax.random.key(11), 3)
    x = jax.random.normal(keys[0], (num_ranks * M_SHARD, WIDTH))
    up = jax.random.normal(keys[1], (LAYERS, WIDTH, num_ranks * HIDDEN)) / WIDTH**0.5
    down = jax.random.normal(keys[2], (LAYERS, num_ranks * HIDDEN, WIDTH)) / (num_ranks * HIDDEN) ** 0.5
    return x.astype(dtype), (up.astype(dtype), down.astype(dtype))


def loss_and_gradients(num_ranks, operands, *, remat, scan, **options):
    stacked = PartitionSpec(None, None, "x"), PartitionSpec(None, "x", None)

    def loss(x, weights):
        def step(x, layer_weights):
            return layer(x, layer_weights, **options), None

        body = jax.checkpoint(step) if remat else step
        if scan:
            x, _ = lax.scan(body, x, weights)
        else:
            for i in range(LAYERS):
                x, _ = body(x, jax.tree.map(lambda w, i=i: w[i], weights))
        return jnp.sum(jnp.square(x.astype(jnp.float32)))

    def on_rank(x, weights):
        value, gradients = jax.value_and_grad(loss, (0, 1))(x, weights)
        return lax.psum(value, "x"), gradients

    specs = (ROWS, stacked), (PartitionSpec(), (ROWS, stacked))
    return on_ranks(on_rank, *specs, num_ranks=num_ranks)(*operands)


def expected_loss_and_gradients(operands):
    """The same on one device, in float64 as NumPy's operands and jax's rules would have it, in float32 matmuls."""

    def loss(x, weights):
        for up, down in zip(*weights, strict=True):
            hidden = jax.nn.silu(jnp.dot(x, up, precision="highest"))
            x = x + jnp.dot(hidden, down, precision="highest")
        return jnp.sum(jnp.square(x))

    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), operands)
        return jax.tree.map(np.asarray, jax.value_and_grad(loss, (0, 1))(*wide))


@pytest.mark.parametrize(
    ("num_ranks", "dtype", "implementation", "partial_dtype", "remat", "scan"),
    mostly_slow(
        [
            (2, jnp.float32, "ppermute", None, False, True),
            (3, jnp.float32, "xla", None, True, True),
            (4, jnp.float32, "auto", jnp.float32, True, False),
            (4, jnp.bfloat16, "ppermute", None, True, True),
            (4, jnp.bfloat16, "ppermute", jnp.float32, False, True),
            (2, jnp.float16, "xla", jnp.float16, False, False),
        ],
        fast=4,
    ),
)
def test_a_layer_has_the_gradients_of_one_device(num_ranks, dtype, implementation, partial_dtype, remat, scan):
    operands = layer_operands(num_ranks, dtype)
    options = {"implementation": implementation, "partial_dtype": partial_dtype}
    found = loss_and_gradients(num_ranks, operands, remat=remat, scan=scan, **options)
    limit = {jnp.float32: 1e-5, jnp.float16: 1e-2, jnp.bfloat16: 5e-2}[dtype]
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected_loss_and_gradients(operands)), strict=True):
        assert np.linalg.norm(np.asarray(a, np.float64) - b) <= limit * np.linalg.norm(b)


# Refusals and choices.


@pytest.mark.parametrize(
    ("lhs", "rhs", "options", "message"),
    [
        ((18, 8), (8, 4), {}, r"m=18, the rows of lhs, must be a multiple of num_ranks=4, the size of axis 'x'"),
        ((2, 6, 8), (8, 4), {}, r"m=6, the rows of lhs, must be a multiple of num_ranks=4"),
        ((16, 8), (12, 4), {}, "must agree in k"),
        ((16,), (8, 4), {}, r"must be \[m, k_shard\] or \[batch, m, k_shard\], and \[k_shard, n\]"),
        (
            (16, 8),
            (8, 4),
            {"implementation": "ppermute_two_level"},
            "implementation='ppermute_two_level' must be one of auto, mosaic_gpu, ppermute, xla for matmul_reduce_scat",
        ),
        ((16, 8), (8, 4), {"implementation": "xla", "config": cmkernel.PpermuteConfig()}, "takes none"),
        (
            (16, 8),
            (8, 4),
            {"implementation": "ppermute", "config": cmkernel.KernelConfig()},
            "config is a KernelConfig, but implementation='ppermute' takes a PpermuteConfig",
        ),
        ((16, 8), (8, 4), {"partial_dtype": jnp.float16}, "partial_dtype=float16 must be lhs.dtype=bfloat16 or float"),
        ((16, 8), (8, 4), {"out_dtype": jnp.int32}, "out_dtype=int32 must be lhs.dtype=bfloat16 or float32"),
    ],
)
def test_mistakes_raise_before_compilation(lhs, rhs, options, message):
    operands = jnp.zeros(lhs, jnp.bfloat16), jnp.zeros(rhs, jnp.bfloat16)
    specs = (PartitionSpec(), PartitionSpec()), PartitionSpec("x")
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(on_ranks(scatter(**options), *specs, num_ranks=4), *operands)


def test_dtypes_must_match():
    lhs, rhs = jnp.zeros((16, 8), jnp.bfloat16), jnp.zeros((8, 4), jnp.float16)
    with pytest.raises(ValueError, match=r"lhs.dtype=bfloat16 and rhs.dtype=float16 must be the same"):
        run(lhs, rhs, num_ranks=4)


def test_the_kernel_is_refused_on_a_cpu_and_auto_says_so(caplog):
    lhs, rhs = normal(2, jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="implementation='mosaic_gpu' can't run here: "):
        run(lhs, rhs, num_ranks=2, implementation="mosaic_gpu")
    with caplog.at_level(logging.INFO, logger="cmkernel"):
        run(lhs, rhs, num_ranks=2)
    assert "implementation='auto' takes ppermute, as mosaic_gpu can't run here: " in caplog.text


def test_a_table_of_the_other_operation_serves_nothing():
    shape = {"device_kind": "cpu", "num_ranks": 4, "m_shard": M_SHARD, "k": K_SHARD, "n_shard": N, "dtype": "float32"}
    measured = {"us": 1.0, "heuristic_us": 2.0, "date": "2026-12-01", "jax": "0.11.2"}

    def chunks(op):
        entry = Entry(
            shape=Shape(**shape, op=op),
            implementation="ppermute",
            config=cmkernel.PpermuteConfig(num_chunks=2),
            **measured,
        )
        assert Entry.from_json(entry.to_json()) == entry
        assert ("op" in entry.to_json()) == (op != "all_gather_matmul")
        choices = []

        def choose(lhs, rhs):
            choices.append(
                cmkernel.choose_implementation(
                    lhs, rhs, axis_name="x", op="matmul_reduce_scatter", table=cmkernel.Table((entry,))
                )
            )
            return lhs

        on_ranks(choose, (COLUMNS, ROWS), COLUMNS, num_ranks=4).trace(*normal(4, jnp.float32))
        return choices[0].config.num_chunks

    assert chunks("matmul_reduce_scatter") == 2
    assert chunks("all_gather_matmul") == 1
    with pytest.raises(ValueError, match="op='all_reduce' must be one of all_gather_matmul, matmul_reduce_scatter"):
        Shape(**shape, op="all_reduce")
