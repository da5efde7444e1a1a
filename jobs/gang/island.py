"""Islands: a cluster cut into gangs of one size, each inside one NVLink domain. Plain data without Ray."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jobs.config.schema import ClusterSettings
from jobs.errors import NoCapacity, UsageError
from jobs.gang.shape import DEFAULT_CPU_RANKS, Node, Shape, describe


@dataclasses.dataclass(frozen=True)
class Share:
    """Ranks of an island on one Ray node."""

    node_id: str
    host: str
    num_ranks: int


@dataclasses.dataclass(frozen=True)
class Island:
    """The nodes of one gang, from the job's start to its end."""

    name: str
    """Its hosts, and a number if they hold several islands: ``h1``, ``h1..h4``, ``h1/0``."""
    shares: tuple[Share, ...]
    on_gpus: bool
    planned: frozenset[str] = frozenset()
    """Ids of the Ray nodes of all islands."""

    @property
    def num_ranks(self) -> int:
        """Ranks over all nodes."""
        return sum(share.num_ranks for share in self.shares)

    @property
    def hosts(self) -> frozenset[str]:
        """Names of its hosts."""
        return frozenset(share.host for share in self.shares)

    def shape(self, nodes: Sequence[Node]) -> Shape:
        """Bundles on the current ``nodes``.

        A node that is gone is replaced by one that has joined on the same host since: a restarted raylet.

        Raises:
          NoCapacity: a node is gone and has no replacement.
        """
        present = {node.node_id for node in nodes}
        chosen: list[str] = []
        for share in self.shares:
            heirs = (n.node_id for n in nodes if n.host == share.host and n.node_id not in {*self.planned, *chosen})
            node_id = share.node_id if share.node_id in present else next(heirs, None)
            if node_id is None:
                raise NoCapacity(f"island {self.name} needs its host {share.host}; the cluster has {describe(nodes)}")
            chosen.append(node_id)
        return Shape(tuple(share.num_ranks for share in self.shares), "PACK", self.on_gpus, tuple(chosen))


def cut(nodes: Sequence[Node], domains: Mapping[str, str], settings: ClusterSettings) -> tuple[Island, ...]:
    """Cut a cluster into islands of ``cluster.num_ranks`` ranks, as many as fit into each domain.

    Without ``num_ranks`` each domain is one island: all its GPUs, or at most 4 of the CPUs that Ray counts there. CPUs
    may be left over, GPUs must not.

    Args:
      nodes: nodes of the cluster.
      domains: NVLink domain by node id; on CPUs, the host.
      settings: cluster settings of the job.

    Raises:
      UsageError: islands would differ in size, or GPUs would be left over.
      NoCapacity: no domain has room for an island.
    """
    on_gpus = any(node.num_gpus for node in nodes)
    by_domain: dict[str, list[Node]] = {}
    for node in nodes:
        if node.num_gpus if on_gpus else node.num_cpus:
            by_domain.setdefault(domains[node.node_id], []).append(node)
    slots = {domain: _slots(members, on_gpus, settings) for domain, members in by_domain.items()}
    rooms = {domain: len(nodes) for domain, nodes in slots.items()}
    sizes = {domain: settings.num_ranks or room for domain, room in rooms.items()}
    what, named = "GPUs" if on_gpus else "CPUs", {domain: _hosts(members) for domain, members in by_domain.items()}
    listing = ", ".join(f"{room} on {named[domain]}" for domain, room in rooms.items())
    if len(set(sizes.values())) > 1:
        raise UsageError(
            f"cluster.world=per_island needs islands of one size, but the {what} are {listing}: set "
            "cluster.num_ranks to a divisor of all of them"
        )
    if on_gpus and any(room % sizes[domain] for domain, room in rooms.items()):
        raise UsageError(f"cluster.num_ranks={settings.num_ranks} must divide the {what} of every domain: {listing}")
    islands = [
        (f"{named[domain]}/{number}" if rooms[domain] // sizes[domain] > 1 else named[domain], shares)
        for domain in by_domain
        for number, shares in enumerate(_islands(slots[domain], sizes[domain]))
    ]
    if not islands:
        raise NoCapacity(f"cluster.num_ranks={settings.num_ranks}, but no domain has that many {what}: {listing}")
    planned = frozenset(node.node_id for members in by_domain.values() for node in members)
    count = Counter(name for name, _ in islands)
    # Containers on two machines may share a name.
    return tuple(
        Island(name if count[name] == 1 else f"{name}#{number}", shares, on_gpus, planned)
        for number, (name, shares) in enumerate(islands)
    )


def _slots(nodes: Sequence[Node], on_gpus: bool, settings: ClusterSettings) -> list[Node]:
    """Node of each rank that fits into a domain."""
    slots = [node for node in nodes for _ in range(node.num_gpus if on_gpus else node.num_cpus)]
    # CPU ranks are for trying things out.
    return slots if on_gpus or settings.num_ranks else slots[:DEFAULT_CPU_RANKS]


def _hosts(nodes: Sequence[Node]) -> str:
    hosts = list(dict.fromkeys(node.host for node in nodes))
    return hosts[0] if len(hosts) == 1 else f"{hosts[0]}..{hosts[-1]}"


def _islands(slots: Sequence[Node], size: int) -> Iterator[tuple[Share, ...]]:
    """Islands of one domain; its nodes are filled one after the other."""
    for first in range(0, len(slots) - size + 1, size):
        counts = Counter(slots[first : first + size])
        yield tuple(Share(node.node_id, node.host, count) for node, count in counts.items())
