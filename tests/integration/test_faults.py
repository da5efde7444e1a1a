"""Jobs whose cluster breaks: docs/faults.md is the table of these tests.

One cluster of namespaced hosts with a CPU each, so that every rank has a host of its own. Faults are real: signals, a
link that is cut, a full disk. Each test repairs the cluster for the next one.
"""

import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration import stick
from tests.integration.bench_process import QUICK, ROOT, finish
from tests.integration.hosts import hosts
from tests.jobs.results.wandb.leet import history
from tests.small_disk import small_disk

pytestmark = pytest.mark.slow

SIZES = [32, 40, 48, 56, 64]
NAMES = ("ppermute", "xla")
SMALL = (*QUICK, f"timing.baselines=[{NAMES[1]}]", "timing.chain_length=2")
MANY = (*SMALL, f"problem.m_shard=[{','.join(map(str, SIZES))}]")
# Generous: what is to be noticed takes up to 10 s on a free machine, and where nobody notices, minutes.
DETECTION_S = 60.0
STALL_TIMEOUT_S = 5.0


@pytest.fixture(scope="module")
def compilation_cache(tmp_path_factory):
    """Rank 0 writes it, and raises where it can't; the others read it."""
    path = tmp_path_factory.mktemp("cache")
    variables = {"JAX_COMPILATION_CACHE_DIR": str(path), "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "true"}
    for name in ("MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES"):
        variables[f"JAX_PERSISTENT_CACHE_{name}"] = "0"
    return path, variables


@pytest.fixture(scope="module")
def cluster(compilation_cache):
    """h1 and h2 run; h3 waits to be started."""
    with hosts(3, num_cpus=1, start=2, env=compilation_cache[1]) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def as_it_was(cluster):
    """Repair h1 and h2 behind each test."""
    yield
    for host in cluster.hosts[:2]:
        host.mend()
        if host.raylet.poll() is not None:
            host.stop_raylet()
            host.start_raylet()


class Job:
    """A job that runs, as its run directory shows it."""

    def __init__(self, cluster, run_dir, *overrides, **env):
        self.run_dir = run_dir
        self.process = cluster.hosts[0].bench(*overrides, f"run_dir={run_dir}", **env)
        self.finished = None

    def rows(self):
        path = self.run_dir / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def log(self):
        path = self.run_dir / "bench.log"
        return path.read_text() if path.exists() else ""

    def environment(self):
        return json.loads((self.run_dir / "environment.json").read_text())

    def await_(self, what, ready, timeout_s=300.0):
        deadline = time.monotonic() + timeout_s
        while not (found := ready()):
            assert self.process.poll() is None, (what, self.process.communicate())
            assert time.monotonic() < deadline, what
            time.sleep(0.05)
        return found

    def await_attempt(self, number):
        """Wait until that gang has written a row; its members."""
        self.await_(f"a row of attempt {number}", lambda: any(row["attempt"] == number for row in self.rows()))
        return self.environment()["members"]

    def await_log(self, text, timeout_s=300.0):
        """Wait for a line of the log with ``text``; its time, in seconds of the epoch, and the line."""

        def line():
            return next((line for line in self.log().splitlines() if text in line), None)

        found = self.await_(text, line, timeout_s)
        return datetime.datetime.strptime(found[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp(), found

    def finish(self, timeout_s=400):
        self.finished = finish(self.process, timeout_s=timeout_s)
        return self.finished

    def check_complete(self, attempts, sizes=SIZES):
        """Assert that each row of each case is there once, measured by the gangs of these attempts."""
        assert self.finished.code == 0, self.finished.stderr
        keys = [(row["case"]["m_shard"], row["implementation"]) for row in self.rows()]
        assert sorted(keys) == sorted((m, name) for m in sizes for name in NAMES)
        assert {row["attempt"] for row in self.rows()} == set(attempts)
        assert self.finished.result["rows"] == len(keys)


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)
    return time.time()


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def measured(fault, began_s, found_s, job=None):
    """Print a line for docs/faults.md; pytest -rP shows it."""
    restarts = [attempt.get("restart_s") for attempt in job.environment()["earlier_attempts"]] if job else []
    print(f"MEASURED {fault}: found out after {found_s - began_s:.1f} s; restarts {restarts}")


def test_a_case_that_kills_two_gangs_is_given_up(cluster, tmp_path):
    """A rank is killed whenever a gang begins the third case."""
    job = Job(cluster, tmp_path / "run", *MANY)
    case = f"tiny m_shard={SIZES[2]} k=256 n_shard=256 bfloat16 D=2"
    for number in (1, 2):
        job.await_(f"case 3 of gang {number}", lambda n=number: job.log().count(f"{case}: inputs") == n)
        kill(job.environment()["members"][1]["pid"])
    finished = job.finish()
    assert (finished.code, finished.result["restarts"]) == (3, 2), finished.stderr
    assert case in finished.result["error"]
    assert "given up, 2 gangs were lost on it: rank 1 on h2 " in finished.result["error"]
    assert {row["case"]["m_shard"] for row in job.rows()} == {*SIZES} - {SIZES[2]}
    resumed = Job(cluster, job.run_dir, f"resume={job.run_dir}")
    resumed.finish()
    resumed.check_complete({1, 3, 4})  # the second gang measured nothing


def test_killed_ranks(cluster, tmp_path):
    job = Job(cluster, tmp_path / "run", *MANY)
    pids = []
    for attempt, rank in ((1, 1), (2, 0)):
        victim = job.await_attempt(attempt)[rank]
        killed_s = kill(victim["pid"])
        found_s, line = job.await_log(f"restart {attempt} of 2: ")
        assert f"rank {rank} on h{rank + 1} (pid {victim['pid']}) died while " in line
        assert found_s - killed_s < DETECTION_S
        pids += [member["pid"] for member in job.environment()["earlier_attempts"][-1]["members"]]
        measured(f"SIGKILL of rank {rank}", killed_s, found_s)
    finished = job.finish()
    job.check_complete({1, 2, 3})
    assert all(map(is_gone, pids))
    assert finished.result["restarts"] == 2
    costs = [float(cost) for cost in re.findall(r"# Attempt \d begins ([\d.]+) s after the loss", finished.stdout)]
    assert [attempt["restart_s"] for attempt in job.environment()["earlier_attempts"]] == costs
    measured("restarts", 0, 0, job)


def test_no_restart_is_left(cluster, tmp_path):
    job = Job(cluster, tmp_path / "run", *MANY, "cluster.max_restarts=0")
    kill(job.await_attempt(1)[1]["pid"])
    finished = job.finish()
    assert finished.code == 3
    assert finished.result["status"] == "infrastructure_error"
    assert "rank 1 on h2" in finished.result["error"]
    assert finished.result["rows"] == len(job.rows()) >= len(NAMES)


def test_killed_raylet_and_a_node_that_joins_late(cluster, tmp_path):
    host = cluster.hosts[1]
    job = Job(cluster, tmp_path / "run", *MANY)
    victim = job.await_attempt(1)[1]
    killed_s = time.time()
    host.kill_raylet()
    found_s, line = job.await_log("restart 1 of 2: ")
    assert "rank 1 on h2" in line
    assert found_s - killed_s < DETECTION_S
    _, waiting = job.await_log("waiting up to cluster.placement_timeout_s=60 s for nodes to join: ")
    assert "needs 2 CPUs on any hosts, but there is room for 1: h1" in waiting
    host.start_raylet()
    job.finish()
    job.check_complete({1, 2})
    assert is_gone(victim["pid"])
    measured("SIGKILL of a raylet", killed_s, found_s, job)


def test_cut_link(cluster, tmp_path):
    host = cluster.hosts[1]
    job = Job(cluster, tmp_path / "run", *MANY)
    victim = job.await_attempt(1)[1]
    host.cut()
    cut_s = time.time()
    try:
        found_s, line = job.await_log("restart 1 of 2: ")
    finally:
        host.mend()
    assert "rank 1 on h2" in line
    measured("cut link", cut_s, found_s)
    job.finish()
    job.check_complete({1, 2})
    assert is_gone(victim["pid"])
    measured("cut link", cut_s, found_s, job)


def _working_thread(pid):
    """The thread of a rank that runs a step, by the name that Ray gives it."""
    (thread,) = (t for t in Path(f"/proc/{pid}/task").iterdir() if (t / "comm").read_text() == "ray::Rank.call\n")
    return thread.name


@contextlib.contextmanager
def stuck(rank, peer):
    """``rank`` gets no further in a collective, but answers."""
    # While the peer sleeps, the rank waits for it inside XLA, where it doesn't hold Python's lock.
    os.kill(peer["pid"], signal.SIGSTOP)
    time.sleep(0.5)
    thread = _working_thread(rank["pid"])
    with subprocess.Popen([sys.executable, stick.__file__, thread], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("stopped")
        os.kill(peer["pid"], signal.SIGCONT)
        try:
            yield
        finally:
            process.kill()


def test_stuck_and_frozen_ranks(cluster, tmp_path):
    # Bursts, in which nothing is compiled, of a second or so: long enough to be met.
    options = [f"cluster.stall_timeout_s={STALL_TIMEOUT_S:g}", "timing.iterations=800"]
    # With less, jax.distributed may end the peer of a frozen rank before the watchdog does.
    options += ["cluster.heartbeat_timeout_s=30"]
    job = Job(cluster, tmp_path / "run", *MANY, *options)
    members = job.await_attempt(1)
    job.await_log("m_shard=40 k=256 n_shard=256 bfloat16 D=2: ppermute: burst 1/2")
    with stuck(members[1], members[0]):
        began_s = time.time()
        found_s, line = job.await_log("restart 1 of 2: ")
        assert f"no progress for {STALL_TIMEOUT_S:g} s while " in line
        assert re.search(r"ranks? .*: iteration \d+ of burst ppermute, last finished case: tiny m_shard=32", line)
        assert "unresponsive" not in line
        assert found_s - began_s < STALL_TIMEOUT_S + DETECTION_S
        stacks = (tmp_path / "run" / "stacks-1.txt").read_text().split("=== rank ")
        assert [s[:7] for s in stacks[1:]] == ["0 on h1", "1 on h2"]
        assert all("in burst\n" in s for s in stacks[1:])
        assert str(tmp_path / "run" / "stacks-1.txt") in line
        measured("stuck rank", began_s, found_s)
        members_2 = job.await_attempt(2)
    job.await_log("m_shard=48 k=256 n_shard=256 bfloat16 D=2: ppermute: burst 1/2")
    began_s = kill(members_2[1]["pid"], signal.SIGSTOP)
    found_s, line = job.await_log("restart 2 of 2: ")
    assert f"unresponsive: rank 1 on h2 (pid {members_2[1]['pid']})" in line
    assert found_s - began_s < STALL_TIMEOUT_S + DETECTION_S
    stacks = (tmp_path / "run" / "stacks-2.txt").read_text().split("=== rank ")
    assert "in burst\n" in stacks[1]
    assert "no answer" in stacks[2]
    job.finish()
    job.check_complete({1, 2, 3})
    assert all(is_gone(member["pid"]) for member in [*members, *members_2])
    measured("frozen rank", began_s, found_s, job)


def test_raising_rank(cluster, compilation_cache, tmp_path):
    """A failure of the program itself, which a fresh gang would meet again: rank 0 can't write what it compiled."""
    cache, _ = compilation_cache
    job = Job(cluster, tmp_path / "run", *SMALL, "problem.m_shard=[32,33,34,35]")
    job.await_attempt(1)
    cache.rename(cache.with_name("old"))
    cache.touch()
    try:
        finished = job.finish()
    finally:
        cache.unlink()
        cache.with_name("old").rename(cache)
    assert finished.code == 3
    assert finished.result["status"] == "rank_failed"
    assert re.match(r"rank 0 on h1 \(pid \d+\) failed while .*: NotADirectoryError: ", finished.result["error"])
    assert finished.result["restarts"] == 0
    assert finished.result["rows"] == len(job.rows()) >= len(NAMES)


def test_out_of_capacity_at_start(cluster, tmp_path):
    job = Job(cluster, tmp_path / "run", *SMALL, "cluster.num_ranks=5", "cluster.placement_timeout_s=2")
    finished = job.finish()
    assert finished.code == 3
    assert "cluster.num_ranks=5 needs 5 CPUs on any hosts, but there is room for 2: h1" in finished.result["error"]
    assert job.rows() == []


def test_a_node_joins_while_the_job_waits_to_start(cluster, tmp_path):
    host = cluster.hosts[2]
    job = Job(cluster, tmp_path / "run", *SMALL, "problem.m_shard=32", "cluster.num_ranks=3")
    job.await_log("waiting up to cluster.placement_timeout_s=60 s for nodes to join: ")
    host.start_raylet()
    try:
        job.finish()
        job.check_complete({1}, [32])
        assert [member["host"] for member in job.environment()["members"]] == ["h1", "h2", "h3"]
    finally:
        host.stop_raylet()


def test_stopped_and_killed_driver_and_resume(cluster, tmp_path):
    """A job is stopped by SIGTERM and continued; that one is killed by SIGKILL and continued again."""
    run_dir = tmp_path / "run"
    overrides = [override for override in MANY if not override.startswith("wandb")]
    job = Job(cluster, run_dir, *overrides, "wandb=offline")
    members = job.await_attempt(1)
    job.process.send_signal(signal.SIGTERM)
    stopped = job.finish()
    assert (stopped.code, stopped.result["status"]) == (143, "stopped")
    assert stopped.result["rows"] == len(job.rows()) >= len(NAMES)
    assert all(is_gone(member["pid"]) for member in members)
    before = job.rows()

    h1 = cluster.hosts[0]
    refused = finish(h1.bench(f"resume={run_dir}", "problem.m_shard=[8]"), timeout_s=400)
    assert refused.code == 2
    assert "problem.m_shard=[8] contradicts problem.m_shard=[32, 40, " in refused.result["error"]
    job.process = h1.bench(f"resume={run_dir}", "cluster.step_timeout_s=500")
    members = job.await_attempt(2)
    killed_s = kill(job.process.pid)
    job.process.communicate(timeout=400)
    while not all(is_gone(member["pid"]) for member in members):
        assert time.time() < killed_s + DETECTION_S
        time.sleep(0.05)
    measured("SIGKILL of the driver, ranks gone", killed_s, time.time())

    job.process = h1.bench(f"resume={run_dir}")
    resumed = job.finish()
    job.check_complete({1, 2, 3})
    assert job.rows()[: len(before)] == before
    assert resumed.result["wandb_dir"][-8:] == stopped.result["wandb_dir"][-8:], "the run's id"
    assert [path.name for path in (run_dir / "wandb").glob("offline-run-*")] == [Path(resumed.result["wandb_dir"]).name]
    logged = [(step["case/m_shard"], step["attempt"]) for step in history(Path(resumed.result["wandb_dir"]))]
    assert logged == [(row["case"]["m_shard"], row["attempt"]) for row in job.rows()]


@pytest.fixture
def small(tmp_path):
    with small_disk(tmp_path / "disk", "20k") as path:
        yield path


def test_full_disk_and_resume(cluster, small):
    job = Job(cluster, small / "run", *MANY)
    full = job.finish()
    assert full.code == 3, full.stderr
    assert re.search(r"results.jsonl: a row can't be written \(No space left on device\)", full.result["error"])
    before = job.rows()
    assert full.result["rows"] == len(before) >= len(NAMES)

    subprocess.run(["mount", "-o", "remount,size=10m", str(small)], check=True)
    with (small / "run" / "results.jsonl").open("a") as journal:
        journal.write('{"case": {"name": "ti')
    job.process = cluster.hosts[0].bench(f"resume={small / 'run'}")
    job.finish()
    job.check_complete({1, 2})
    assert job.rows()[: len(before)] == before


def test_two_jobs_at_once(cluster, tmp_path):
    """Started in the same second, below the same home; and a third one that wants the folder of a running one."""
    h1 = cluster.hosts[0]
    one_rank = [*SMALL, "cluster.num_ranks=1", "problem.m_shard=32"]
    pair = [h1.bench(*one_rank, HOME=str(tmp_path)) for _ in range(2)]
    base, deadline = tmp_path / "cmkernel_runs", time.monotonic() + 300
    while not (base.exists() and len(logs := list(base.glob("*/bench.log"))) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    third = finish(h1.bench(*one_rank, f"run_dir={logs[0].parent}"), timeout_s=400)
    assert third.code == 2
    assert re.search(r"in use by another job|already holds a results.jsonl", third.result["error"])
    finished = [finish(process, timeout_s=400) for process in pair]
    assert [f.code for f in finished] == [0, 0], [f.stderr for f in finished]
    assert len({f.result["run_dir"] for f in finished}) == 2
    assert [len(f.rows()) for f in finished] == [2, 2]


WANDB_SERVER = """
import threading
from tests.jobs.results.wandb.wandb_server import Server

print(Server(200).url, flush=True)
threading.Event().wait()
"""


def test_frozen_wandb_server(cluster, tmp_path):
    """SIGSTOP of the server while the job measures: the job ends all the same, and says where the rows are."""
    h1 = cluster.hosts[0]
    command = h1.command(sys.executable, "-c", WANDB_SERVER)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            overrides = [o for o in SMALL if not o.startswith("wandb")]
            overrides += ["problem.m_shard=[32,40,48]", "wandb=online", "wandb.finish_timeout_s=8"]
            job = Job(cluster, tmp_path / "run", *overrides, WANDB_BASE_URL=url, WANDB_API_KEY="0123456789" * 4)
            job.await_attempt(1)
            server.send_signal(signal.SIGSTOP)
            finished = job.finish()
        finally:
            server.kill()
    job.check_complete({1}, [32, 40, 48])
    assert finished.result["status"] == "ok"
    assert "the journal in" in finished.stderr, "loudly"
    assert f"wandb sync {finished.result['wandb_dir']}" in finished.stdout
    assert len(history(finished.result["wandb_dir"])) == len(finished.rows()) == 3 * len(NAMES), "for wandb sync"
