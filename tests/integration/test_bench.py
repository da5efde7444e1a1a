"""The main job on CPU ranks of a local Ray, from its start to its report.

Few jobs run here, and many tests read what each of them has left.
"""

import json
import re
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from jobs.results.wandb import metrics
from tests.integration.bench_process import QUICK, ROOT, command, finish, journal, results, run, start
from tests.jobs.results.wandb.leet import history, inspect


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The README's first command: four ranks, W&B offline. Returns the job and the rows left when W&B showed one.

    ``None`` instead of that number: W&B showed no row before the job ended. In the driver's environment jax has no
    platform that exists, so a driver that starts a jax backend fails; on a GPU node it would take a GPU's memory.
    """
    run_dir = tmp_path_factory.mktemp("bench") / "run"
    junit = f"results.junit={run_dir.parent}/a junit.xml"
    process = start("timing=quick", "wandb=offline", f"run_dir={run_dir}", junit, JAX_PLATFORMS="no_such_platform")
    path, left = run_dir / "results.jsonl", None
    while process.poll() is None and not (path.exists() and path.stat().st_size):
        time.sleep(0.1)
    while process.poll() is None and left is None:
        if history(next((run_dir / "wandb").glob("offline-run-*"))):
            left = 6 - len(path.read_text().splitlines())
    return finish(process, timeout_s=600), left


@pytest.fixture(scope="module")
def finished(watched):
    """The job of ``watched``."""
    return watched[0]


def test_it_succeeds_on_four_cpu_ranks(finished):
    assert finished.code == 0, finished.stderr
    result = finished.result
    assert (result["status"], result["exit_code"], result["rows"]) == ("ok", 0, 6)
    assert "# Out of bounds values : 0 OK" in finished.stdout


def test_junit_has_a_test_case_for_each_row_and_the_job(finished):
    suite = ET.parse(Path(finished.result["run_dir"]).parent / "a junit.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["7", "0", "0", "0"]
    assert [case.get("classname") for case in suite] == [*["ppermute", "xla", "local"] * 2, "job"]


def test_a_cluster_below_a_floor_fails(tmp_path):
    """No CPU has a million TFLOP/s."""
    floor = (f"results.junit={tmp_path}/junit.xml", "health.min_tflops=1e6", "problem.m_shard=32")
    finished = run(*QUICK, *floor, f"run_dir={tmp_path / 'run'}")
    assert (finished.code, finished.result["status"], finished.result["rows"]) == (1, "too_slow", 3), finished.stderr
    assert re.match(
        r"health.min_tflops: rank 0 has .* TFLOP/s on tiny m_shard=32 .*1e\+06 are", finished.result["error"]
    )
    job = ET.parse(tmp_path / "junit.xml").getroot()[0][-1]
    assert job.find("failure").get("message") == "too_slow: " + finished.result["error"]


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


def test_the_run_directory_says_how_it_was_made(finished):
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


def test_a_row_is_visible_in_wandb_while_the_job_still_measures(watched):
    _, left = watched
    assert left is not None, "not before the job ended"
    assert left > 0, "not before the last row was measured"


def test_the_driver_starts_no_jax_backend(finished):
    assert finished.code == 0, finished.stderr
    assert "no_such_platform" not in finished.stdout + finished.stderr


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


def test_progress_shows_what_runs_what_is_left_and_the_best_so_far(finished):
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
def test_a_wrong_result_fails_the_job_and_leaves_no_time(tmp_path):
    faults = "check.fault=wrong_element,swapped_shards"
    swept = run("-m", *QUICK, "problem.m_shard=32", faults, HOME=str(tmp_path), timeout_s=240)
    assert swept.code == 1
    *points, _ = results(swept.stdout)
    assert len(points) == 2
    for result in points:
        assert (result["status"], result["exit_code"]) == ("check_failed", 1)
        assert result["restarts"] == 0, "a fresh gang would be as wrong"
        wrong, *others = journal(result)
        assert wrong["implementation"] == "ppermute"
        assert not wrong["check"]["passed"]
        assert wrong["check"]["failed_ranks"] == [1], "the fault is planted on the last rank alone"
        assert wrong["in_graph_us"] is wrong["call_us"] is wrong["derived"] is None
        assert wrong["samples_us"] == {}
        assert [row["implementation"] for row in others if row["check"]["passed"]] == ["xla", "local"]
    assert swept.stdout.count("FAILED") >= 2


@pytest.fixture(scope="module")
def of_one_rank(tmp_path_factory):
    """A job of one rank and two dtypes, whose run directory has a file where the pictures' folder would be."""
    run_dir = tmp_path_factory.mktemp("of_one_rank")
    (run_dir / "pictures").write_text("in the way")
    overrides = ["problem.m_shard=32", "problem.dtype=[f16,f32]", "cluster.num_ranks=1", "results.report=true"]
    return run(*QUICK, *overrides, f"run_dir={run_dir}")


@pytest.mark.slow
def test_float16_and_float32_and_one_rank(of_one_rank):
    assert of_one_rank.code == 0, of_one_rank.stderr
    rows = of_one_rank.rows()
    assert [row["case"]["dtype"] for row in rows] == ["float16"] * 3 + ["float32"] * 3
    assert all(row["check"]["passed"] and row["case"]["num_ranks"] == 1 for row in rows)


@pytest.mark.slow
def test_a_report_that_cannot_be_made_changes_nothing_else(of_one_rank):
    result = of_one_rank.result
    assert (of_one_rank.code, result["status"], result["rows"]) == (0, "ok", 6)
    run_dir = Path(result["run_dir"])
    assert not (run_dir / "report.html").exists()
    log = (run_dir / "bench.log").read_text()
    assert f"no report: python -m jobs.report {run_dir} makes one" in log
    assert "Traceback" in log
