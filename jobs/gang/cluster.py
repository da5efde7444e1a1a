"""The Ray that a job runs on: an existing cluster, or a local one that lives as long as the job."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

import cmkernel
import jobs
from jobs.config.schema import ClusterSettings
from jobs.gang.address import RAY_ADDRESS, check_reachable, cluster_address
from jobs.gang.closing import Closing
from jobs.gang.process import user_variables
from jobs.gang.ray_session import connecting, init, shut_down
from jobs.gang.shape import DEFAULT_CPU_RANKS, Node, natural

__all__ = ["Cluster", "Node", "connect", "submission_id", "submitted_git_sha"]

# Ray's variable with a submitted job's config, set in its driver.
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_PACKAGES = (cmkernel, jobs)

logger = logging.getLogger(__name__)
# Rows and operands bypass the object store; Ray's default would take a third of the machine's memory.
_OBJECT_STORE_BYTES = 100_000_000
# CPU ranks are for trying things out: a local Ray may start more of them than there are cores, up to this number.
_MAX_LOCAL_CPU_RANKS = 16


class Cluster(Closing):
    """A connected Ray; a context manager that disconnects, and ends a local Ray."""

    def __init__(self, address: str, *, is_local: bool) -> None:
        self.address = address
        self.is_local = is_local
        self.nodes: tuple[Node, ...] = ()
        """Nodes alive at the last ``refresh``."""
        self.refresh()

    def refresh(self) -> None:
        """Ask Ray for the live nodes; Ray takes a minute to notice that one is cut off."""
        nodes = (_node(entry) for entry in ray.nodes() if entry["Alive"])
        self.nodes = tuple(sorted(nodes, key=lambda node: (natural(node.host), node.node_id)))

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes, free or not."""
        return sum(node.num_gpus for node in self.nodes)

    @property
    def on_gpus(self) -> bool:
        """Ranks run on GPUs: always, if the cluster has any."""
        return self.num_gpus > 0

    def close(self) -> None:
        """Disconnect, and end a local Ray; takes 20 s at most and holds signals back."""
        shut_down()


def connect(settings: ClusterSettings) -> Cluster:
    """Connect to the cluster that ``settings`` name.

    Raises:
      UsageError: ``cluster.address`` is missing or malformed.
      InfrastructureError: no Ray answers within ``cluster.connect_timeout_s``, it refuses the token, its version
        differs, or a local Ray doesn't start.
      JobStopped: a signal arrived meanwhile.
    """
    address = cluster_address(settings)
    if address is None:
        return _start_local(settings)
    # A submitted job's driver was started by a node of that cluster.
    if not (submission_id() and address == os.environ.get(RAY_ADDRESS)):
        check_reachable(address, settings.connect_timeout_s)
    with connecting(f"can't use the Ray at {address}"):
        init(address, runtime_env=_code())
        return Cluster(address, is_local=False)


def submission_id() -> str | None:
    """Ray's id of the submitted job that this driver belongs to; ``None`` without one."""
    return _metadata("job_submission_id")


def submitted_git_sha() -> str | None:
    """Commit that ``scripts/submit.sh`` uploaded; ``None`` if the job was submitted another way."""
    return _metadata("git_sha") or None


def _metadata(key: str) -> str | None:
    value = _job_config().get("metadata", {}).get(key)
    return None if value is None else str(value)


def _job_config() -> dict[str, Any]:
    return dict(json.loads(os.environ.get(_JOB_CONFIG, "{}")))


def _start_local(settings: ClusterSettings) -> Cluster:
    ranks = min(settings.num_ranks or DEFAULT_CPU_RANKS, _MAX_LOCAL_CPU_RANKS)
    # Without a token Ray writes one for all clusters into the user's home; a variable is enough for this cluster.
    known = any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if not known and not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if ignored := user_variables():
        logger.warning("%s: set, but ranks run without it", ", ".join(ignored))
    # In a submitted job these name the cluster, and files that only the cluster has.
    with _without(RAY_ADDRESS, _JOB_CONFIG), connecting("a local Ray didn't start"):
        init(
            "local",
            num_cpus=max(os.cpu_count() or 1, ranks),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            # The driver's working directory may be outside the checkout.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(_import_path())}},
        )
        return Cluster(ray.get_runtime_context().gcs_address, is_local=True)


def _has_token() -> bool:
    try:
        return (Path.home() / ".ray" / "auth_token").exists()
    except (RuntimeError, OSError):  # no home, or one that can't be read
        return False


def _code() -> dict[str, Any] | None:
    """Runtime environment that uploads this project's code; ``None`` if the job's working directory holds it."""
    if _job_config().get("runtime_env", {}).get("working_dir"):
        return None
    return {"py_modules": [str(_folder(package)) for package in _PACKAGES], "excludes": ["__pycache__"]}


def _folder(package: Any) -> Path:
    return Path(package.__file__).resolve().parent


def _import_path() -> list[str]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*dict.fromkeys([*(str(_folder(package).parent) for package in _PACKAGES), *filter(None, inherited)])]


def _node(entry: dict[str, Any]) -> Node:
    resources = entry["Resources"]
    prefix = "accelerator_type:"
    return Node(
        node_id=entry["NodeID"],
        host=entry["NodeManagerHostname"],
        ip=entry["NodeManagerAddress"],
        num_cpus=int(resources.get("CPU", 0)),
        num_gpus=int(resources.get("GPU", 0)),
        accelerator=next((name.removeprefix(prefix) for name in resources if name.startswith(prefix)), None),
    )


@contextlib.contextmanager
def _without(*names: str) -> Iterator[None]:
    saved = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)
