"""The address of the Ray to use, and a test that it answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from jobs.config.choices import ClusterMode
from jobs.config.schema import ClusterSettings
from jobs.errors import InfrastructureError, UsageError
from jobs.gang.library_errors import fatal_error, is_version_mismatch, refuses_token

RAY_ADDRESS = "RAY_ADDRESS"
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")
_FROM_ELSEWHERE = "from any other host, use scripts/submit.sh --address http://HEAD:8265"


def cluster_address(settings: ClusterSettings) -> str | None:
    """``host:port`` of the cluster to connect to, or ``auto``; ``None`` starts a local Ray.

    Raises:
      UsageError: the address is missing, contradicts ``cluster.mode``, or isn't ``host:port`` or ``auto``.
    """
    if settings.mode is ClusterMode.local:
        if settings.address is not None:
            raise UsageError(f"cluster.address={settings.address} contradicts cluster.mode=local; use cluster=ray")
        return None
    option, address = "cluster.address", settings.address
    if address is None:
        option, address = RAY_ADDRESS, os.environ.get(RAY_ADDRESS)
    if not address or address == "local":
        if settings.mode is ClusterMode.auto:
            return None
        raise UsageError(f"cluster.mode=ray needs cluster.address=host:port, or {RAY_ADDRESS} in the environment")
    if "://" in address:
        raise UsageError(
            f"{option}={address} must be host:port of the cluster's head (port 6379 by default), and the job must run "
            f"on one of the cluster's nodes; "
            f"{_FROM_ELSEWHERE}"
        )
    if address != "auto" and not _HOST_PORT.fullmatch(address):
        raise UsageError(f"{option}={address} must be host:port, or auto for the Ray on this host")
    return address


def check_reachable(address: str, timeout_s: float) -> None:
    """Try the connection in a separate process.

    Raises:
      InfrastructureError: no Ray that this host can use answers within ``timeout_s`` seconds.
    """
    program = Path(__file__).with_name("rehearse.py")
    # -P keeps the program's folder off the import path: its modules would shadow others.
    command = [sys.executable, "-P", str(program), address, str(timeout_s)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        why = _refusal(error.stderr) or f"no answer within cluster.connect_timeout_s={timeout_s:g}"
    else:
        if done.returncode == 0:
            return
        why = _refusal(done.stderr) or fatal_error(done.stderr) or f"the test connection exits with {done.returncode}"
    if is_version_mismatch(why):
        raise InfrastructureError(
            f"can't use a Ray at {address}: {why}. Driver and nodes need the same Ray and Python: start the cluster "
            "from the locked environment (source .venv/bin/activate), or run the job in the cluster's environment"
        )
    raise InfrastructureError(
        f"can't use a Ray at {address}: {why}. It must be the address of the head's GCS (port 6379 by default), and "
        f"this host one of the cluster's nodes; {_FROM_ELSEWHERE}"
    )


def _refusal(stderr: bytes | None) -> str | None:
    if not refuses_token(stderr or b""):
        return None
    return (
        "it refuses this driver's token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH (default "
        "~/.ray/auth_token) to the cluster's token"
    )
