"""The doctor on several hosts: a name that leads nowhere, and a host that is cut off."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.bench_process import QUICK, ROOT, Finished, environment, finish

pytestmark = pytest.mark.slow


def on(cluster):
    return environment(**{**cluster.env, "RAY_ADDRESS": cluster.address})


def examine(cluster, run_dir):
    """Run the doctor on the first host; its process, its report, and findings by check, place and verdict."""
    command = cluster.hosts[0].command(sys.executable, "-m", "jobs.doctor", f"run_dir={run_dir}", "cluster.num_ranks=1")
    done = subprocess.run(command, cwd=ROOT, env=on(cluster), capture_output=True, text=True, timeout=300)
    report = json.loads((run_dir / "doctor.json").read_text())
    found = {(f["check"], f["where"], f["verdict"]): f for f in report["findings"]}
    return Finished(done.returncode, done.stdout, done.stderr), report, found


def test_hosts_that_are_well(three_hosts, tmp_path):
    finished, report, found = examine(three_hosts, tmp_path)
    assert finished.code == 0, finished.stdout + finished.stderr
    assert [host["host"] for host in report["hosts"]] == ["h1", "h2", "h3"]
    for host in ("h1", "h2", "h3"):
        assert found["host name", host, "ok"]["found"] == "resolves to Ray's address"
        assert found["clock", host, "ok"]
    assert {link["link"] for link in report["links"]} == {
        *("h1 to h2", "h2 to h3", "h3 to h1", "h2 to h1", "h3 to h2", "h1 to h3"),
    }
    assert all(link["bytes_per_s"] > 0 for link in report["links"])


@contextlib.contextmanager
def resolving_to(host, ip):
    """Let the host's own name resolve to ``ip``, or to nothing."""
    names = Path("/etc/netns", host.namespace, "hosts")
    healthy = names.read_text()
    names.write_text("127.0.0.1 localhost\n" + (f"{ip} {host.name}\n" if ip else ""))
    try:
        yield
    finally:
        names.write_text(healthy)


@pytest.mark.parametrize("ip", ["127.0.1.1", "192.168.99.3"])
def test_a_name_that_leads_nowhere(three_hosts, tmp_path, ip):
    """To loopback, or to a network card that the other hosts can't reach."""
    trapped = three_hosts.hosts[2]
    if not ip.startswith("127."):
        command = ["ip", "-n", trapped.namespace, "addr", "replace", f"{ip}/32", "dev", "lo"]
        subprocess.run(command, check=True)
    with resolving_to(trapped, ip):
        finished, _, found = examine(three_hosts, tmp_path / "doctor")
        finding = found["host name", f"h3 ({trapped.ip})", "fail"]
        assert finding["found"].startswith(f"its name resolves to {ip}, which other hosts can't reach")
        assert finding["mend"] == f'add the line "{trapped.ip} h3" to /etc/hosts there'
        assert finished.code == 1
        assert "host name on h3" in finished.result["error"]
        job = three_hosts.hosts[0].bench(*QUICK, "cluster.num_ranks=3", f"run_dir={tmp_path / 'bench'}")
        refused = finish(job, timeout_s=400)
        assert (refused.code, refused.result["rows"]) == (3, 0)
        assert f"h3 ({trapped.ip}): host name: its name resolves to {ip}" in refused.result["error"]


def test_one_host_whose_name_does_not_resolve(three_hosts, tmp_path):
    host = three_hosts.hosts[0]
    with resolving_to(host, None):
        job = host.bench(*QUICK, "cluster=local", "cluster.num_ranks=2", f"run_dir={tmp_path}", RAY_ADDRESS=None)
        refused = finish(job, timeout_s=400)
    assert (refused.code, refused.result["rows"]) == (3, 0)
    assert "host name: it doesn't resolve" in refused.result["error"]
    assert ' h1" to /etc/hosts there' in refused.result["error"]


def test_a_host_that_is_cut_off(three_hosts, tmp_path):
    """The module's last test: Ray may give the host up, so it joins again afterwards."""
    three_hosts.hosts[2].cut()
    try:
        finished, report, found = examine(three_hosts, tmp_path)
    finally:
        three_hosts.hosts[2].mend()
        three_hosts.hosts[2].stop_raylet()
        three_hosts.hosts[2].start_raylet()
    assert finished.code == 1, finished.stdout + finished.stderr
    assert found["examiner", "h3", "fail"]["found"] == "no answer within 20 s"
    assert [host["host"] for host in report["hosts"]] == ["h1", "h2"], "the others are still looked at"
    assert {link["link"] for link in report["links"]} == {"h1 to h2", "h2 to h1"}
