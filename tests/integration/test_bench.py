"""The main job on CPU ranks of a local Ray, end to end."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from jobs.results.wandb import metrics
from tests.integration.bench_process import QUICK, ROOT, command, finish, run, start
from tests.wandb_run import history, inspect


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """One job as the README's first command runs it, four ranks, W&B offline, and when its first row could be seen.

    Seconds from the row in the journal to `wandb leet inspect` that shows it; `None`: not before the job ended.
    """
    run_dir = tmp_path_factory.mktemp("bench") / "run"
    process = start("timing=quick", "wandb=offline", f"run_dir={run_dir}")
    journal, seen_s = run_dir / "results.jsonl", None
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        time.sleep(0.1)
    measured_s = time.monotonic()
    while process.poll() is None and seen_s is None:
        if history(next((run_dir / "wandb").glob("offline-run-*"))):
            seen_s = time.monotonic() - measured_s
    return finish(process, timeout_s=180), seen_s


@pytest.fixture(scope="module")
def finished(watched):
    """That job; shared by the tests below."""
    return watched[0]


def test_it_succeeds_on_four_cpu_ranks(finished):
    assert finished.code == 0, finished.stderr
    result = finished.result
    assert (result["status"], result["exit_code"], result["rows"]) == ("ok", 0, 6)
    assert "# Out of bounds values : 0 OK" in finished.stdout


def test_the_journal_has_a_checked_row_per_case_and_implementation(finished):
    rows = finished.rows()
    assert [r["implementation"] for r in rows] == ["ppermute", "xla", "local"] * 2
    assert [r["requested"] for r in rows] == ["auto", "baseline", "baseline"] * 2
    for row in rows:
        case, check = row["case"], row["check"]
        assert case["num_ranks"] == 4
        assert {"m_shard", "k", "n_shard", "dtype"} <= set(case)
        assert check["passed"]
        assert check["calls"] == 3 + 1 + 2, "normal calls, one with integers, two chains"
        assert check["integers_exact"]
        assert 0 < check["relative_error"] <= check["relative_tolerance"]
        assert check["num_elements"] == 4 * check["calls"] * 4 * case["m_shard"] * case["n_shard"]
        for name in ("in_graph_us", "call_us"):
            assert 0 < row[name]["min"] <= row[name]["median"] <= row[name]["max"]
            assert len(row["samples_us"][name]) == 4
        assert row["kernel_us"] is None, "kernel times need a GPU's profiler"
        assert row["derived"]["tflops_per_gpu"] > 0
        assert row["derived"]["utilisation"] is None
    assert "platform='cpu' must be 'gpu'" in rows[0]["reason"]
    assert "auto takes ppermute: mosaic_gpu can't run here" in finished.stdout
    assert rows[2]["derived"]["ratio_to_local"] == 1


def test_the_table_has_a_line_for_each_row(finished):
    lines = [line.split() for line in finished.stdout.splitlines() if not line.startswith(("#", "RESULT"))]
    for implementation in ("ppermute", "xla", "local"):
        assert sum(implementation in line for line in lines) >= 2


def test_the_run_directory_tells_how_it_was_made(finished):
    run_dir = Path(finished.result["run_dir"])
    assert run_dir.is_absolute()
    assert "num_ranks" in (run_dir / "config.yaml").read_text()
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["versions"]["jax"]
    assert len(environment["members"]) == 4
    assert [member["rank"] for member in environment["members"]] == [0, 1, 2, 3]


def test_it_ends_with_pictures_and_a_report(finished):
    run_dir = Path(finished.result["run_dir"])
    assert f"# Report  : {run_dir}/report.html" in finished.stdout
    assert "All 6 checks passed" in (run_dir / "report.html").read_text()
    names = {path.name for path in (run_dir / "pictures").iterdir()}
    assert names >= {"time_against_bound.png", "utilisation.svg", "ranks.png", "ring_timeline.png"}
    assert "Traceback" not in (run_dir / "bench.log").read_text()


@pytest.mark.slow
def test_a_report_that_cannot_be_made_changes_nothing_else(tmp_path):
    (tmp_path / "pictures").write_text("a file where a folder should be")
    finished = run(*QUICK, "results.report=true", f"run_dir={tmp_path}")
    assert (finished.code, finished.result["status"], finished.result["rows"]) == (0, "ok", 6)
    assert not (tmp_path / "report.html").exists()
    log = (tmp_path / "bench.log").read_text()
    assert f"no report: python -m jobs.report {tmp_path} makes one" in log
    assert "Traceback" in log


def test_a_row_is_visible_within_5_s_of_being_measured_while_the_job_runs(watched):
    _, seen_s = watched
    assert seen_s is not None
    assert seen_s < 5


def test_the_offline_wandb_run_holds_rows_config_and_summary(finished):
    wandb_dir = finished.result["wandb_dir"]
    rows, journal = history(wandb_dir), finished.rows()
    assert [row["case/implementation"] for row in rows] == ["ppermute", "xla", "local"] * 2
    assert [row["case/number"] for row in rows] == [1, 1, 1, 2, 2, 2]
    for row, line in zip(rows, journal, strict=True):
        assert row[f"{line['implementation']}/in_graph_us"] == pytest.approx(line["in_graph_us"]["max"])
        # All but what GPUs alone have.
        names = {metric.name for metric in metrics.OF_IMPLEMENTATION} - {"kernel_us", "device_us", "util_pct"}
        found = {name.partition("/")[2] for name in row if name.startswith(f"{line['implementation']}/")}
        assert found | {"overlap_pct", "busbw_gbps"} == names
    (summary,) = inspect(wandb_dir, "--summary")
    assert summary["exit_code"] == 0
    assert summary["config"]["timing"]["chain_length"] == 4
    assert set(metrics.SUMMARY_OF_RUN) <= set(summary["summary"])
    fastest = min(journal[:2], key=lambda line: line["in_graph_us"]["max"])
    assert summary["summary"]["tiny/64x256x256/bfloat16/best"] == fastest["implementation"]
    assert {"D=4", "bfloat16", "cpu", "ppermute"} <= set(summary["tags"])
    pictures = {path.stem.rpartition("_")[0] for path in Path(wandb_dir).glob("files/media/images/pictures/*.png")}
    assert pictures == {"time_against_bound_6", "utilisation_6", "ranks_6", "ring_timeline_6"}
    tables = {path.name.rpartition("_table_")[0] for path in Path(wandb_dir).glob("files/media/table/charts/*.json")}
    assert tables == {"time_against_bound", "utilisation", "ranks"}
    assert "wandb leet" in finished.stdout
    assert "wandb sync" in finished.stdout


def test_the_log_tells_what_runs_what_is_left_and_the_best_so_far(finished):
    lines = [line for line in finished.stdout.splitlines() if re.match(r"# \d+/\d+ ", line)]
    assert lines
    assert all(re.search(r"; about \d+ (s|min) left(; best (ppermute|xla) [\d.]+ us.*)?$", line) for line in lines)


def test_cfg_and_help_print_what_hydra_users_expect():
    shown = subprocess.run(
        command("problem=llama3", "kernel.tile_m=64", "--cfg", "job"), capture_output=True, text=True, cwd=ROOT
    )
    assert shown.returncode == 0
    assert "tile_m: 64" in shown.stdout
    assert "RESULT" not in shown.stdout
    helped = subprocess.run(command("--help"), capture_output=True, text=True, cwd=ROOT)
    assert helped.returncode == 0
    assert "problem: article, auto, llama3, tiny" in helped.stdout


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["wrong_element", "swapped_shards"])
def test_a_wrong_result_fails_the_job_and_leaves_no_time(fault, tmp_path):
    finished = run(*QUICK, f"check.fault={fault}", f"run_dir={tmp_path / 'run'}")
    assert finished.code == 1
    assert finished.result["status"] == "check_failed"
    assert finished.result["restarts"] == 0, "a fresh gang would be as wrong"
    rows = finished.rows()
    for row in rows[::3]:
        assert row["implementation"] == "ppermute"
        assert not row["check"]["passed"]
        assert row["check"]["failed_ranks"] == [1], "the fault is planted on the last rank alone"
        assert row["in_graph_us"] is row["call_us"] is row["derived"] is None
        assert row["samples_us"] == {}
    assert all(row["check"]["passed"] for row in rows if row["implementation"] != "ppermute")
    assert "FAILED" in finished.stdout


@pytest.mark.slow
def test_float16_and_float32_and_one_rank(tmp_path):
    finished = run(*QUICK, "problem.dtype=[f16,f32]", "cluster.num_ranks=1", f"run_dir={tmp_path / 'run'}")
    assert finished.code == 0, finished.stderr
    assert {row["case"]["dtype"] for row in finished.rows()} == {"float16", "float32"}


@pytest.mark.slow
def test_the_driver_starts_no_jax_backend(tmp_path):
    """On a GPU node it would take a GPU's memory. Here it would fail; the ranks choose their platform themselves."""
    finished = run(*QUICK, "problem.m_shard=32", f"run_dir={tmp_path / 'run'}", JAX_PLATFORMS="no_such_platform")
    assert finished.code == 0, finished.stderr
