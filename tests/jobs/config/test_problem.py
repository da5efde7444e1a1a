"""Cases of a problem's lists and layers."""

import pytest

from jobs.config.problem import expand, resolve_problem
from jobs.config.schema import LayerSettings, ProblemSettings
from jobs.errors import UsageError
from tests.jobs.composed import composed


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
        ({"k": 64, "layers": [LayerSettings("qkv", 64, 64, [8])]}, r"problem.k=64 can't be combined"),
        ({"layers": [LayerSettings("qkv", 64, 100, [8])]}, r"layers\[qkv\].n=100 must be a multiple of .* ranks, 3"),
    ],
)
def test_mistakes_name_option_value_and_rule(problem, message):
    with pytest.raises(UsageError, match=message):
        expand(ProblemSettings(name="wrong", **problem), num_ranks=3)
