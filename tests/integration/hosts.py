"""Several hosts on one machine: ``with hosts(2, num_cpus=2) as cluster: ...``.

Each host is a network namespace with an address, a name and a raylet of its own, and its link to the others can be cut.
The bridge between them has a namespace of its own, so clusters of tests that run at the same time don't meet. Needs
root and `ip` (iproute2). Where namespaces aren't permitted, tests are skipped with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.integration import bench_process
from tests.integration.ray_cluster import START_TIMEOUT_S, inherited_environment, stop, write_token

GCS_PORT, DASHBOARD_PORT = 6379, 8265
_SUBNET = "10.77.0"
_AWAIT_NODES = """
import sys, time
import ray

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.2)
"""


@dataclasses.dataclass
class Host:
    """One host. The first one has the head node, and drivers run there."""

    name: str
    """Hostname: ``h1``, ``h2``, ..."""
    ip: str
    namespace: str
    switch: str
    """Namespace of the bridge."""
    temp_dir: Path
    env: Mapping[str, str]
    raylet_env: Mapping[str, str]
    num_cpus: int
    head_ip: str
    with_dashboard: bool
    raylet: subprocess.Popen[bytes] | None = None
    """`ray start`, whose children are the raylet and its agents."""

    def command(self, *command: str) -> list[str]:
        """``command`` as it runs on this host. The process that it starts is the command itself, not a wrapper."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *command]

    def bench(self, *overrides: str, **env: str | None) -> subprocess.Popen[str]:
        """The job, running with its driver on this host and its ranks on the cluster: for ``bench_process.finish``."""
        changes = {**self.env, "RAY_ADDRESS": f"{self.head_ip}:{GCS_PORT}", **env}
        return subprocess.Popen(
            self.command(*bench_process.command(*overrides)),
            cwd=bench_process.ROOT,
            env=bench_process.environment(**changes),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def start_raylet(self) -> None:
        """Start the head, or a node that joins, without waiting for it."""
        address = [f"--address={self.head_ip}:{GCS_PORT}"]
        if self.ip == self.head_ip:
            address = ["--head", f"--port={GCS_PORT}", "--disable-usage-stats"]
            address += [f"--include-dashboard={str(self.with_dashboard).lower()}"]
            address += [f"--dashboard-host={self.ip}", f"--dashboard-port={DASHBOARD_PORT}"]
        options = [f"--node-ip-address={self.ip}", f"--temp-dir={self.temp_dir / self.name}"]
        options += [f"--num-cpus={self.num_cpus}", "--num-gpus=0", "--object-store-memory=100000000"]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *address, *options]
        with (self.temp_dir / f"{self.name}.log").open("ab") as log:
            self.raylet = subprocess.Popen(
                self.command(*ray),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.raylet_env),
                start_new_session=True,
            )

    def kill_raylet(self) -> None:
        """Kill the raylet process alone, and wait until the `ray start` that watches it ends."""
        assert self.raylet is not None
        (pid,) = (pid for pid in _children(self.raylet.pid) if _program(pid) == "raylet")
        os.kill(pid, signal.SIGKILL)
        self.raylet.wait(60)

    def stop_raylet(self) -> None:
        """End what `start_raylet` started."""
        if self.raylet is not None:
            stop(self.raylet)
            self.raylet = None

    def cut(self) -> None:
        """Pull the cable: packets vanish both ways, without an error anywhere."""
        _ip("-n", self.switch, "link", "set", self.name, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("-n", self.switch, "link", "set", self.name, "up")


@dataclasses.dataclass(frozen=True)
class Hosts:
    """A cluster of hosts."""

    hosts: Sequence[Host]
    address: str
    """``host:port`` of the GCS, which the hosts alone can reach."""
    dashboard_url: str
    env: Mapping[str, str]
    """For processes on the hosts: this process's environment, and the cluster's token."""
    temp_dir: Path

    def await_nodes(self) -> None:
        """Wait until every host that was started has joined; on a busy machine Ray may give one up: start it anew."""
        started = [host for host in self.hosts if host.raylet is not None]
        command = self.hosts[0].command(sys.executable, "-c", _AWAIT_NODES, self.address, str(len(started)))
        waiting = subprocess.Popen(command, env=dict(self.env))
        deadline = time.monotonic() + 2 * START_TIMEOUT_S
        try:
            while waiting.poll() is None and time.monotonic() < deadline:
                for host in started:
                    if host.raylet is not None and host.raylet.poll() is not None:
                        host.stop_raylet()
                        host.start_raylet()
                time.sleep(0.5)
        finally:
            waiting.kill()
        assert waiting.wait() == 0, [(self.temp_dir / f"{host.name}.log").read_text()[-2000:] for host in started]

    def await_job_server(self) -> None:
        """Wait until jobs can be submitted, from one of the hosts."""
        _await(self.hosts[0], DASHBOARD_PORT)


@contextlib.contextmanager
def hosts(
    num_hosts: int,
    *,
    num_cpus: int,
    start: int | None = None,
    with_dashboard: bool = False,
    env: Mapping[str, str] | None = None,
) -> Iterator[Hosts]:
    """Hosts ``h1`` to ``h<num_hosts>`` with ``num_cpus`` CPUs each; raylets on the first ``start``, or on all.

    ``env`` is added to the environment of the raylets, and so to that of the ranks.
    """
    tag = f"ck{os.getpid():x}{time.monotonic_ns() % 0xFFFF:x}"
    # Short: sockets lie below it, and their paths may have 107 bytes.
    temp_dir = Path(tempfile.mkdtemp(prefix="rh", dir="/tmp"))
    known = {**inherited_environment(), **write_token(temp_dir)}
    made = [
        Host(
            name=f"h{number}",
            ip=f"{_SUBNET}.{number}",
            namespace=f"{tag}-h{number}",
            switch=f"{tag}-switch",
            temp_dir=temp_dir,
            env=known,
            raylet_env={**known, **(env or {})},
            num_cpus=num_cpus,
            head_ip=f"{_SUBNET}.1",
            with_dashboard=with_dashboard,
        )
        for number in range(1, num_hosts + 1)
    ]
    try:
        _make_network(made)
        for host in made[:start]:
            host.start_raylet()
            if host is made[0]:
                _await(host, GCS_PORT)
        head = made[0].ip
        cluster = Hosts(made, f"{head}:{GCS_PORT}", f"http://{head}:{DASHBOARD_PORT}", known, temp_dir)
        cluster.await_nodes()
        yield cluster
    finally:
        # The head last: the others would wait for it.
        for host in reversed(made):
            host.stop_raylet()
        _remove_network(made)
        shutil.rmtree(temp_dir, ignore_errors=True)


def _make_network(made: Sequence[Host]) -> None:
    switch = made[0].switch
    try:
        _ip("netns", "add", switch)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or error
        pytest.skip(f"no network namespaces here (they need root and iproute2): {str(why).strip()}")
    _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
    _ip("-n", switch, "link", "set", "bridge", "up")
    known = "".join(f"{host.ip} {host.name}\n" for host in made)
    for host in made:
        _ip("netns", "add", host.namespace)
        # `ip netns exec` shows this file as /etc/hosts. gloo advertises the address that a hostname resolves to.
        etc = Path("/etc/netns", host.namespace)
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        _ip("-n", switch, "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        _ip("-n", switch, "link", "set", host.name, "master", "bridge", "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.ip}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _ip("-n", host.namespace, "link", "set", interface, "up")


def _remove_network(made: Sequence[Host]) -> None:
    for namespace in [*(host.namespace for host in made), made[0].switch]:
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
        shutil.rmtree(Path("/etc/netns", namespace), ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _await(host: Host, port: int) -> None:
    """Wait until something listens on ``port`` of ``host``."""
    deadline = time.monotonic() + START_TIMEOUT_S
    probe = host.command("bash", "-c", f"</dev/tcp/{host.ip}/{port}")
    while subprocess.run(probe, capture_output=True).returncode:
        assert host.raylet is not None
        if host.raylet.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"nothing on {host.ip}:{port}:\n{(host.temp_dir / f'{host.name}.log').read_text()}")
        time.sleep(0.2)


def _children(pid: int) -> list[int]:
    pids = []
    for path in Path("/proc", str(pid), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += [int(child) for child in path.read_text().split()]
    return pids


def _program(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""
