"""The Ray that a job runs on: an existing cluster, or a local one that lives as long as the job."""

from __future__ import annotations

import os
from typing import Any

import ray

from jobs.config.schema import ClusterSettings
from jobs.gang.address import RAY_ADDRESS, check_reachable, cluster_address
from jobs.gang.closing import Closing
from jobs.gang.local_ray import starting
from jobs.gang.ray_session import connecting, init, shut_down
from jobs.gang.shape import Node, natural
from jobs.gang.submission import code, submission_id
from jobs.gang.temp_dir import TempDir

__all__ = ["Cluster", "Node", "connect"]


class Cluster(Closing):
    """A connected Ray; a context manager that disconnects, and ends a local Ray."""

    def __init__(self, address: str, temp_dir: TempDir | None = None) -> None:
        self.address = address
        self.is_local = temp_dir is not None
        self._temp_dir = temp_dir
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

    def keep_logs(self) -> None:
        """Leave the logs of a local Ray where they are, because an error names one."""
        if self._temp_dir:
            self._temp_dir.keeps = True

    def close(self) -> None:
        """Disconnect, and end a local Ray; takes some 20 s at most and holds signals back."""
        shut_down()
        if self._temp_dir:
            self._temp_dir.remove()


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
        with starting(settings) as temp_dir:
            return Cluster(ray.get_runtime_context().gcs_address, temp_dir)
    # A submitted job's driver was started by a node of that cluster.
    if not (submission_id() and address == os.environ.get(RAY_ADDRESS)):
        check_reachable(address, settings.connect_timeout_s)
    with connecting(f"can't use the Ray at {address}"):
        init(address, runtime_env=code())
        return Cluster(address)


def _node(entry: dict[str, Any]) -> Node:
    resources = entry["Resources"]
    prefix = "accelerator_type:"
    return Node(
        node_id=entry["NodeID"],
        host=entry["NodeManagerHostname"],
        ip=entry["NodeManagerAddress"],
        num_cpus=int(resources.get("CPU", 0)),
        num_gpus=int(resources.get("GPU", 0)),
        memory_bytes=int(resources["memory"]) if "memory" in resources else None,
        accelerator=next((name.removeprefix(prefix) for name in resources if name.startswith(prefix)), None),
    )
