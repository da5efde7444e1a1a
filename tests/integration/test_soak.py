"""``timing.soak_minutes`` on CPU ranks of a local Ray."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.integration.bench_process import QUICK, finish, run, start

pytestmark = pytest.mark.slow

SMALL = (*QUICK, "problem.m_shard=32", "timing.baselines=[]")


def slices(run_dir):
    path = Path(run_dir) / "soak.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_fault_in_a_late_iteration_is_found(tmp_path):
    run_dir = tmp_path / "run"
    fault = ("check.fault=wrong_element", "check.fault_after=10")
    finished = run(*SMALL, "timing.soak_minutes=0.25", *fault, f"run_dir={run_dir}", timeout_s=180)
    assert finished.code == 1, finished.stderr
    assert finished.result["status"] == "check_failed"
    assert "iterations of the soak are wrong: " in finished.result["error"]
    assert ", first 10, ppermute on tiny m_shard=32" in finished.result["error"]
    (row,) = finished.rows()
    assert row["check"]["passed"], "the check before the times saw nothing"
    soaked = slices(run_dir)
    assert next(number for one in soaked for number in one["wrong"]) == 10
    assert all(one["check"]["passed"] == (not one["wrong"]) for one in soaked)
    assert {rank for one in soaked if one["wrong"] for rank in one["check"]["failed_ranks"]} == {1}
    assert "WRONG, first 10" in finished.stdout


def test_a_stopped_soak_goes_on_where_it_was(tmp_path):
    run_dir = tmp_path / "run"
    # On a busy machine the first slice, which compiles, may take 20 s.
    process = start(*SMALL, "timing.soak_minutes=0.5", f"run_dir={run_dir}")
    deadline = time.monotonic() + 120
    while not slices(run_dir):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, timeout_s=180)
    assert stopped.code == 143
    before = slices(run_dir)
    assert before
    resumed = run(f"resume={run_dir}", timeout_s=180)
    assert resumed.code == 0, resumed.stderr
    soaked = slices(run_dir)
    assert soaked[: len(before)] == before
    assert sum(one["seconds"] for one in soaked) >= 30
    assert [one["attempt"] for one in soaked] == [1] * len(before) + [2] * (len(soaked) - len(before))
    # Iterations are numbered on, and none is missing.
    ends = [one["first_iteration"] + len(one["times_us"]) for one in soaked]
    assert [one["first_iteration"] for one in soaked] == [0, *ends[:-1]]
    assert all(one["check"]["passed"] and one["wrong"] == [] for one in soaked)
    assert all(bytes_ > 2**20 for one in soaked for bytes_ in one["rss_bytes"])
    assert "# Soak    : " in resumed.stdout
    assert len(resumed.rows()) == 1
