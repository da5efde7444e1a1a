"""Islands: a cluster cut into gangs of one size, none of which leaves its NVLink domain; plain data, no Ray here."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jobs.config.schema import ClusterSettings
from jobs.errors import NoCapacity, UsageError
from jobs.gang.shape import DEFAULT_CPU_RANKS, Node, Shape, describe


@dataclasses.dataclass(frozen=True)
class Share:
    """What one Ray node gives to an island."""

    node_id: str
    host: str
    num_ranks: int


@dataclasses.dataclass(frozen=True)
class Island:
    """Where one of the gangs runs, from the job's start to its end."""

    name: str
    """By its hosts, and its number where they hold several: ``h1``, ``h1..h4``, ``h1/0``."""
    shares: tuple[Share, ...]
    on_gpus: bool
    planned: frozenset[str] = frozenset()
    """Ray nodes of all islands."""

    @property
    def num_ranks(self) -> int:
        """Ranks over all nodes."""
        return sum(share.num_ranks for share in self.shares)

    @property
    def hosts(self) -> frozenset[str]:
        """Where it runs."""
        return frozenset(share.host for share in self.shares)

    def shape(self, nodes: Sequence[Node]) -> Shape:
        """Its bundles on the ``nodes`` that are there now.

        For a node that is gone another one of the same host stands in, if it has joined since: a raylet started anew.

        Raises:
          NoCapacity: there is none.
        """
        there = {node.node_id for node in nodes}
        found: list[str] = []
        for share in self.shares:
            heirs = (n.node_id for n in nodes if n.host == share.host and n.node_id not in {*self.planned, *found})
            node_id = share.node_id if share.node_id in there else next(heirs, None)
            if node_id is None:
                raise NoCapacity(f"island {self.name} needs its host {share.host}; there is {describe(nodes)}")
            found.append(node_id)
        return Shape(tuple(share.num_ranks for share in self.shares), "PACK", self.on_gpus, tuple(found))


def cut(nodes: Sequence[Node], domains: Mapping[str, str], settings: ClusterSettings) -> tuple[Island, ...]:
    """All islands of a cluster: of ``cluster.num_ranks`` ranks each, as many as each domain has room for.

    Without ``num_ranks``, one island a domain: all its GPUs, or on CPUs all that Ray counts there, 4 at most. GPUs must
    not be left over; CPUs may.

    Args:
      nodes: of the cluster.
      domains: name of the NVLink domain of each, by node id; on CPUs, of the host.
      settings: of the job.

    Raises:
      UsageError: islands would be of different sizes, or GPUs be left over.
      NoCapacity: no domain has room for one.
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
    told = ", ".join(f"{room} on {named[domain]}" for domain, room in rooms.items())
    if len(set(sizes.values())) > 1:
        raise UsageError(
            f"cluster.world=per_island needs islands of one size, and the {what} are {told}: name a cluster.num_ranks "
            "that divides them all"
        )
    if on_gpus and any(room % sizes[domain] for domain, room in rooms.items()):
        raise UsageError(f"cluster.num_ranks={settings.num_ranks} must divide the {what} of every island: {told}")
    islands = [
        (f"{named[domain]}/{number}" if rooms[domain] // sizes[domain] > 1 else named[domain], shares)
        for domain in by_domain
        for number, shares in enumerate(_islands(slots[domain], sizes[domain]))
    ]
    if not islands:
        raise NoCapacity(f"cluster.num_ranks={settings.num_ranks}, but no island has that many {what}: {told}")
    planned = frozenset(node.node_id for members in by_domain.values() for node in members)
    count = Counter(name for name, _ in islands)
    # Containers of two machines may have one name.
    return tuple(
        Island(name if count[name] == 1 else f"{name}#{number}", shares, on_gpus, planned)
        for number, (name, shares) in enumerate(islands)
    )


def _slots(nodes: Sequence[Node], on_gpus: bool, settings: ClusterSettings) -> list[Node]:
    """The node of each rank that a domain has room for."""
    slots = [node for node in nodes for _ in range(node.num_gpus if on_gpus else node.num_cpus)]
    # CPU ranks are for trying things out.
    return slots if on_gpus or settings.num_ranks else slots[:DEFAULT_CPU_RANKS]


def _hosts(nodes: Sequence[Node]) -> str:
    hosts = list(dict.fromkeys(node.host for node in nodes))
    return hosts[0] if len(hosts) == 1 else f"{hosts[0]}..{hosts[-1]}"


def _islands(slots: Sequence[Node], size: int) -> Iterator[tuple[Share, ...]]:
    """Those of one domain, whose nodes are filled one after the other."""
    for first in range(0, len(slots) - size + 1, size):
        counts = Counter(slots[first : first + size])
        yield tuple(Share(node.node_id, node.host, count) for node, count in counts.items())
