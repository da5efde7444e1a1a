"""Distribution of ranks over hosts, as plain data without Ray."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from jobs.config.schema import ClusterSettings
from jobs.errors import NoCapacity, UsageError

DEFAULT_CPU_RANKS = 4


@dataclasses.dataclass(frozen=True)
class Node:
    """One Ray node: a host, or one of several raylets on a host."""

    node_id: str
    host: str
    ip: str
    num_cpus: int
    num_gpus: int
    accelerator: str | None
    """Ray's name of the GPU model (``H200``), from the node's ``accelerator_type:`` resource."""
    memory_bytes: int | None = None
    """Memory that was free when Ray started there; ``None`` if Ray doesn't say."""

    def __str__(self) -> str:
        gpus = f"{self.num_gpus} GPUs ({self.accelerator})" if self.accelerator else f"{self.num_gpus} GPUs"
        return f"{self.host} ({self.ip}): {gpus}, {self.num_cpus} CPUs"


@dataclasses.dataclass(frozen=True)
class Shape:
    """Bundles to ask Ray for: ``ranks_per_bundle[i]`` ranks share bundle ``i``, which lies on one node."""

    ranks_per_bundle: tuple[int, ...]
    strategy: str
    """Strategy of Ray's placement group."""
    on_gpus: bool
    node_ids: tuple[str, ...] = ()
    """Node of each bundle; empty lets Ray choose."""

    @property
    def num_ranks(self) -> int:
        """Ranks over all bundles."""
        return sum(self.ranks_per_bundle)

    @property
    def resource(self) -> str:
        """Ray resource that each rank takes one unit of."""
        return "GPU" if self.on_gpus else "CPU"

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Bundles in Ray's form. GPU ranks reserve no CPU, so that they start even if other jobs hold all CPUs."""
        return [{self.resource: float(count)} for count in self.ranks_per_bundle]

    def __str__(self) -> str:
        per_bundle = self.ranks_per_bundle[0]
        if self.strategy == "STRICT_SPREAD":
            return f"{per_bundle} {self.resource}s on each of {len(self.ranks_per_bundle)} hosts"
        if self.strategy == "STRICT_PACK":
            return f"{self.num_ranks} {self.resource}s on one host"
        return f"{self.num_ranks} {self.resource}s on any hosts"


def wanted_ranks(nodes: Sequence[Node], settings: ClusterSettings) -> int:
    """Ranks to start: ``cluster.num_ranks``, else one per usable GPU, else 4 CPU ranks or as many as there are CPUs.

    Raises:
      NoCapacity: no host has ``cluster.gpus_per_host`` GPUs.
    """
    if settings.num_ranks is not None:
        return settings.num_ranks
    per_host = settings.gpus_per_host
    if per_host is None:
        num_cpus = sum(node.num_cpus for node in nodes)
        return sum(node.num_gpus for node in nodes) or min(num_cpus or DEFAULT_CPU_RANKS, DEFAULT_CPU_RANKS)
    num_hosts = sum(node.num_gpus >= per_host for node in nodes)
    if not num_hosts:
        raise NoCapacity(f"cluster.gpus_per_host={per_host}, but no host has that many: {describe(nodes)}")
    return per_host * num_hosts


def plan(nodes: Sequence[Node], settings: ClusterSettings, num_ranks: int) -> Shape:
    """Bundles for ``num_ranks`` ranks: equal shares on as few hosts as possible, if the GPUs allow it.

    Raises:
      UsageError: ``num_ranks`` is no multiple of ``cluster.gpus_per_host``.
      NoCapacity: the cluster is too small, even if idle.
    """
    gpus = [node.num_gpus for node in nodes if node.num_gpus]
    if not gpus:
        if settings.gpus_per_host is not None:
            raise NoCapacity(f"cluster.gpus_per_host={settings.gpus_per_host}, but no GPU: {describe(nodes)}")
        shape = Shape((1,) * num_ranks, "PACK", on_gpus=False)
        return _fitting(shape, sum(node.num_cpus for node in nodes), nodes)
    if per_host := settings.gpus_per_host:
        if num_ranks % per_host:
            raise UsageError(f"cluster.num_ranks={num_ranks} must be a multiple of cluster.gpus_per_host={per_host}")
        shape = Shape((per_host,) * (num_ranks // per_host), "STRICT_SPREAD", on_gpus=True)
        return _fitting(shape, per_host * sum(count >= per_host for count in gpus), nodes)
    if num_ranks <= max(gpus):
        return Shape((num_ranks,), "STRICT_PACK", on_gpus=True)
    if len(set(gpus)) == 1 and num_ranks % gpus[0] == 0 and num_ranks <= sum(gpus):
        return Shape((gpus[0],) * (num_ranks // gpus[0]), "STRICT_SPREAD", on_gpus=True)
    return _fitting(Shape((1,) * num_ranks, "PACK", on_gpus=True), sum(gpus), nodes)


def _fitting(shape: Shape, available: int, nodes: Sequence[Node]) -> Shape:
    if shape.num_ranks > available:
        instead = f"; set cluster.num_ranks={available}" if available else ""
        raise NoCapacity(
            f"cluster.num_ranks={shape.num_ranks} needs {shape}, but there is room for {available}: "
            f"{describe(nodes)}{instead}"
        )
    return shape


def describe(nodes: Sequence[Node]) -> str:
    """Hosts and their resources in one line, at most 8 by name."""
    shown = [str(node) for node in nodes[:8]]
    rest = f" and {len(nodes) - len(shown)} more hosts" if len(nodes) > len(shown) else ""
    return ("; ".join(shown) or "no hosts") + rest


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that orders numbers in names by value: host 2 before host 10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
