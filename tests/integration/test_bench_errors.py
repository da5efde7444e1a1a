"""Every mistake and every failure: a message that names it, its exit code, and a RESULT line."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.integration.bench_process import QUICK, ROOT, finish, logged_rows, run, start


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["kernel.tile=3"], "kernel.tile"),
        (["+kernel.tile=3"], "kernel.tile is no option"),
        (["timing.iterations=many"], "timing.iterations"),
        (["kernel=fastest"], "kernel/fastest"),
        (["problem=tiny", "problem.k=100"], "problem.k=100 must be a multiple of 8"),
        (["kernel.tile_m=192", "kernel.tile_n=256", "kernel.epi_tile_n=128"], "accumulator registers"),
        (
            ["kernel.tile_n=256", "kernel.tile_m=64", "kernel.tile_k=128"],
            "bytes of shared memory a block; the limit is",
        ),
        (["run_dir=/proc/cmkernel"], "run_dir=/proc/cmkernel"),
        (["cluster=ray"], "cluster.address"),
    ],
)
def test_usage_errors_exit_2_and_name_the_option(overrides, message):
    finished = run(*overrides, timeout_s=60)
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


def test_a_baseline_that_needs_gpus_is_refused_where_there_is_none(tmp_path):
    finished = run(*QUICK, "timing.baselines=[xla,torch_fused]", f"run_dir={tmp_path / 'run'}")
    assert finished.code == 2
    assert "timing.baselines=torch_fused needs GPUs, but the cluster has no GPU" in finished.result["error"]


def test_an_unreachable_cluster_is_reported_within_15_s():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    start_s = time.monotonic()
    finished = run(*QUICK, "cluster=ray", f"cluster.address={address}", timeout_s=60)
    assert finished.code == 3
    assert address in finished.result["error"]
    assert time.monotonic() - start_s < 15


def test_a_sweep_ends_with_the_worst_of_its_points():
    finished = run("-m", *QUICK, "problem.k=12,20", timeout_s=60)
    assert finished.code == finished.result["exit_code"] == 2
    assert "problem.k=12 must be a multiple of 8" in finished.result["error"]


def test_a_signal_while_python_still_imports_is_an_orderly_stop():
    process = start(*QUICK)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    finished = finish(process, timeout_s=60)
    assert finished.code == 143
    assert finished.result["status"] == "stopped"


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


KEY = "0123456789" * 4


@pytest.mark.slow
def test_a_refusing_wandb_falls_back_to_offline_loudly(refusing_server, tmp_path):
    options = [o for o in QUICK if not o.startswith("wandb")]
    finished = run(*options, f"run_dir={tmp_path / 'run'}", WANDB_BASE_URL=refusing_server, WANDB_API_KEY=KEY)
    assert finished.code == 0, finished.stderr
    assert "offline" in finished.stderr
    assert len(logged_rows(finished.result["wandb_dir"])) == len(finished.rows()) == 6
    assert KEY not in finished.stdout + finished.stderr


@pytest.mark.slow
def test_a_wandb_server_that_hangs_in_the_middle_takes_nothing_with_it(tmp_path):
    code = (
        "import time; from tests.jobs.results.wandb.wandb_server import Server\n"
        "print(Server(200).url, flush=True); time.sleep(600)"
    )
    server = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        options = [*(o for o in QUICK if not o.startswith("wandb")), "wandb=online", "wandb.finish_timeout_s=8"]
        url = server.stdout.readline().strip()
        process = start(*options, f"run_dir={tmp_path}", WANDB_BASE_URL=url, WANDB_API_KEY=KEY, NO_PROXY="127.0.0.1")
        _wait_for_rows(tmp_path, 3, process)
        server.send_signal(signal.SIGSTOP)
        finished = finish(process, timeout_s=90)
    finally:
        server.kill()
        server.wait()
    assert (finished.code, finished.result["status"]) == (0, "ok"), finished.stderr
    assert "the journal" in finished.stderr, "loudly"
    # All rows are on disk, and the output says how to upload them.
    assert len(logged_rows(finished.result["wandb_dir"])) == len(finished.rows()) == 6
    assert f"wandb sync {finished.result['wandb_dir']}" in finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "online"])
def test_an_unreachable_wandb(mode, tmp_path):
    options = [o for o in QUICK if not o.startswith("wandb")]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    finished = run(
        *options,
        f"wandb={mode}",
        "wandb.init_timeout_s=8",
        f"run_dir={tmp_path / 'run'}",
        WANDB_BASE_URL=url,
        WANDB_API_KEY=KEY,
    )
    if mode == "auto":
        assert finished.code == 0, finished.stderr
        assert "offline" in finished.stderr
    else:
        assert finished.code == 3
        assert "wandb" in finished.result["error"].lower()
        assert finished.result["rows"] == 0


def _wait_for_rows(run_dir, count, process):
    journal = run_dir / "results.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"no {count} rows in {journal}: {process.communicate()}")


def _member_pids(run_dir):
    import json

    return [(m["rank"], m["pid"]) for m in json.loads((run_dir / "environment.json").read_text())["members"]]


LONG = (*QUICK, "problem.m_shard=[32,40,48,56,64,72,80,88,96,104,112,120]")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_gang_and_keeps_the_journal(rank, tmp_path):
    run_dir = tmp_path / "run"
    process = start(*LONG, "cluster.max_restarts=0", f"run_dir={run_dir}")
    _wait_for_rows(run_dir, 3, process)
    os.kill(dict(_member_pids(run_dir))[rank], signal.SIGKILL)
    killed_s = time.monotonic()
    finished = finish(process, timeout_s=60)
    assert finished.code == 3
    assert time.monotonic() - killed_s < 30
    assert finished.result["status"] == "infrastructure_error"
    assert f"rank {rank}" in finished.result["error"]
    assert 3 <= len(finished.rows()) == finished.result["rows"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_job_keeps_the_journal(number, code, tmp_path):
    run_dir = tmp_path / "run"
    process = start(*LONG, f"run_dir={run_dir}")
    _wait_for_rows(run_dir, 3, process)
    process.send_signal(number)
    finished = finish(process, timeout_s=60)
    assert finished.code == code
    assert finished.result["status"] == "stopped"
    assert 3 <= len(finished.rows()) == finished.result["rows"]
    for _, pid in _member_pids(run_dir):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
