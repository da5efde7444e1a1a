"""The public function on a mesh of eight CPU devices."""

import functools
import logging
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

import cmkernel
from cmkernel import hardware, reference
from cmkernel.ring import TwoLevelRing
from cmkernel.tuned import Entry, Shape

M_SHARD, K, N_SHARD = 16, 128, 24


def run(lhs, rhs, *, shape=(4,), names=("x",), axis_name="x", **options):
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))
    function = jax.shard_map(
        functools.partial(cmkernel.all_gather_matmul, axis_name=axis_name, **options),
        mesh=mesh,
        in_specs=(PartitionSpec(axis_name, None), PartitionSpec(None, axis_name)),
        out_specs=PartitionSpec(None, axis_name),
        check_vma=False,
    )
    return jax.jit(function)(lhs, rhs)


def operands(num_ranks, dtype):
    keys = jax.random.split(jax.random.key(num_ranks))
    lhs = jax.random.normal(keys[0], (num_ranks * M_SHARD, K), dtype)
    return lhs, jax.random.normal(keys[1], (K, num_ranks * N_SHARD), dtype)


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_it_multiplies_the_gathered_lhs(implementation, num_ranks, dtype):
    lhs, rhs = operands(num_ranks, dtype)
    result = run(lhs, rhs, shape=(num_ranks,), implementation=implementation)
    found = reference.compare(result, lhs, rhs)
    assert result.dtype == dtype
    assert found.num_wrong == 0
    assert found.relative_error <= found.relative_tolerance


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
def test_it_gathers_along_the_named_axis_of_a_larger_mesh(implementation):
    lhs, rhs = operands(4, jnp.float32)
    result = run(lhs, rhs, shape=(2, 4), names=("data", "x"), implementation=implementation)
    assert reference.compare(result, lhs, rhs).num_wrong == 0


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_float32_result_of_half_precision_operands_is_not_rounded(implementation, dtype):
    lhs, rhs = operands(4, dtype)
    result = run(lhs, rhs, implementation=implementation, out_dtype=jnp.float32)
    found = reference.compare(result, lhs, rhs)
    assert result.dtype == jnp.float32
    assert found.num_wrong == 0
    assert found.relative_error <= found.relative_tolerance < reference.unit_roundoff(dtype) / 4
    # The tolerance would see a rounding on the way.
    assert reference.compare(result.astype(dtype).astype(jnp.float32), lhs, rhs).num_wrong > 0


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
def test_the_result_of_a_batch_may_be_float32_too(implementation):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    product = functools.partial(
        cmkernel.all_gather_matmul, axis_name="x", implementation=implementation, out_dtype="float32"
    )
    rows, columns = PartitionSpec(None, "x", None), PartitionSpec(None, "x")
    function = jax.shard_map(
        product, mesh=mesh, in_specs=(rows, columns), out_specs=PartitionSpec(None, None, "x"), check_vma=False
    )
    lhs, rhs = operands(4, jnp.bfloat16)
    result = jax.jit(function)(lhs.reshape(2, -1, K), rhs)
    assert (result.shape, result.dtype) == ((2, 2 * M_SHARD, 4 * N_SHARD), jnp.float32)
    assert reference.compare(result.reshape(-1, 4 * N_SHARD), lhs, rhs).num_wrong == 0


@pytest.mark.parametrize("implementation", ["ppermute", "xla"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_the_operands_dtype_may_be_named(implementation, dtype):
    lhs, rhs = operands(4, dtype)
    named = run(lhs, rhs, implementation=implementation, out_dtype=dtype)
    assert named.dtype == dtype
    assert (named == run(lhs, rhs, implementation=implementation)).all()


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "implementation", "error", "message"),
    [
        ("float16", "bfloat16", "auto", ValueError, "out_dtype=bfloat16 must be lhs.dtype=float16 or float32"),
        ("bfloat16", jnp.float16, "xla", ValueError, "out_dtype=float16 must be lhs.dtype=bfloat16 or float32"),
        ("float32", jnp.bfloat16, "ppermute", ValueError, "out_dtype=bfloat16 must be lhs.dtype=float32 or float32"),
        ("bfloat16", "int32", "mosaic_gpu", ValueError, "out_dtype=int32 must be lhs.dtype=bfloat16 or float32"),
        (
            "bfloat16",
            jnp.float32,
            "mosaic_gpu_simple",
            NotImplementedError,
            "implementation='mosaic_gpu_simple' gives lhs.dtype=bfloat16, not out_dtype=float32",
        ),
    ],
)
def test_what_a_result_cannot_be(dtype, out_dtype, implementation, error, message):
    with pytest.raises(error, match=message):
        run(*operands(4, dtype), implementation=implementation, out_dtype=out_dtype)


def test_mosaic_gpu_is_refused_with_the_reason():
    with pytest.raises(NotImplementedError, match="platform='cpu' must be 'gpu'"):
        run(*operands(4, jnp.bfloat16), implementation="mosaic_gpu")


def test_auto_logs_why_it_does_not_take_the_kernel(caplog):
    with caplog.at_level(logging.INFO, logger="cmkernel"):
        run(*operands(4, jnp.bfloat16))
    assert "takes ppermute, as mosaic_gpu can't run here: platform='cpu'" in caplog.text


@pytest.mark.parametrize(("m_shard", "expected"), [(8, "xla"), (512, "mosaic_gpu")])
def test_auto_takes_what_the_model_expects_to_be_fastest_where_all_can_run(m_shard, expected, monkeypatch, caplog):
    monkeypatch.setattr(cmkernel.hardware, "unsupported_reason", lambda axis_name: None)
    monkeypatch.setattr(cmkernel.hardware, "num_sms", lambda: 132)
    choices = []

    def choose(lhs, rhs):
        choices.append(cmkernel.choose_implementation(lhs, rhs, axis_name="x"))
        return lhs

    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    specs = PartitionSpec("x", None), PartitionSpec(None, "x")
    operands = jnp.zeros((2 * m_shard, 4096), jnp.bfloat16), jnp.zeros((4096, 2 * 4096), jnp.bfloat16)
    with caplog.at_level(logging.INFO, logger="cmkernel"):
        jax.eval_shape(jax.shard_map(choose, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False), *operands)
    assert choices[0].implementation == expected
    assert (choices[0].config is not None) == (expected == "mosaic_gpu")
    assert choices[0].reason.startswith("expected to be the fastest: mosaic_gpu ")
    assert f"takes {expected}, expected" in caplog.text


@pytest.mark.parametrize("implementation", ["auto", "mosaic_gpu", "mosaic_gpu_simple"])
def test_a_kernel_needs_a_shard_map_that_does_not_track_what_varies(implementation, monkeypatch):
    monkeypatch.setattr(cmkernel.hardware, "unsupported_reason", lambda axis_name: None)
    monkeypatch.setattr(cmkernel.hardware, "num_sms", lambda: 132)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    function = functools.partial(cmkernel.all_gather_matmul, axis_name="x", implementation=implementation)
    specs = {"in_specs": (PartitionSpec("x", None), PartitionSpec(None, "x")), "out_specs": PartitionSpec(None, "x")}
    operands = jnp.zeros((1024, 4096), jnp.bfloat16), jnp.zeros((4096, 4096), jnp.bfloat16)
    with pytest.raises(ValueError, match=r"shard_map has check_vma=True, .* pass check_vma=False"):
        jax.eval_shape(jax.shard_map(function, mesh=mesh, **specs), *operands)
    jax.eval_shape(jax.shard_map(function, mesh=mesh, check_vma=False, **specs), *operands)


@pytest.mark.parametrize(
    ("lhs", "rhs", "options", "message"),
    [
        ((64, 32), (16, 64), {}, "must agree in k"),
        ((64, 32), (32, 64), {"implementation": "nccl"}, "implementation='nccl' must be one of auto, mosaic_gpu"),
        ((64, 32), (32, 64), {"implementation": "xla", "config": cmkernel.KernelConfig()}, "takes none"),
    ],
)
def test_mistakes_raise_before_compilation(lhs, rhs, options, message):
    with pytest.raises(ValueError, match=message):
        run(jnp.zeros(lhs, jnp.bfloat16), jnp.zeros(rhs, jnp.bfloat16), **options)


def test_dtypes_must_match_and_be_floating():
    lhs, rhs = operands(4, jnp.bfloat16)
    with pytest.raises(ValueError, match=r"lhs.dtype=bfloat16 and rhs.dtype=float16 must be the same"):
        run(lhs, rhs.astype(jnp.float16))
    with pytest.raises(ValueError, match=r"lhs.dtype=int8 must be float16, bfloat16 or float32"):
        run(lhs.astype(jnp.int8), rhs.astype(jnp.int8))


def jaxpr_of(num_ranks, **options):
    """The body of the product on each rank."""
    mesh = jax.make_mesh((num_ranks,), ("x",), axis_types=(AxisType.Auto,))
    function = jax.shard_map(
        functools.partial(cmkernel.all_gather_matmul, axis_name="x", **options),
        mesh=mesh,
        in_specs=(PartitionSpec("x", None), PartitionSpec(None, "x")),
        out_specs=PartitionSpec(None, "x"),
        check_vma=False,
    )
    jaxpr = jax.make_jaxpr(function)(*operands(num_ranks, jnp.bfloat16)).jaxpr.eqns[0].params["jaxpr"]
    (product,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "custom_vjp_call"]
    return product.params["call_jaxpr"].jaxpr


def is_multiply(eqn):
    return eqn.primitive.name == "dot_general" or "dot" in str(eqn.params.get("name", ""))


@pytest.mark.parametrize(
    "options", [{"implementation": "ppermute"}, {"implementation": "ppermute_two_level", "devices_per_host": 2}]
)
def test_the_rings_let_xla_overlap_their_exchanges(options):
    """Each exchange must be independent of the multiply beside it, or nothing can run in parallel."""
    depends_on_a_multiply = set()
    exchanges = 0
    for eqn in jaxpr_of(4, **options).eqns:
        tainted = any(v in depends_on_a_multiply for v in eqn.invars if not hasattr(v, "val"))
        if eqn.primitive.name == "ppermute":
            exchanges += 1
            assert not tainted
        if tainted or is_multiply(eqn):
            depends_on_a_multiply.update(eqn.outvars)
    assert exchanges == 3


# The two-level ring.

HOSTS = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2)]
TWO_AXES = {"names": ("host", "device"), "axis_name": ("host", "device")}


@pytest.mark.parametrize(
    ("num_hosts", "num_devices", "dtype"),
    [*((*hosts, jnp.bfloat16) for hosts in HOSTS), (2, 3, jnp.float16), (2, 3, jnp.float32)],
)
def test_both_rings_agree_bit_for_bit(num_hosts, num_devices, dtype):
    num_ranks = num_hosts * num_devices
    lhs, rhs = operands(num_ranks, dtype)
    flat = run(lhs, rhs, shape=(num_ranks,), implementation="ppermute")
    two_level = {"implementation": "ppermute_two_level"}
    by_number = run(lhs, rhs, shape=(num_ranks,), **two_level, devices_per_host=num_devices)
    by_axes = run(lhs, rhs, shape=(num_hosts, num_devices), **TWO_AXES, **two_level)
    assert flat.dtype == by_number.dtype == by_axes.dtype == dtype
    assert (flat == by_number).all()
    assert (flat == by_axes).all()
    assert reference.compare(flat, lhs, rhs).num_wrong == 0


@pytest.mark.parametrize(("num_chunks", "dtype"), [(2, jnp.bfloat16), (3, jnp.float32), (1000, jnp.bfloat16)])
def test_the_ring_in_pieces_multiplies_the_same_rows(num_chunks, dtype):
    lhs, rhs = operands(4, dtype)
    whole = {"shape": (4,), "implementation": "ppermute"}
    pieces = {**whole, "config": cmkernel.PpermuteConfig(num_chunks=num_chunks)}
    result = run(lhs, rhs, **pieces)
    assert reference.compare(result, lhs, rhs).num_wrong == 0
    integers = jnp.round(2 * lhs), jnp.round(2 * rhs)
    assert (run(*integers, **pieces) == run(*integers, **whole)).all()


@pytest.mark.parametrize("implementation", ["auto", "ppermute", "xla"])
def test_two_axes_are_one_ring_for_the_others(implementation):
    lhs, rhs = operands(8, jnp.bfloat16)
    result = run(lhs, rhs, shape=(2, 4), **TWO_AXES, implementation=implementation, out_dtype=jnp.float32)
    assert result.dtype == jnp.float32
    assert (result == run(lhs, rhs, shape=(8,), implementation=implementation, out_dtype=jnp.float32)).all()


def test_a_nic_is_asked_for_one_shard_a_revolution_before_its_first_multiply():
    hosts = TwoLevelRing(2, 4)
    order = []
    for eqn in jaxpr_of(8, implementation="ppermute_two_level", devices_per_host=4).eqns:
        if eqn.primitive.name == "ppermute":
            order.append("across" if eqn.params["perm"] == hosts.outer_permutation() else "within")
            assert eqn.params["perm"] in (hosts.outer_permutation(), hosts.inner_permutation())
        elif is_multiply(eqn):
            order.append("multiply")
    revolution = ["within", "multiply"] * 3 + ["multiply"]
    assert order == ["across", *revolution, *revolution]


def choose(shape=(8,), names=("x",), axis_name="x", sizes=(M_SHARD, K, N_SHARD), **options):
    """Choice that a rank would run."""
    choices = []

    def on_rank(lhs, rhs):
        choices.append(cmkernel.choose_implementation(lhs, rhs, axis_name=axis_name, **options))
        return lhs

    num_ranks, (m_shard, k, n_shard) = math.prod(shape), sizes
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))
    specs = PartitionSpec(axis_name, None), PartitionSpec(None, axis_name)
    function = jax.shard_map(on_rank, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)
    shapes = (num_ranks * m_shard, k), (k, num_ranks * n_shard)
    jax.eval_shape(function, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    return choices[0]


@pytest.mark.parametrize("hosts", [{"devices_per_host": 4}, {"shape": (2, 4), **TWO_AXES}])
def test_auto_takes_two_levels_where_the_network_is_slow(hosts, caplog):
    with caplog.at_level(logging.INFO, logger="cmkernel"):
        slow = choose(**hosts, links=cmkernel.Links(450.0, nic_gbytes_per_s=25.0))
    assert slow.implementation == "ppermute_two_level"
    assert "mosaic_gpu can't run here: " in slow.reason
    # 4096 bytes a shard; 7 cross the network one after the other, or 4 at once and then 3 within the host.
    assert "; over 2 hosts of 4 ranks expected: flat ring 1.1 us, two-level ring 0.7 us" in slow.reason
    assert f"takes ppermute_two_level, as {slow.reason}" in caplog.text
    assert choose(**hosts).implementation == "ppermute_two_level", "by the links that are assumed"


def test_auto_takes_the_flat_ring_where_two_levels_save_nothing():
    one_a_host = choose(devices_per_host=1)
    assert one_a_host.implementation == "ppermute"
    assert "over 8 hosts of 1 ranks expected: flat ring" in one_a_host.reason
    for hosts in ({}, {"devices_per_host": 8}):
        choice = choose(**hosts)
        assert choice.implementation == "ppermute"
        assert "expected" not in choice.reason


def test_a_kernel_that_needs_nvlink_is_refused_over_hosts(monkeypatch):
    monkeypatch.setattr(hardware, "unsupported_reason", lambda **_: None)
    monkeypatch.setattr(hardware, "num_sms", lambda: 132)
    assert choose(devices_per_host=8, sizes=(512, 4096, 4096)).implementation == "mosaic_gpu"
    with pytest.raises(NotImplementedError, match="the ranks are on 2 hosts, and must be on one that NVLink joins"):
        choose(devices_per_host=4, implementation="mosaic_gpu")
    with pytest.raises(NotImplementedError, match=r"axis_name=\('host', 'device'\) must be a single axis"):
        choose(shape=(2, 4), **TWO_AXES, implementation="mosaic_gpu")
    assert choose(devices_per_host=4).implementation == "ppermute_two_level"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "implementation='ppermute_two_level' needs to know the hosts: pass devices_per_host, or axis_name="),
        ({"devices_per_host": 3}, "devices_per_host=3 must divide num_ranks=8, the size of axis 'x'"),
        ({"devices_per_host": 0}, "devices_per_host=0 must divide num_ranks=8"),
        ({"shape": (2, 4), **TWO_AXES, "devices_per_host": 2}, "devices_per_host=2 must be left out, or 4, the size"),
        (
            {"shape": (2, 2, 2), "names": ("a", "b", "c"), "axis_name": ("a", "b", "c")},
            r"axis_name=\('a', 'b', 'c'\) must be one axis, or two: \(host axis, device axis\)",
        ),
        ({"devices_per_host": 4, "config": cmkernel.KernelConfig()}, "'ppermute_two_level' takes none"),
    ],
)
def test_hosts_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        choose(**options, implementation="ppermute_two_level")


@pytest.mark.parametrize("kind", ["cpu", "the first one's kind"])
def test_ranks_choose_by_the_kind_of_the_meshs_first_device(kind):
    """Not by each one's own, where hosts differ: the numbers of their exchanges would."""
    shape = {"num_ranks": 4, "m_shard": M_SHARD, "k": K, "n_shard": N_SHARD, "dtype": "float32"}
    measured = {"us": 1.0, "heuristic_us": 2.0, "date": "2026-11-30", "jax": "0.11.2"}
    entries = (
        Entry(
            shape=Shape(device_kind=name, **shape),
            implementation="ppermute",
            config=cmkernel.PpermuteConfig(num_chunks=num_chunks),
            **measured,
        )
        for name, num_chunks in (("cpu", 2), ("the first one's kind", 4))
    )
    table, choices = cmkernel.Table(tuple(entries)), []

    def multiply(lhs, rhs):
        choices.append(cmkernel.choose_implementation(lhs, rhs, axis_name="x", table=table))
        return cmkernel.all_gather_matmul(lhs, rhs, axis_name="x", table=table)

    device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=None, platform="cpu")
    mesh = jax.sharding.AbstractMesh((4,), ("x",), (AxisType.Auto,), abstract_device=device)
    specs = {"in_specs": (PartitionSpec("x"), PartitionSpec(None, "x")), "out_specs": PartitionSpec(None, "x")}
    jax.eval_shape(jax.shard_map(multiply, mesh=mesh, check_vma=False, **specs), *operands(4, jnp.float32))
    assert choices[0].config.num_chunks == (2 if kind == "cpu" else 4)
