"""The Ray that a job runs on: somebody's cluster, or a local one that lives as long as the job."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import ray

import cmkernel
import jobs
from jobs.config.schema import ClusterSettings
from jobs.gang.address import RAY_ADDRESS, check_reachable, cluster_address
from jobs.gang.ray_session import connecting, init, shut_down
from jobs.gang.shape import DEFAULT_CPU_RANKS, Node, natural

__all__ = ["Cluster", "Node", "connect", "submission_id", "submitted_git_sha"]

# Ray's name of the variable that holds a submitted job's config, in its driver.
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_PACKAGES = (cmkernel, jobs)
# Rows and operands don't go through the object store; Ray's default takes a third of the machine's memory.
_OBJECT_STORE_BYTES = 100_000_000
# CPU ranks are for trying things out: a local Ray starts more of them than there are cores, but not any number.
_MAX_LOCAL_CPU_RANKS = 16


class Cluster:
    """A connected Ray; a context manager that disconnects, and ends it where it is local."""

    def __init__(self, address: str, *, is_local: bool) -> None:
        self.address = address
        self.is_local = is_local
        self.nodes: tuple[Node, ...] = ()
        """As they were at the last ``refresh``."""
        self.refresh()

    def refresh(self) -> None:
        """Ask Ray for the nodes that are alive; it takes a minute to notice that one is cut off."""
        nodes = (_node(entry) for entry in ray.nodes() if entry["Alive"])
        self.nodes = tuple(sorted(nodes, key=lambda node: (natural(node.host), node.node_id)))

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes, free or not."""
        return sum(node.num_gpus for node in self.nodes)

    @property
    def on_gpus(self) -> bool:
        """Whether ranks run on GPUs: where there is one, on nothing else."""
        return self.num_gpus > 0

    def close(self) -> None:
        """Disconnect; ends a local Ray. Takes 20 s at most, and signals wait for it."""
        shut_down()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(settings: ClusterSettings) -> Cluster:
    """The cluster that ``settings`` name, connected.

    Raises:
      UsageError: ``cluster.address`` is missing, or of a form that a driver can't use.
      InfrastructureError: no Ray answers there within ``cluster.connect_timeout_s``, it refuses the token, its version
        differs, or a local one doesn't start.
      JobStopped: a signal came meanwhile.
    """
    address = cluster_address(settings)
    if address is None:
        return _start_local(settings)
    # A job's driver was started by the node beside it.
    if not (submission_id() and address == os.environ.get(RAY_ADDRESS)):
        check_reachable(address, settings.connect_timeout_s)
    with connecting(f"can't use the Ray at {address}"):
        init(address, runtime_env=_code())
        return Cluster(address, is_local=False)


def submission_id() -> str | None:
    """Ray's id of the submitted job whose driver this is, or ``None``."""
    return _metadata("job_submission_id")


def submitted_git_sha() -> str | None:
    """The commit that ``scripts/submit.sh`` uploaded, or ``None`` where another command submitted the job."""
    return _metadata("git_sha") or None


def _metadata(key: str) -> str | None:
    found = _job_config().get("metadata", {}).get(key)
    return None if found is None else str(found)


def _job_config() -> dict[str, Any]:
    return dict(json.loads(os.environ.get(_JOB_CONFIG, "{}")))


def _start_local(settings: ClusterSettings) -> Cluster:
    ranks = min(settings.num_ranks or DEFAULT_CPU_RANKS, _MAX_LOCAL_CPU_RANKS)
    # Where Ray finds no token it writes one into the user's home, for all clusters; this one needs but a variable.
    known = any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if not known and not (Path.home() / ".ray" / "auth_token").exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Inside a submitted job these name the cluster, and files that only the cluster has.
    with _without(RAY_ADDRESS, _JOB_CONFIG), connecting("a local Ray didn't start"):
        init(
            "local",
            num_cpus=max(os.cpu_count() or 1, ranks),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            # Also where the driver's working directory isn't the checkout.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(_import_path())}},
        )
        return Cluster(ray.get_runtime_context().gcs_address, is_local=True)


def _code() -> dict[str, Any] | None:
    """What takes this project's code to the nodes; ``None`` where the job's working directory does."""
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
