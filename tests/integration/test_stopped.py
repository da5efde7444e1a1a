"""Signals at the edges of a job: while it begins, while Ray starts and ends, while it concludes, behind its end.

Signals in the middle of a job are in test_faults.py and test_bench_errors.py.
"""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.results.disk.json_safe import json_safe
from jobs.results.disk.run_dir import RunDir
from tests.integration.bench_process import QUICK, ROOT, Finished, environment, finish, run, start
from tests.jobs.comparison.simulated_runs import row
from tests.jobs.composed import composed

OFFLINE = [*(option for option in QUICK if not option.startswith("wandb")), "wandb=offline", "problem.m_shard=32"]


def program(text: str, *arguments: str, **env: str) -> Finished:
    """A program of this project's parts, from its start to its end."""
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(**env), capture_output=True, text=True, timeout=120)
    return Finished(done.returncode, done.stdout, done.stderr)


def await_(what: str, ready, process: subprocess.Popen, timeout_s: float = 90.0):
    deadline = time.monotonic() + timeout_s
    while not (found := ready()):
        assert process.poll() is None, (what, process.communicate())
        assert time.monotonic() < deadline, what
        time.sleep(0.002)
    return found


STOP = "os.kill(os.getpid(), signal.SIGTERM)"
ENTRY = f"""
import contextlib, os, signal, tempfile
from jobs.driver import entry

@contextlib.contextmanager
def between_points():
    yield
    {{behind}}

def job(config, outcome):
    global folder
    folder = tempfile.TemporaryDirectory("of a library")
    {{within}}

code = entry.main(job, between_points())
{STOP}
entry.leave(code)
"""


@pytest.mark.parametrize("behind", [STOP, "pass"])
def test_a_signal_behind_the_outcome_changes_neither_line_nor_code(behind, tmp_path):
    finished = program(ENTRY.format(behind=behind, within="pass"), TMPDIR=str(tmp_path))
    assert (finished.code, finished.result["exit_code"], finished.result["status"]) == (0, 0, "ok"), finished.stderr
    assert finished.stdout.count("RESULT") == 1
    assert not list(tmp_path.iterdir()), "no temporary folder stays"


def test_a_temporary_folder_of_the_users_stays(tmp_path):
    """Whatever its name is."""
    mine = tmp_path / "cmkernel-mine"
    mine.mkdir()
    (mine / "file").touch()
    finished = program(ENTRY.format(behind="pass", within="pass"), TMPDIR=str(mine))
    assert finished.code == 0
    assert [path.name for path in mine.iterdir()] == ["file"]


def test_a_signal_within_the_job_is_its_outcome(tmp_path):
    finished = program(ENTRY.format(behind="pass", within=STOP), TMPDIR=str(tmp_path))
    assert (finished.code, finished.result["exit_code"], finished.result["status"]) == (143, 143, "stopped")
    assert finished.stdout.count("RESULT") == 1
    assert not list(tmp_path.iterdir()), "no temporary folder stays"


def test_a_point_of_a_multirun_is_stopped_and_the_next_one_does_not_begin():
    finished = program(ENTRY.format(behind="pass", within=STOP), "-m", "problem.k=256,512")
    assert finished.code == 143
    point, whole = [line for line in finished.stdout.splitlines() if line.startswith("RESULT")]
    assert '"status": "stopped", "exit_code": 143' in point
    assert '"status": "stopped", "exit_code": 143' in whole


def test_all_rows_are_counted_where_a_signal_comes_while_they_are_read(tmp_path):
    count = 20_000
    line = json.dumps(json_safe(row({"call_us": [[[100.0]], [[101.0]]]})), allow_nan=False) + "\n"
    run_dir = RunDir.create(str(tmp_path), submission_id=None)
    run_dir.write_config(composed("wandb=disabled"))
    run_dir.journal_path.write_text(line * count)
    process = start(f"resume={tmp_path}")
    folder = Path(f"/proc/{process.pid}/fd")
    # The log is opened right before.
    await_("the log", lambda: any(_target(fd) == run_dir.log_path for fd in folder.iterdir()), process)
    process.send_signal(signal.SIGTERM)
    finished = finish(process, timeout_s=180)
    assert (finished.code, finished.result["status"]) == (143, "stopped"), finished.stderr
    assert finished.result["rows"] == count


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except OSError:
        return None


# SIGTERM five times, some time after Ray's process of that name has been started; else once, when all have ended.
RAY = """
import os, signal, sys, threading, time
from jobs.errors import JobStopped
from jobs.gang.cluster import connect
from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from jobs.signals import stop_on_signals

def children():
    pids = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return [open(f"/proc/{pid}/comm").read().strip() for pid in pids]

def stop():
    while sys.argv[1] not in children():
        time.sleep(0.001)
    time.sleep(float(sys.argv[2]))
    for _ in range(5):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

threading.Thread(target=stop, daemon=True).start()
try:
    with stop_on_signals():
        cluster = connect(ClusterSettings(mode=ClusterMode.local, num_ranks=1))
        cluster.close()
        os.kill(os.getpid(), signal.SIGTERM)
except JobStopped as error:
    print(error, flush=True)
    os._exit(error.exit_code)
"""


@pytest.mark.parametrize(("name", "delay_s"), [("gcs_server", 0.0), ("raylet", 0.6), ("-", 0.0)])
def test_signals_while_a_local_ray_starts_and_after_its_end(name, delay_s, tmp_path):
    """Ray's Python code takes SIGTERM when it starts, and its C++ code gives it back to the system as it ends."""
    mark = f"OF_THIS_TEST={tmp_path}"
    finished = program(RAY, name, str(delay_s), OF_THIS_TEST=str(tmp_path))
    assert (finished.code, finished.stdout) == (143, "stopped by signal 15\n"), finished.stderr
    deadline = time.monotonic() + 60
    while left := [path for path in Path("/proc").glob("[0-9]*") if mark in _environment(path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _environment(process: Path) -> list[str]:
    try:
        return (process / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return []


@pytest.mark.slow
def test_a_signal_while_the_job_concludes(tmp_path):
    """Ray has ended, and the report takes seconds."""
    process = start(*OFFLINE, "results.report=true", f"run_dir={tmp_path / 'run'}")
    next(line for line in process.stdout if line.startswith("# Out of bounds"))
    process.send_signal(signal.SIGTERM)
    finished = finish(process, timeout_s=180)
    assert (finished.code, finished.result["status"]) == (143, "stopped"), finished.stderr
    assert finished.result["rows"] == len(finished.rows()) == 3


@pytest.mark.slow
def test_a_job_that_is_killed_while_wandb_starts_has_one_wandb_run(tmp_path):
    process = start(*OFFLINE, f"run_dir={tmp_path}")
    (first,) = await_("a W&B run", lambda: list((tmp_path / "wandb").glob("offline-run-*")), process)
    process.kill()
    process.communicate()
    finished = run(f"resume={tmp_path}")
    assert finished.code == 0, finished.stderr
    (found,) = (tmp_path / "wandb").glob("offline-run-*")
    assert str(found) == finished.result["wandb_dir"]
    assert re.sub(".*-", "", found.name) == re.sub(".*-", "", first.name), "the run's id"
