"""The oracle of every operation accepts what is right and refuses what is wrong, on a mesh of CPU devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jobs.measure import inputs, programs
from jobs.measure.operations import OPERATIONS
from jobs.measure.operations.operation import Place
from jobs.measure.programs import Request
from jobs.records import work
from jobs.records.case import Case
from jobs.records.op import Op

OPS = list(Op)
SCATTERING = OPS[1:]


def case_of(op, num_ranks=2, dtype="bfloat16", partial_dtype=None):
    sizes = {"m_shard": 16, "k": 64, "n_shard": 32}
    return Case(name="tiny", **sizes, dtype=dtype, num_ranks=num_ranks, op=op, partial_dtype=partial_dtype)


def mesh_of(num_ranks):
    devices = jax.devices()[:num_ranks]
    return jax.make_mesh((num_ranks,), (inputs.AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def arrays(case, mesh, seed, *, integers=False):
    """Global operands of one process that has all ranks; in a job each rank is a process of its own."""
    operation = OPERATIONS[case.op]
    made = []
    for index, spec in enumerate(operation.in_specs):
        shards = [operation.shard(case, index, rank, seed, integers=integers) for rank in range(case.num_ranks)]
        whole = np.concatenate(shards, axis=list(spec).index(inputs.AXIS))
        made.append(jax.device_put(whole, jax.sharding.NamedSharding(mesh, spec)))
    return tuple(made)


@functools.cache
def computed(case, implementation="ppermute", *, integers=False, chain=False):
    """Results of each rank, as tuples of shards, and the program."""
    mesh = mesh_of(case.num_ranks)
    sets = [arrays(case, mesh, seed, integers=integers) for seed in (4, 5)]
    program = programs.build(Request("baseline", implementation), case, mesh, sets[0], chain_length=4)
    results = program.chain(sets) if chain else program.call(*sets[1])
    by_rank = [tuple(one.addressable_shards[rank].data for one in results) for rank in range(case.num_ranks)]
    return [tuple(jnp.asarray(np.asarray(one)) for one in shards) for shards in by_rank], program


def comparisons(case, results, program, rank=0):
    return OPERATIONS[case.op].compare(
        Place(case, rank, 5), results, num_roundings=program.num_roundings(case.num_ranks)
    )


def is_right(compared):
    return all(int(one.num_wrong) == 0 and one.relative_error <= one.relative_tolerance for one in compared)


@pytest.mark.parametrize(("implementation", "chain"), [("ppermute", False), ("xla", True), ("xla_sharded", True)])
@pytest.mark.parametrize("op", OPS)
def test_what_is_right_passes_on_every_rank(op, implementation, chain):
    case = case_of(op, num_ranks=4)
    results, program = computed(case, implementation, chain=chain)
    for rank, shards in enumerate(results):
        assert is_right(comparisons(case, shards, program, rank))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op", OPS)
def test_other_types_and_an_odd_number_of_ranks_pass(op, dtype):
    case = case_of(op, num_ranks=3, dtype=dtype)
    results, program = computed(case)
    assert all(is_right(comparisons(case, shards, program, rank)) for rank, shards in enumerate(results))


@pytest.mark.parametrize("op", SCATTERING)
def test_partial_sums_in_float32_lose_less(op):
    """So much less that what travelled in bfloat16 is found wrong against their tolerance."""
    narrow, wide = case_of(op, num_ranks=4), case_of(op, num_ranks=4, partial_dtype="float32")
    results, program = computed(wide)
    assert is_right(comparisons(wide, results[1], program, 1))
    error = [float(comparisons(case, computed(case)[0][1], program, 1)[0].relative_error) for case in (narrow, wide)]
    assert error[1] < error[0]


@pytest.mark.parametrize(
    ("implementation", "op", "roundings"),
    [("ppermute", Op.mlp_grad, 1), ("xla", Op.mlp, 2), ("auto", Op.matmul_reduce_scatter, 1), ("auto", Op.mlp_grad, 2)],
)
def test_a_sum_is_rounded_once_where_it_is_added_in_float32(implementation, op, roundings):
    """The backward pass of ``auto`` may take ``xla``, which rounds more often."""
    case, mesh = case_of(op), mesh_of(2)
    program = programs.build(Request("auto", implementation), case, mesh, arrays(case, mesh, 5), chain_length=2)
    assert program.num_roundings(2) == roundings


@pytest.mark.parametrize("op", OPS)
def test_the_tolerance_is_near_what_is_lost(op):
    """A bound that is far away finds no error."""
    case = case_of(op, num_ranks=4)
    results, program = computed(case)
    for one in comparisons(case, results[0], program):
        assert one.relative_tolerance < 12 * one.relative_error


@pytest.mark.parametrize("op", OPS)
def test_a_result_of_another_rank_is_wrong(op):
    case = case_of(op)
    results, program = computed(case)
    compared = comparisons(case, results[1], program, 0)
    assert not any(is_right([one]) for one in compared)


@pytest.mark.parametrize("op", OPS)
def test_one_wrong_element_of_any_result_is_found(op):
    case = case_of(op)
    results, program = computed(case)
    for place, right in enumerate(results[0]):
        last = (-1,) * right.ndim
        wrong = right.at[last].add(jnp.asarray(1 + jnp.max(jnp.abs(right)), right.dtype))
        compared = comparisons(case, (*results[0][:place], wrong, *results[0][place + 1 :]), program)
        assert [int(one.num_wrong) for one in compared] == [int(i == place) for i in range(len(compared))]


@pytest.mark.parametrize("op", SCATTERING)
def test_a_missing_partial_sum_is_found(op):
    """As if one rank's contribution had not arrived."""
    case = case_of(op)
    operation = OPERATIONS[op]
    results, program = computed(case)
    own = operation.run_alone(*operation.alone(case, 0, 5))[0][: case.m_shard]
    assert not is_right(comparisons(case, (own, *results[0][1:]), program))


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [(lambda gate: jax.nn.gelu(gate), "bfloat16"), (lambda gate: gate * jax.nn.sigmoid(1.001 * gate), "float32")],
    ids=["gelu", "a slightly other silu"],
)
def test_another_activation_is_found(activation, dtype, monkeypatch):
    case, mesh = case_of(Op.mlp, dtype=dtype), mesh_of(2)
    with monkeypatch.context() as patch:
        patch.setattr(jax.nn, "silu", activation)
        operands = arrays(case, mesh, 5)
        program = programs.build(Request("baseline", "xla"), case, mesh, operands, chain_length=2)
        results = program.call(*operands)
    shards = tuple(jnp.asarray(np.asarray(one.addressable_shards[0].data)) for one in results)
    assert not is_right(comparisons(case, shards, program))


@pytest.mark.parametrize("op", [Op.all_gather_matmul, Op.matmul_reduce_scatter])
@pytest.mark.parametrize("implementation", ["ppermute", "xla", "xla_sharded"])
def test_integers_are_exact(op, implementation):
    """Of a reduce-scatter also the partial sums in bfloat16, in whatever order they are added."""
    case = dataclasses.replace(case_of(op, num_ranks=4), k=256)
    results, _ = computed(case, implementation, integers=True)
    for rank, shards in enumerate(results):
        different = functools.partial(OPERATIONS[op].num_different, Place(case, rank, 5), alone=False)
        assert different(shards) == 0
        assert np.abs(np.asarray(shards[0], np.float32)).max() > 0
        assert different((shards[0].at[0, 0].add(1), *shards[1:])) == 1


@pytest.mark.parametrize("op", OPS)
def test_the_work_alone_is_compared_with_its_own_operands(op):
    case, operation = case_of(op), OPERATIONS[op]
    results = operation.run_alone(*operation.alone(case, 1, 5))
    assert is_right(operation.compare_alone(Place(case, 1, 5), results))
    assert not is_right(operation.compare_alone(Place(case, 0, 5), results))


def test_the_gradients_of_the_layer_are_those_of_the_whole_layer():
    """The oracle takes blocks of rows and columns; here it is held to ``jax.grad`` of the undivided layer."""
    case = case_of(Op.mlp_grad, dtype="float32")
    operation = OPERATIONS[Op.mlp_grad]
    x, gate_up, down, d_out = arrays(case, mesh_of(2), 5)

    def layer(x, gate_up, down):
        hidden = jnp.einsum("mk,kgn->mgn", x, gate_up, precision="highest")
        return jnp.dot(jax.nn.silu(hidden[:, 0]) * hidden[:, 1], down, precision="highest")

    out, backward = jax.vjp(layer, x, gate_up, down)
    for rank in range(2):
        rows, columns = slice(16 * rank, 16 * rank + 16), slice(32 * rank, 32 * rank + 32)
        d_x, d_gate_up, d_down = backward(d_out)
        shards = out[rows], d_x[rows], d_gate_up[:, :, columns], d_down[columns]
        assert is_right(operation.compare(Place(case, rank, 5), shards, num_roundings=0))


@pytest.mark.parametrize(
    ("op", "flops", "exchanged"),
    [
        (Op.all_gather_matmul, 2 * 32 * 64 * 32, 16 * 64 * 2),
        (Op.matmul_reduce_scatter, 2 * 32 * 64 * 32, 16 * 32 * 4),
        (Op.mlp, 6 * 32 * 64 * 32, 16 * 64 * (2 + 4)),
        (Op.mlp_grad, 18 * 32 * 64 * 32, 16 * 64 * (3 * 2 + 2 * 4)),
    ],
)
def test_a_case_knows_its_work(op, flops, exchanged):
    """With two ranks, and float32 partial sums where some travel."""
    case = case_of(op, partial_dtype=None if op is Op.all_gather_matmul else "float32")
    assert (work.flops(case), work.exchanged_bytes(case)) == (flops, exchanged)


@pytest.mark.parametrize(
    ("implementation", "op"),
    [("jax_ring", Op.matmul_reduce_scatter), ("ppermute_two_level", Op.mlp), ("torch_fused", Op.mlp_grad)],
)
def test_what_an_implementation_lacks_is_refused_by_name(implementation, op):
    case, mesh = case_of(op), mesh_of(2)
    with pytest.raises(NotImplementedError, match=f"{implementation} has no {op}; it has all_gather_matmul"):
        programs.build(Request("baseline", implementation), case, mesh, arrays(case, mesh, 5), chain_length=2)
