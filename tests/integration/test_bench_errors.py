"""Mistakes and failures of a job: a message that names the cause, the exit code, and a RESULT line.

These jobs run as processes. The same errors raised in the test process are in tests/jobs: config/test_rules.py and
config/test_problem.py, gang/test_address.py, driver/test_preflight.py. Ranks that die are in test_faults.py.
"""

import http.server
import json
import os
import signal
import socket
import threading
import time

import pytest

from tests.integration.bench_process import QUICK, finish, run, start
from tests.jobs.results.wandb.leet import history, inspect

WITHOUT_WANDB = [option for option in QUICK if not option.startswith("wandb")]
KEY = "0123456789" * 4


def closed_port():
    """An address at which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{unused.getsockname()[1]}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        pytest.param(["kernel.tile=3"], "kernel.tile", id="Hydra refuses"),
        pytest.param(["run_dir=/proc/cmkernel"], "run_dir=/proc/cmkernel", id="the job refuses"),
        pytest.param(["cluster.address=127.0.0.1:1", "wandb.project=a/b"], "wandb.project=a/b: ", id="W&B refuses"),
    ],
)
def test_usage_errors_exit_2_and_name_the_option(overrides, message):
    finished = run(*overrides, timeout_s=180)
    assert finished.code == 2, finished.stderr
    assert message in finished.stderr
    assert message in finished.result["error"], "for programs, which read the last line alone"
    assert finished.result["status"] == "usage_error"
    assert finished.result["exit_code"] == 2


def test_mosaic_gpu_without_a_gpu_is_refused_before_anything_is_reserved(tmp_path):
    finished = run(*QUICK, "kernel=mosaic_gpu", f"run_dir={tmp_path / 'run'}")
    assert finished.code == 2
    assert "kernel.implementation=mosaic_gpu needs Hopper GPUs" in finished.result["error"]
    assert "kernel=ppermute" in finished.result["error"]


def test_an_unreachable_cluster_is_reported():
    """Left to itself, ``ray.init`` would try for minutes."""
    address = closed_port()
    finished = run(*QUICK, "cluster=ray", f"cluster.address={address}", timeout_s=180)
    assert finished.code == 3
    assert address in finished.result["error"]


def test_a_sweep_ends_with_the_worst_of_its_points():
    finished = run("-m", *QUICK, "problem.k=12,20", timeout_s=180)
    assert finished.code == finished.result["exit_code"] == 2
    assert "problem.k=12 must be a multiple of 8" in finished.result["error"]


def test_a_signal_while_python_still_imports_is_an_orderly_stop():
    process = start(*QUICK)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    finished = finish(process, timeout_s=180)
    assert finished.code == 143
    assert finished.result["status"] == "stopped"


@pytest.mark.slow
def test_more_ranks_than_the_cluster_has(ray_head, tmp_path):
    finished = run(
        *QUICK,
        "cluster=ray",
        f"cluster.address={ray_head.address}",
        "cluster.num_ranks=1000",
        "cluster.placement_timeout_s=2",
        f"run_dir={tmp_path / 'run'}",
        **ray_head.env,
    )
    assert finished.code == 3
    assert finished.result["status"] == "infrastructure_error"
    assert "1000" in finished.result["error"]


class _Refusing(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(401)
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *args):
        pass


@pytest.fixture
def refusing_server():
    """A W&B server that knows no key."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_refusing_wandb_falls_back_to_offline_loudly(refusing_server, tmp_path):
    """A server that can't be reached has the same effect: test_submit.py."""
    variables = {"WANDB_PROJECT": "own", "WANDB_RUN_ID": "taken"}
    options = [*WITHOUT_WANDB, f"run_dir={tmp_path / 'run'}"]
    finished = run(*options, WANDB_BASE_URL=refusing_server, WANDB_API_KEY=KEY, **variables)
    assert finished.code == 0, finished.stderr
    assert f"falls back to offline: {refusing_server}: " in finished.stderr
    assert "401" in finished.stderr
    assert "WANDB_RUN_ID=taken is ignored: " in finished.stderr
    of_run = next(record["run"] for record in inspect(finished.result["wandb_dir"]) if record["type"] == "run")
    assert of_run["project"] == "own"
    assert not finished.result["wandb_dir"].endswith("taken")
    assert len(history(finished.result["wandb_dir"])) == len(finished.rows()) == 6
    assert KEY not in finished.stdout + finished.stderr


@pytest.mark.slow
def test_a_wandb_that_must_be_online_and_cannot_be_reached_ends_the_job(tmp_path):
    options = [*WITHOUT_WANDB, "wandb=online", "wandb.init_timeout_s=8", f"run_dir={tmp_path / 'run'}"]
    finished = run(*options, WANDB_BASE_URL=f"http://{closed_port()}", WANDB_API_KEY=KEY)
    assert finished.code == 3
    assert "wandb" in finished.result["error"].lower()
    assert finished.result["rows"] == 0


@pytest.mark.slow
def test_a_job_stopped_by_ctrl_c_keeps_the_journal(tmp_path):
    """SIGTERM is in test_submit.py, test_slurm.py and test_faults.py."""
    process = start(*QUICK, f"problem.m_shard={list(range(32, 128, 8))}".replace(" ", ""), f"run_dir={tmp_path}")
    _wait_for_rows(tmp_path, 3, process)
    process.send_signal(signal.SIGINT)
    finished = finish(process, timeout_s=180)
    assert finished.code == 130
    assert finished.result["status"] == "stopped"
    assert 3 <= len(finished.rows()) == finished.result["rows"]
    for member in json.loads((tmp_path / "environment.json").read_text())["members"]:
        with pytest.raises(ProcessLookupError):
            os.kill(member["pid"], 0)


def _wait_for_rows(run_dir, count, process):
    journal = run_dir / "results.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"no {count} rows in {journal}: {process.communicate()}")
