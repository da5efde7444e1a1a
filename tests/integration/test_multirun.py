"""Sweeps: a job and a W&B run for each point, on one gang where the cluster's settings allow it."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.integration.bench_process import QUICK, results, run, start
from tests.jobs.results.wandb.leet import inspect

pytestmark = pytest.mark.slow
OPTIONS = [option for option in QUICK if not option.startswith("wandb")]


def environment_record(result: dict) -> dict:
    return json.loads((Path(result["run_dir"]) / "environment.json").read_text())


def pids(result: dict) -> list[int]:
    return [member["pid"] for member in environment_record(result)["members"]]


def is_running(pid: int) -> bool:
    try:
        return b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two points that may share a gang and two that may not; between them, points that can't run without GPUs."""
    home = tmp_path_factory.mktemp("sweep")
    kernels = "kernel=ppermute,mosaic_gpu,xla"
    overrides = [*OPTIONS, "wandb=offline", "problem.m_shard=32", "cluster.reuse_gang=true,false", kernels]
    return run("-m", *overrides, HOME=str(home), timeout_s=240)


def measured(swept) -> list[dict]:
    """The points that ran."""
    return [point for point in results(swept.stdout)[:6] if point["status"] == "ok"]


@pytest.mark.parametrize(
    ("points", "error"),
    [
        ("problem.m_shard=32,64,0", r"point 2 \(.*problem.m_shard=0\): problem.m_shard=0 must be an integer"),
        ("timing.bursts=2,3,some", "timing.bursts=some must be an integer"),
    ],
)
def test_no_point_runs_where_a_later_one_is_wrong(points, error, tmp_path):
    others = [option for option in OPTIONS if option.split("=")[0] != points.split("=")[0]]
    finished = run("-m", *others, points, HOME=str(tmp_path))
    assert (finished.code, finished.result["status"]) == (2, "usage_error"), finished.stderr
    assert re.search(error, finished.result["error"])
    assert finished.stdout.count("RESULT") == 1
    assert not list(tmp_path.iterdir()), "no folder is made"


def test_each_point_is_a_job(swept):
    assert swept.code == 2, "the worst one"
    *points, whole = results(swept.stdout)
    assert [point["status"] for point in points] == ["ok", "usage_error", "ok"] * 2
    assert whole["run_dirs"] == [point["run_dir"] for point in points]
    assert len(set(whole["run_dirs"])) == 6
    assert whole["rows"] == sum(point["rows"] for point in points) == 3 + 2 + 3 + 2


def test_points_with_the_same_cluster_settings_share_a_gang(swept):
    first, second, third, fourth = (pids(point) for point in measured(swept))
    assert first == second, "a mistake in the point between them is no reason for another gang"
    assert not set(second) & set(third), "cluster.reuse_gang has changed"
    assert not set(third) & set(fourth), "and doesn't allow it"
    assert not any(is_running(pid) for pid in {*first, *third, *fourth})
    (line,) = [line for line in swept.stdout.splitlines() if line.startswith("# Gang")]
    assert "gang of point 0 reused; its start took" in line
    gangs = [environment_record(point)["gang"] for point in measured(swept)]
    assert gangs == ["fresh", line.removeprefix("# Gang     : "), "fresh", "fresh"]


def test_each_point_is_a_wandb_run_of_one_group(swept):
    points = measured(swept)
    runs = [
        next(record["run"] for record in inspect(point["wandb_dir"]) if record["type"] == "run") for point in points
    ]
    (group,) = {run["run_group"] for run in runs}
    assert group.startswith("multirun-")
    assert [run["display_name"] for run in runs] == [f"{group}-{number}" for number in (0, 2, 3, 5)]
    assert len({run["run_id"] for run in runs}) == 4
    for point, implementation in zip(points, ("ppermute", "xla") * 2, strict=True):
        (of_run,) = inspect(point["wandb_dir"], "--summary")
        assert {"D=2", "bfloat16", "cpu", implementation} <= set(of_run["tags"])
        assert any(tag.startswith("git=") for tag in of_run["tags"])
        assert of_run["summary"]["tiny/32x256x256/bfloat16/best"] in ("ppermute", "xla")
        assert (of_run["summary"]["exit_code"], of_run["summary"]["rows"]) == (0, point["rows"])


def test_a_resumed_point_stays_in_its_group(swept):
    def names(wandb_dir):
        of_run = next(record["run"] for record in inspect(wandb_dir) if record["type"] == "run")
        return [of_run[name] for name in ("run_id", "run_group", "display_name")]

    point = measured(swept)[2]
    before = names(point["wandb_dir"])
    refused = run(f"resume={point['run_dir']}", job="jobs.tune")
    assert (refused.code, refused.result["wandb_dir"]) == (2, None), (
        "the W&B run of a job of another kind is left alone"
    )
    resumed = run(f"resume={point['run_dir']}")
    assert resumed.code == 0, resumed.stderr
    assert names(resumed.result["wandb_dir"]) == before


def test_a_gang_that_died_between_points_is_not_handed_on_and_a_signal_ends_the_one_that_is(tmp_path):
    process = start("-m", *OPTIONS, "wandb=offline", "problem.m_shard=32,48,64", HOME=str(tmp_path))
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("RESULT") and len(results("".join(lines))) == 1:
            os.kill(pids(results("".join(lines))[0])[1], signal.SIGKILL)
        elif line.startswith("RESULT") and len(results("".join(lines))) == 2:
            assert all(is_running(pid) for pid in pids(results("".join(lines))[1])), "kept for the next point"
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 143, process.stderr.read()
    first, second = results("".join(lines))[:2]
    assert (second["status"], second["rows"]) == ("ok", 3)
    assert not set(pids(first)) & set(pids(second))
    assert results("".join(lines))[-1]["status"] == "stopped"
    assert not any(is_running(pid) for pid in pids(first) + pids(second))
