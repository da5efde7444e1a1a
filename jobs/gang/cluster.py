"""The Ray that a job runs on: somebody's cluster, or a local one that lives as long as the job."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError

import cmkernel
import jobs
from jobs.errors import InfrastructureError
from jobs.gang.address import RAY_ADDRESS, check_reachable, cluster_address
from jobs.gang.shape import DEFAULT_CPU_RANKS, Node, natural
from jobs.settings import ClusterSettings
from jobs.signals import keep_signals, raise_if_stopped, signals_held, stopped_by

__all__ = ["Cluster", "Node", "connect", "submission_id", "submitted_git_sha"]

logger = logging.getLogger(__name__)

# Ray's name of the variable that holds a submitted job's config, in its driver.
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_PACKAGES = (cmkernel, jobs)
# What makes Ray start one.
_LOCAL = "local"
# Rows and operands don't go through the object store; Ray's default takes a third of the machine's memory.
_OBJECT_STORE_BYTES = 100_000_000
# CPU ranks are for trying things out: a local Ray starts more of them than there are cores, but not any number.
_MAX_LOCAL_CPU_RANKS = 16
_SHUTDOWN_TIMEOUT_S = 20.0
_KEEP_INTERVAL_S = 0.005
_RAYLET_TIMEOUT_S = 5.0


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
        _shut_down()

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
    return _init(f"can't use the Ray at {address}", address=address, runtime_env=_code())


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
    with _without(RAY_ADDRESS, _JOB_CONFIG):
        return _init(
            "a local Ray didn't start",
            address=_LOCAL,
            num_cpus=max(os.cpu_count() or 1, ranks),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            # Also where the driver's working directory isn't the checkout.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(_import_path())}},
        )


def _init(what: str, *, address: str, **options: Any) -> Cluster:
    """``ray.init``, whose errors become the job's. Output of the ranks stays in their files, which errors name."""
    try:
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        finally:
            # Before anything else it has put a handler of its own in the place of the job's, which raises SystemExit.
            keep_signals()
        raise_if_stopped()
        is_local = address == _LOCAL
        return Cluster(ray.get_runtime_context().gcs_address if is_local else address, is_local=is_local)
    except BaseException as error:
        stopped = stopped_by(signal.SIGTERM) if _by_exit(error) else None
        _shut_down()
        _end_raylet()
        if stopped:
            raise stopped from error
        if isinstance(error, (RayError, RuntimeError, ValueError, OSError)):
            raise InfrastructureError(f"{what}: {' '.join(str(error).split())}") from error
        raise


def _by_exit(error: BaseException | None) -> bool:
    """Whether it is a SystemExit, or what Ray's C++ code made of one."""
    return isinstance(error, SystemExit) or (error is not None and _by_exit(error.__cause__ or error.__context__))


def _shut_down() -> None:
    """``ray.shutdown``, within a time limit."""
    # In a thread: with the cluster gone, Ray's calls may not come back.
    thread = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    deadline = time.monotonic() + _SHUTDOWN_TIMEOUT_S
    with signals_held():
        thread.start()
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(_KEEP_INTERVAL_S)
            # Ray's C++ code sets SIGTERM to what it does by default: it would kill the job, without a RESULT line.
            keep_signals()
    if thread.is_alive():
        logger.warning("ray.shutdown() didn't return within %g s", _SHUTDOWN_TIMEOUT_S)


def _end_raylet() -> None:
    """End that of a ``ray.init`` that was interrupted, of which ``ray.shutdown`` knows nothing."""
    # It would be killed with the job, and its agents, which it ends where it is asked to, would stay for a minute.
    deadline = time.monotonic() + _RAYLET_TIMEOUT_S
    with contextlib.suppress(OSError):
        children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()
        raylets = [int(pid) for pid in children if _is_raylet(pid)]
        for pid in raylets:
            os.kill(pid, signal.SIGTERM)
        while any(map(_is_raylet, raylets)) and time.monotonic() < deadline:
            time.sleep(_KEEP_INTERVAL_S)


def _is_raylet(pid: int | str) -> bool:
    """Whether it is one that runs: nobody has waited yet for one that has ended."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name == "raylet" and rest.split()[0] != "Z"


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
