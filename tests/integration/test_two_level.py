"""Both portable rings over two hosts of two CPU ranks each, which reach each other over their network alone."""

import json
import re
import subprocess

import pytest

from tests.integration.bench_process import QUICK, ROOT, environment, finish, parse_result
from tests.integration.hosts import hosts

pytestmark = pytest.mark.slow

SMALL = (*(override for override in QUICK if "num_ranks" not in override), "problem.m_shard=32")


@pytest.fixture(scope="module")
def cluster():
    with hosts(2, num_cpus=2, with_dashboard=True) as cluster:
        cluster.await_job_server()
        yield cluster


def submit(cluster, *overrides):
    """The job through scripts/submit.sh, from one of the hosts: its exit code and output."""
    host = cluster.hosts[0]
    done = subprocess.run(
        host.command(str(ROOT / "scripts" / "submit.sh"), "--address", cluster.dashboard_url, "--", *overrides),
        env=environment(**cluster.env),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    return done.returncode, done.stdout


def test_both_rings_over_hosts_agree_with_the_oracle(cluster, tmp_path):
    baselines = "timing.baselines=[ppermute,xla]"
    code, output = submit(cluster, *SMALL, "cluster.num_ranks=4", baselines, f"run_dir={tmp_path / 'run'}")
    assert code == 0, output
    rows = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert [(row["implementation"], row["requested"]) for row in rows] == [
        ("ppermute_two_level", "auto"),
        ("ppermute", "baseline"),
        ("xla", "baseline"),
    ]
    for row in rows:
        assert row["check"]["passed"], row
        assert row["check"]["integers_exact"]
        assert row["in_graph_us"]["max"] > 0
    members = json.loads((tmp_path / "run" / "environment.json").read_text())["members"]
    assert [member["host"] for member in members] == ["h1", "h1", "h2", "h2"]
    assert "; over 2 hosts of 2 ranks expected: flat ring " in rows[0]["reason"]
    assert "# Hosts    : 2 of 2 ranks; modelled with 10 GB/s within a host and 1 x 1.25 GB/s to the others" in output


def test_hosts_that_differ_are_refused_where_it_is_named(cluster, tmp_path):
    finished = finish(
        cluster.hosts[0].bench(*SMALL, "cluster.num_ranks=3", "kernel=ppermute_two_level", f"run_dir={tmp_path}/run"),
        timeout_s=120,
    )
    assert finished.code == 2, finished.stderr
    error = parse_result(finished.stdout)["error"]
    assert "kernel.implementation=ppermute_two_level needs the same number of ranks on each host" in error
    assert re.search(r"and the 2 hosts have (2, 1|1, 2); use kernel=ppermute, another cluster.num_ranks", error)


def test_hosts_that_differ_get_the_flat_ring(cluster, tmp_path):
    finished = finish(
        cluster.hosts[0].bench(
            *SMALL, "cluster.num_ranks=3", "timing.baselines=[ppermute_two_level]", f"run_dir={tmp_path}/run"
        ),
        timeout_s=120,
    )
    assert finished.code == 0, finished.stderr
    flat, two_level = finished.rows()
    assert (flat["implementation"], flat["requested"]) == ("ppermute", "auto")
    assert flat["check"]["passed"]
    assert two_level["check"] is None
    assert re.search(r"the 2 hosts have (2, 1|1, 2)$", two_level["reason"])
