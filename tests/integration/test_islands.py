"""``cluster.world=per_island`` over three namespaced hosts: one is slow, one loses its gang, the others go on."""

import contextlib
import json
import os
import re
import signal
import threading
import time

import pytest

from tests.integration.bench_process import QUICK, finish

pytestmark = pytest.mark.slow

# Samples of some 80 ms without a slow-down: longer than what a busy machine does in between, and than several turns of
# a slowed rank.
ISLANDS = (
    *(override for override in QUICK if "num_ranks" not in override),
    *("cluster.world=per_island", "kernel=xla", "timing.baselines=[local]"),
    *("timing.chain_length=16", "timing.chain_repeats=100", "timing.chains=3", "timing.bursts=3"),
)
# Hosts share two cores, so equal ones may differ twofold. Of three islands the middle one is the median, with z = 0.
# Where one is slow, the first threshold finds it, however the other two differ. Where none is slow, the slowest may
# have a z of 20, when the other two happen to agree.
TELLS_THE_SLOWEST, TELLS_NONE = "cluster.outlier_z=1", "cluster.outlier_z=50"


def island(run_dir, name):
    """An island's part of environment.json."""
    record = json.loads((run_dir / "environment.json").read_text())
    return next(part for part in record["islands"] if part["island"] == name)


def await_log(process, run_dir, text, timeout_s=90.0):
    deadline = time.monotonic() + timeout_s
    log = run_dir / "bench.log"
    while not (log.exists() and text in log.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


@contextlib.contextmanager
def slowed(pid, *, runs_s=0.01, sleeps_s=0.2):
    """The process runs for ``runs_s`` in turn with ``sleeps_s``."""
    ended = threading.Event()

    def turns():
        with contextlib.suppress(ProcessLookupError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(sleeps_s)
                os.kill(pid, signal.SIGCONT)
                time.sleep(runs_s)

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_slow_host_is_an_outlier(three_hosts, tmp_path):
    run_dir = tmp_path / "run"
    process = three_hosts.hosts[0].bench(*ISLANDS, TELLS_THE_SLOWEST, "problem.m_shard=32", f"run_dir={run_dir}")
    await_log(process, run_dir, "h3: tiny m_shard=32 k=256 n_shard=256 bfloat16 D=1: xla: warm-up")
    with slowed(island(run_dir, "h3")["members"][0]["pid"]):
        finished = finish(process, timeout_s=180)
    assert finished.code == 1, finished.stderr
    assert finished.result["status"] == "outlier"
    assert finished.result["error"].startswith("2 of the islands and ranks are too slow: h3: ")
    ranking = re.findall(r"^#   (h\d)  \S+ %(  OUTLIER)?", finished.stdout, re.MULTILINE)
    assert ranking[0] == ("h3", "  OUTLIER")
    assert sorted(ranking[1:]) == [("h1", ""), ("h2", "")]
    assert re.search(r"^#   rank 0 of h3  .* OUTLIER", finished.stdout, re.MULTILINE)
    rows = finished.rows()
    assert sorted((row["island"], row["implementation"]) for row in rows) == [
        (name, implementation) for name in ("h1", "h2", "h3") for implementation in ("local", "xla")
    ]
    assert all(row["check"]["passed"] and row["case"]["num_ranks"] == 1 for row in rows)


def test_a_lost_island_gets_a_gang_of_its_own_and_the_others_go_on(three_hosts, tmp_path):
    """No island is an outlier, so the job succeeds, with a W&B run and a report that name the islands."""
    run_dir = tmp_path / "run"
    overrides = [o for o in ISLANDS if not o.startswith(("wandb", "results"))]
    overrides += [TELLS_NONE, "wandb=offline", "problem.m_shard=32"]
    process = three_hosts.hosts[0].bench(*overrides, f"run_dir={run_dir}")
    await_log(process, run_dir, "h2: tiny m_shard=32 k=256 n_shard=256 bfloat16 D=1: xla: burst 1/3")
    os.kill(island(run_dir, "h2")["members"][0]["pid"], signal.SIGKILL)
    finished = finish(process, timeout_s=180)
    assert finished.code == 0, finished.stdout + finished.stderr
    assert finished.result["restarts"] == 1
    assert re.search(r"# Restart 1 of 2 of island h2: rank 0 on h2 \(pid \d+\) died while ", finished.stdout)
    rows = finished.rows()
    keys = sorted((row["island"], row["implementation"], row["attempt"]) for row in rows)
    assert keys == [
        (name, implementation, 2 if name == "h2" else 1)
        for name in ("h1", "h2", "h3")
        for implementation in ("local", "xla")
    ]
    assert [island(run_dir, name)["attempt"] for name in ("h1", "h2", "h3")] == [1, 2, 1]
    page = (run_dir / "report.html").read_text()
    assert page.count(">h2</td>") >= 2 * 2, "in the table of results, and in that of the ranks"
