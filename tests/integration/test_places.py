"""The job where people run it: paths with spaces, few processes, a host that can't reach itself."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.bench_process import QUICK, ROOT, Finished, environment, finish, start

pytestmark = pytest.mark.slow


def test_a_checkout_and_a_temporary_folder_with_spaces(tmp_path):
    """And Ray's files are gone after the job."""
    checkout = tmp_path / "a 'checkout'"
    for folder in ("cmkernel", "jobs", "conf"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    # A virtual environment is known by the path that its python is called by.
    (checkout / "my env").symlink_to(sys.prefix, target_is_directory=True)
    temp_dir = Path(tempfile.mkdtemp(prefix="t ", dir="/tmp"))
    try:
        process = subprocess.Popen(
            [checkout / "my env" / "bin" / "python", "-m", "jobs.bench", *QUICK, f"run_dir={tmp_path}/a run"],
            cwd=checkout,
            env=environment(TMPDIR=str(temp_dir)),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        finished = finish(process, timeout_s=600)
        assert (finished.code, finished.result["rows"]) == (0, 6), finished.stderr
        assert list(temp_dir.iterdir()) == []
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)


def test_a_host_that_cannot_connect_to_itself(tmp_path):
    """A fresh network namespace has no interface that is up."""
    command = ["unshare", "--net", sys.executable, "-m", "jobs.bench", *QUICK, f"run_dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    finished = Finished(done.returncode, done.stdout, done.stderr)
    assert finished.code == 3
    assert "can't connect to itself (127.0.0.1: " in finished.result["error"]
    assert "ip link set lo up" in finished.result["error"]


def test_more_memory_than_there_is_is_refused(tmp_path):
    """Some 4 TiB for each rank."""
    process = start(*QUICK, "problem.m_shard=1048576", "problem.k=1048576", f"run_dir={tmp_path}")
    finished = finish(process, timeout_s=400)
    assert (finished.code, finished.result["rows"]) == (2, 0), finished.stderr
    assert "problem.m_shard=1048576 problem.k=1048576" in finished.result["error"]
    assert "GiB of memory for each rank" in finished.result["error"]


def test_flags_that_xla_does_not_know(tmp_path):
    finished = finish(start(*QUICK, f"run_dir={tmp_path}", XLA_FLAGS="--no_such_flag"), timeout_s=400)
    assert (finished.code, finished.result["rows"]) == (2, 0), finished.stderr
    assert "XLA_FLAGS=--no_such_flag: " in finished.result["error"]
    assert "Unknown flag" in finished.result["error"]


def test_more_ranks_than_a_local_ray_starts(tmp_path):
    process = start(*QUICK, "cluster.num_ranks=4096", f"run_dir={tmp_path}")
    finished = finish(process, timeout_s=400)
    assert finished.code == 3
    assert "cluster.num_ranks=4096 must be at most " in finished.result["error"]
