"""The reduce-scatter and the layer through the whole job: rows, W&B, report, comparison, tuning and mistakes."""

import re
from pathlib import Path

import pytest

from cmkernel import Table
from jobs.results.disk.journal import read
from tests.integration.bench_process import QUICK, run
from tests.integration.comparison import SPREAD, compare
from tests.jobs.results.wandb.leet import history, inspect

pytestmark = pytest.mark.slow

SIZES = ("problem.m_shard=32", "timing.baselines=[xla,local]")
IMPLEMENTATIONS = ["ppermute", "xla", "local"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Three ranks, so that no rank is every other's only neighbour."""
    run_dir = tmp_path_factory.mktemp("ops") / "run"
    ops = ("problem.op=[matmul_reduce_scatter,mlp]", "problem.partial_dtype=[bf16,f32]")
    output = ("wandb=offline", "results.report=true", f"run_dir={run_dir}")
    return run(*QUICK, *SIZES, *ops, "cluster.num_ranks=3", *output)


def test_every_operation_is_checked_and_timed(finished):
    assert finished.code == 0, finished.stderr
    rows = read(Path(finished.result["run_dir"]) / "results.jsonl")
    assert [row.implementation for row in rows] == IMPLEMENTATIONS * 4
    cases = [(row.case.op.value, row.case.partial_dtype) for row in rows[:: len(IMPLEMENTATIONS)]]
    assert cases == [(op, partials) for op in ("matmul_reduce_scatter", "mlp") for partials in (None, "float32")]
    for row in rows:
        assert row.check.passed
        assert row.check.integers_exact is (None if row.case.op.is_layer else True)
        assert row.in_graph_us.max > 0
        assert row.derived.tflops_per_gpu > 0
    narrow, wide = (rows[start].check.relative_error for start in (0, len(IMPLEMENTATIONS)))
    assert wide < narrow


def test_people_see_which_operation_a_row_is_of(finished):
    table = [line.split() for line in finished.stdout.splitlines() if line.startswith("  tiny")]
    names = {" ".join(line[: line.index("3") + 2]) for line in table}
    assert len(names) == 12, "no two rows have one name"
    assert "tiny GEMM-RS f32 32 256 256 bf16 3 ppermute" in names
    assert re.search(r"tiny GEMM-RS .* is fastest, .* the multiply alone", finished.stdout)
    assert re.search(r"tiny mlp .* the layer without communication", finished.stdout)
    report = (Path(finished.result["run_dir"]) / "report.html").read_text()
    for text in ("tiny GEMM-RS", "tiny mlp", "bfloat16 partials=float32"):
        assert text in report


def test_wandb_keeps_operations_apart(finished):
    rows = history(finished.result["wandb_dir"])
    assert {row["case/op"] for row in rows} == {"matmul_reduce_scatter", "mlp"}
    assert [row["case/number"] for row in rows][:: len(IMPLEMENTATIONS)] == [1, 2, 3, 4]
    (summary,) = inspect(finished.result["wandb_dir"], "--summary")
    case = "tiny/matmul_reduce_scatter/32x256x256/bfloat16"
    assert {f"{case}/best", f"{case}_float32_partials/best"} <= set(summary["summary"])


def test_a_run_compares_with_itself_operation_by_operation(finished, tmp_path):
    run_dir = Path(finished.result["run_dir"])
    other = tmp_path / "other.jsonl"
    lines = (run_dir / "results.jsonl").read_text().splitlines(keepends=True)
    other.write_text("".join(line for line in lines if '"op": "mlp"' in line))
    compared = compare(run_dir, other, *SPREAD)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert "6 compared" in compared.stdout
    assert "xla on matmul_reduce_scatter m_shard=32 k=256 n_shard=256 bfloat16 partials=float32 D=3: only in BASE" in (
        compared.stdout
    )


def test_a_wrong_result_fails_the_job_and_leaves_no_time(tmp_path):
    ops = ("problem.op=[matmul_reduce_scatter,mlp_grad]", "timing.baselines=[xla_sharded]")
    failed = run(*QUICK, *SIZES, *ops, "check.fault=swapped_shards", f"run_dir={tmp_path / 'run'}")
    assert failed.code == 1, failed.stderr
    rows = read(tmp_path / "run" / "results.jsonl")
    assert [row.failed for row in rows] == [True, False] * 2
    assert [row.headline_us is None for row in rows] == [True, False] * 2


def test_the_reduce_scatter_is_tuned_and_its_table_used(tmp_path):
    op = ("problem.op=matmul_reduce_scatter", "problem.m_shard=32")
    rounds = ("tuning.max_candidates=2", "tuning.round_size=2", "tuning.bursts=2", "tuning.chains=1")
    tuned = run(*QUICK, *op, *rounds, "timing.chain_length=2", f"run_dir={tmp_path / 'tuned'}", job="jobs.tune")
    assert tuned.code == 0, tuned.stderr
    path = tmp_path / "tuned" / "tuned.jsonl"
    (entry,) = Table.read(path).entries
    assert entry.shape.op == "matmul_reduce_scatter"
    both = ("problem.op=[all_gather_matmul,matmul_reduce_scatter]", "problem.m_shard=32", "timing.baselines=[]")
    used = run(*QUICK, *both, "timing.chain_length=2", f"kernel.table={path}", f"run_dir={tmp_path / 'used'}")
    assert used.code == 0, used.stderr
    of_gather, of_scatter = (row["reason"] for row in used.rows())
    assert of_gather.endswith("its config by the heuristic"), "the table is of the other operation"
    assert of_scatter.endswith(f"its config tuned on {entry.date}")


@pytest.mark.parametrize(
    ("job", "overrides", "message"),
    [
        ("jobs.bench", ("problem.op=mlp", "kernel=ppermute_two_level"), "ppermute_two_level has no mlp"),
        (
            "jobs.bench",
            ("problem.op=mlp", "problem.partial_dtype=f16"),
            "problem.partial_dtype=float16 must be float32",
        ),
        ("jobs.tune", ("problem.op=mlp",), "problem.op=mlp can't be tuned: it has two kernels"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(job, overrides, message, tmp_path):
    refused = run(*QUICK, *overrides, f"run_dir={tmp_path / 'run'}", job=job)
    assert refused.code == 2
    assert message in refused.stderr
    assert not (tmp_path / "run").exists()
