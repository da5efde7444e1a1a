"""Cases of a problem's lists and layers."""

import pytest

from jobs.config.problem import expand, resolve_problem
from jobs.config.schema import LayerSettings, ProblemSettings
from jobs.errors import UsageError
from jobs.records.op import Op
from tests.jobs.composed import composed

SIZES = {"m_shard": 64, "k": 64, "n_shard": 64}


def test_llama3_is_ten_cases_whose_columns_the_ranks_share():
    cases = expand(composed("problem=llama3").problem, num_ranks=2)
    assert len(cases) == 10
    sizes = {(c.m_shard, c.k, c.n_shard) for c in cases}
    assert sizes == {(m, 4096, n) for m in (1024, 4096) for n in (3072, 14336)} | {
        (m, 8192, n) for m in (1024, 4096) for n in (5120, 28672)
    } | {(256, 4096, 3072), (256, 8192, 5120)}


def test_lists_expand_to_their_combinations():
    problem = ProblemSettings(name="grid", m_shard=[64, 128], k=256, n_shard=[32, 64, 96], dtype=["bf16", "f16"])
    cases = expand(problem, num_ranks=4)
    assert len(cases) == len(set(cases)) == 2 * 3 * 2
    assert {c.dtype for c in cases} == {"bfloat16", "float16"}
    assert all(c.num_ranks == 4 for c in cases)


def test_an_operation_takes_its_layers_of_llama3():
    """The ranks share the rows of the weight behind a reduce-scatter, and the width of an MLP."""
    ops = "problem.op=[matmul_reduce_scatter,mlp,mlp_grad]"
    cases = expand(composed("problem=llama3", ops, "problem.m_shard=16").problem, num_ranks=8)
    sizes = [(c.op, c.name, c.k, c.n_shard) for c in cases]
    assert sizes[:2] == [
        (Op.matmul_reduce_scatter, "8b_out", 4096 // 8, 4096),
        (Op.matmul_reduce_scatter, "8b_down", 14336 // 8, 4096),
    ]
    layers = [("8b", 4096, 14336 // 8), ("70b", 8192, 28672 // 8)]
    assert sizes[4:] == [(op, *layer) for op in (Op.mlp, Op.mlp_grad) for layer in layers]


def test_partial_sums_have_types_where_there_are_any():
    options = {"op": ["all_gather_matmul", "matmul_reduce_scatter"], "dtype": ["bf16", "f32"]}
    problem = ProblemSettings(name="x", **SIZES, **options, partial_dtype="f32")
    cases = [(c.op.short, c.dtype, c.partial_dtype, c.sent_dtype) for c in expand(problem, num_ranks=2)]
    assert cases == [
        ("AG-GEMM", "bfloat16", None, "bfloat16"),
        ("AG-GEMM", "float32", None, "float32"),
        ("GEMM-RS", "bfloat16", "float32", "float32"),
        ("GEMM-RS", "float32", None, "float32"),
    ]
    both = ProblemSettings(name="x", **SIZES, op="mlp", partial_dtype=["bf16", "f32"])
    assert [c.partial_dtype for c in expand(both, num_ranks=2)] == [None, "float32"]
    labels = [str(c) for c in expand(both, num_ranks=2)]
    assert labels[0] == "x mlp m_shard=64 k=64 n_shard=64 bfloat16 D=2"
    assert labels[1] == "x mlp m_shard=64 k=64 n_shard=64 bfloat16 partials=float32 D=2"


def test_m_shard_replaces_that_of_layers():
    cases = expand(composed("problem=llama3", "problem.m_shard=512").problem, num_ranks=8)
    assert [c.m_shard for c in cases] == [512] * 4


def test_auto_stands_for_article_on_gpus_and_tiny_on_cpus():
    auto = composed("problem.dtype=f16").problem
    (article,) = expand(resolve_problem(auto, on_gpus=True), num_ranks=2)
    assert (article.m_shard, article.k, article.n_shard, article.dtype) == (1024, 4096, 4096, "float16")
    assert all(c.k == 256 for c in expand(resolve_problem(auto, on_gpus=False), num_ranks=2))


def test_auto_fills_in_only_what_is_not_given():
    for wrong in ("problem.m_shard=0", "problem.m_shard=[]"):
        with pytest.raises(UsageError, match=r"problem\.m_shard"):
            expand(resolve_problem(composed(wrong).problem, on_gpus=False), num_ranks=2)
    layers = composed("problem.layers=[{name: qkv, k: 64, n: 64, m_shard: [8]}]").problem
    (case,) = expand(resolve_problem(layers, on_gpus=False), num_ranks=2)
    assert (case.name, case.m_shard, case.k, case.n_shard) == ("qkv", 8, 64, 32)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"m_shard": 64, "k": 100, "n_shard": 64}, r"problem.k=100 must be a multiple of 8"),
        ({"m_shard": 0, "k": 64, "n_shard": 64}, r"problem.m_shard=0 must be an integer of 1 to"),
        ({"m_shard": 10**12, "k": 64, "n_shard": 64}, r"problem.m_shard=1000000000000 must be an integer of 1 to"),
        ({"m_shard": [], "k": 64, "n_shard": 64}, r"problem.m_shard=\[\] must be an integer of 1 to"),
        ({"m_shard": "many", "k": 64, "n_shard": 64}, r"problem.m_shard=many must be an integer of 1 to"),
        ({"m_shard": 64, "k": 64, "n_shard": 64, "dtype": [["bf16"]]}, r"problem.dtype=\['bf16'\] must be one of"),
        ({"m_shard": 64, "k": 64, "n_shard": 64, "dtype": "int8"}, r"problem.dtype=int8 must be one of bfloat16"),
        ({"m_shard": 64}, r"has no case"),
        (
            {**SIZES, "op": "gemm"},
            r"problem.op=gemm must be one of all_gather_matmul, matmul_reduce_scatter, mlp, mlp_",
        ),
        ({**SIZES, "op": ["mlp", 3]}, r"problem.op=\['mlp', 3\] must be one of"),
        ({**SIZES, "op": []}, r"problem.op=\[\] must be one of"),
        ({**SIZES, "op": "mlp", "partial_dtype": "f16"}, r"partial_dtype=float16 must be float32, or .*dtype=bfloat16"),
        ({**SIZES, "op": "mlp", "partial_dtype": "f8"}, r"problem.partial_dtype=f8 must be one of"),
        ({**SIZES, "op": "mlp", "n_shard": 12}, r"problem.n_shard=12 must be a multiple of 8 with problem.op=mlp"),
        ({"op": "mlp", "layers": [LayerSettings("qkv", 64, 96, [8])]}, r"problem.op=mlp: none of problem.layers"),
        (
            {"op": "matmul_reduce_scatter", "layers": [LayerSettings("out", 64, 96, [8], Op.matmul_reduce_scatter)]},
            r"layers\[out\].k=64 must be a multiple of .* ranks, 3",
        ),
        ({"k": 64, "layers": [LayerSettings("qkv", 64, 64, [8])]}, r"problem.k=64 can't be combined"),
        ({"layers": [LayerSettings("qkv", 64, 100, [8])]}, r"layers\[qkv\].n=100 must be a multiple of .* ranks, 3"),
    ],
)
def test_mistakes_name_option_value_and_rule(problem, message):
    with pytest.raises(UsageError, match=message):
        expand(ProblemSettings(name="wrong", **problem), num_ranks=3)
