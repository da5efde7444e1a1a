"""A real Ray with its dashboard and job server, token authentication on: ``with ray_cluster() as cluster: ...``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

START_TIMEOUT_S = 90.0
# Ray drains a node that still has actors for 30 s; nothing here is worth waiting for that long.
STOP_TIMEOUT_S = 15.0
# A W&B key that somebody has put into the environment in which Ray was started.
FAKE_KEY = "fade0123456789abcdef0123456789abcdefade0"


@dataclasses.dataclass(frozen=True)
class RayCluster:
    """A running head node."""

    address: str
    """``host:port`` of the GCS, for ``cluster.address`` and RAY_ADDRESS."""
    dashboard_url: str
    """``http://...``, for ``scripts/submit.sh --address``."""
    env: Mapping[str, str]
    """Environment for the command line and for drivers: this process's without its RAY_*, and the token."""
    auth_env: Mapping[str, str]
    """The part of ``env`` that is the token."""
    temp_dir: Path
    pid: int


@contextlib.contextmanager
def ray_cluster(*, num_cpus: int = 4, env: Mapping[str, str] | None = None) -> Iterator[RayCluster]:
    """``ray start --head`` in a process group of its own, with free ports and its own temporary directory.

    ``env`` is added to the environment of the cluster, and so to that of its jobs.
    """
    # Short: sockets lie below it, and their paths may have 107 bytes.
    temp_dir = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    auth_env, inherited = write_token(temp_dir), inherited_environment()
    cluster_env = {**inherited, **auth_env, **(env or {})}
    gcs, dashboard, agent, client = _free_ports(4)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"),
        *(f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"),
        *("--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={temp_dir / 'ray'}"),
        *(f"--num-cpus={num_cpus}", "--num-gpus=0", "--object-store-memory=100000000"),
    ]
    log_path = temp_dir / "start.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=cluster_env, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{dashboard}"
        _await_job_server(url, Path(auth_env["RAY_AUTH_TOKEN_PATH"]).read_text(), process, log_path)
        yield RayCluster(
            address=f"127.0.0.1:{gcs}",
            dashboard_url=url,
            env={**inherited, **auth_env},
            auth_env=auth_env,
            temp_dir=temp_dir,
            pid=process.pid,
        )
    finally:
        stop(process)
        shutil.rmtree(temp_dir, ignore_errors=True)


def write_token(temp_dir: Path) -> dict[str, str]:
    """Write a token for one cluster; the variables that name it."""
    token_path = temp_dir / "token"
    token_path.write_text(secrets.token_hex(32))
    token_path.chmod(0o600)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}


def inherited_environment() -> dict[str, str]:
    """This process's environment without RAY_*, and with this `python` first in PATH: a job's entry point calls it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    inherited["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}"
    return inherited


def _await_job_server(url: str, token: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
    request = urllib.request.Request(f"{url}/api/jobs/", headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no job server at {url}: {error}\n{log_path.read_text()}") from error
        time.sleep(0.2)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process group of ``process``, and no other process."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("", 0))
        return [sock.getsockname()[1] for sock in sockets]
