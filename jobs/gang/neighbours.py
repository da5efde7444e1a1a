"""The order of the ranks, how that lies on hosts, and what must hold between them before they can talk."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from cmkernel import cost
from jobs.config.schema import ClusterSettings
from jobs.errors import InfrastructureError
from jobs.gang.messages import Place
from jobs.gang.shape import natural
from jobs.health.finding import refuse_failures
from jobs.health.gpu_findings import gpu_findings
from jobs.health.host_findings import UNREACHABLE, is_loopback, map_name
from jobs.records.layout import Layout
from jobs.records.member import Member

logger = logging.getLogger(__name__)


def ring_order(place: Place) -> tuple[Any, ...]:
    """Sort key that makes neighbours in the ring neighbours in the machine: by host, then by GPU."""
    return natural(place.host), place.node_id, [natural(gpu) for gpu in place.gpu_ids]


def layout(members: Sequence[Member], settings: ClusterSettings) -> Layout:
    """How the ranks lie on hosts, with the bandwidths that ``settings`` name or that such devices let assume.

    GPUs that NVLink joins count as one host, whatever they are in.
    """
    names = ("link_gbytes_per_s", "nic_gbytes_per_s", "nics_per_host")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    links = dataclasses.replace(cost.default_links(members[0].device_kind), **given)
    hosts = itertools.groupby(members, key=lambda member: member.nvlink_domain)
    return Layout(tuple(len(list(ranks)) for _, ranks in hosts), links)


def refuse_loopback(places: Sequence[Place]) -> None:
    """Raise ``InfrastructureError`` where a host's own name resolves to an address that other hosts can't reach.

    Gloo tells its peers that address, whatever Ray calls the host.
    """
    if len({place.ip for place in places}) == 1:
        return
    for place in places:
        if is_loopback(place.resolved_ip):
            raise InfrastructureError(
                f"host {place.host}: its name resolves to {place.resolved_ip}, {UNREACHABLE}; {map_name(place.ip)}"
            )


def refuse_unhealthy_gpus(places: Sequence[Place]) -> None:
    """Raise ``InfrastructureError`` where a rank's GPU can't be trusted, or isn't its own; warnings are logged."""
    found = [
        finding
        for rank, place in enumerate(places)
        if place.gpu is not None
        for finding in gpu_findings(f"rank {rank} on {place.host} (GPU {place.gpu.index})", place.gpu)
    ]
    refuse_failures(found, logger)


def refuse_shared_gpus(members: Sequence[Member]) -> None:
    """Raise ``InfrastructureError`` where two ranks have one GPU: they would wait for each other inside the kernel."""
    owners: dict[str, Member] = {}
    for member in members:
        if member.gpu_uuid is None:
            continue
        if (other := owners.setdefault(member.gpu_uuid, member)) is not member:
            raise InfrastructureError(
                f"{other} and {member} have one GPU, {member.gpu_uuid}: several raylets of a host each need "
                "CUDA_VISIBLE_DEVICES of their own"
            )
