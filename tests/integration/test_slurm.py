"""scripts/slurm.sh as Slurm would run it, with a real Ray. In place of Slurm's commands, scripts run the steps here."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.bench_process import QUICK, ROOT, environment

pytestmark = pytest.mark.slow

# Slurm's commands, replaced: two nodes, whose steps start on this host.
COMMANDS = {
    # Slow, so a reader of the first line alone is gone when the second one comes.
    "scontrol": "echo node1 && sleep 0.5 && echo node2",
    "srun": 'printf "%s\\n" "$*" >>"$SRUN_LOG"; while [[ $1 == --* ]]; do shift; done; exec "$@"',
}


@pytest.fixture
def another_ray_on_the_host():
    """Its agent holds Ray's default port, as a job's that shares the node would."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # a real one runs
            listener.bind(("", 52365))
            listener.listen()
        yield


@pytest.fixture
def slurm(tmp_path):
    """A function that starts the script. After the test, its processes are killed."""
    for name, body in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    # Ports are made from it.
    job_id = str(os.getpid() % 1000 + 1000)
    processes = []

    def start(*arguments, **env):
        process = subprocess.Popen(
            [str(ROOT / "scripts" / "slurm.sh"), *arguments],
            cwd=tmp_path,
            env={
                **environment(RAY_AUTH_MODE=None, RAY_AUTH_TOKEN=None, RAY_AUTH_TOKEN_PATH=None),
                "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(home),
                "SRUN_LOG": str(tmp_path / "srun.log"),
                "SLURM_SUBMIT_DIR": str(ROOT),
                "SLURM_JOB_ID": job_id,
                "SLURM_JOB_NODELIST": "node[1-2]",
                "SLURM_JOB_NUM_NODES": "2",
                "SLURM_CPUS_ON_NODE": "2",
                **env,
            },
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        process.wait()
        process.stdout.close()


@pytest.mark.usefixtures("another_ray_on_the_host")
def test_a_ray_node_on_each_node_then_the_job(slurm, tmp_path):
    process = slurm("--", *QUICK, "problem.m_shard=32", f"run_dir={tmp_path / 'run'}")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    (line,) = {line for line in output.splitlines() if line.startswith("RESULT ")}
    assert json.loads(line.removeprefix("RESULT "))["status"] == "ok"
    head, others = (tmp_path / "srun.log").read_text().splitlines()
    assert "--nodelist=node1 " in head
    assert " --head " in head
    assert "--exclude=node1 " in others
    assert "--cpus-per-task=2" in head
    assert (tmp_path / "run" / "results.jsonl").exists()
    assert list((tmp_path / "home").glob(".cmkernel-slurm-*")) == [], "the token is gone"
    environment_of_job = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment_of_job["git_sha"]


def test_the_end_of_the_allocation_stops_the_job(slurm, tmp_path):
    journal = tmp_path / "run" / "results.jsonl"
    sizes = ",".join(str(32 + 8 * i) for i in range(40))
    process = slurm("--", *QUICK, f"problem.m_shard=[{sizes}]", f"run_dir={tmp_path / 'run'}")
    deadline = time.monotonic() + 150
    while not (journal.exists() and journal.stat().st_size) and time.monotonic() < deadline:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 143, output
    assert journal.read_text().count("\n") > 0


def test_without_an_allocation_it_says_how_to_be_called(slurm):
    process = slurm(SLURM_SUBMIT_DIR="")
    output, _ = process.communicate(timeout=180)
    assert process.returncode != 0
    assert "call this file through sbatch" in output
