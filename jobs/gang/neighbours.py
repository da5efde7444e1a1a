"""The order of the ranks, their layout on hosts, and what must hold before they can communicate."""

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
from jobs.records.layout import Layout
from jobs.records.member import Member

logger = logging.getLogger(__name__)


def ring_order(place: Place) -> tuple[Any, ...]:
    """Sort key by host, then by GPU: neighbours in the ring are neighbours in the machine."""
    return natural(place.host), place.node_id, [natural(gpu) for gpu in place.gpu_ids]


def layout(members: Sequence[Member], settings: ClusterSettings) -> Layout:
    """Ranks on each host, with the bandwidths from ``settings``, or the defaults of the device kind.

    An NVLink domain counts as one host, even if it spans several machines.
    """
    names = ("link_gbytes_per_s", "nic_gbytes_per_s", "nics_per_host")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    links = dataclasses.replace(cost.default_links(members[0].device_kind), **given)
    hosts = itertools.groupby(members, key=lambda member: member.nvlink_domain)
    return Layout(tuple(len(list(ranks)) for _, ranks in hosts), links)


def refuse_unhealthy_gpus(places: Sequence[Place]) -> None:
    """Raise ``InfrastructureError`` if a rank's GPU is faulty or in use by another process; log warnings."""
    findings = [
        finding
        for rank, place in enumerate(places)
        if place.gpu is not None
        for finding in gpu_findings(f"rank {rank} on {place.host} (GPU {place.gpu.index})", place.gpu)
    ]
    refuse_failures(findings, logger)


def refuse_shared_gpus(members: Sequence[Member]) -> None:
    """Raise ``InfrastructureError`` if two ranks share a GPU: they would deadlock inside the kernel."""
    owners: dict[str, Member] = {}
    for member in members:
        if member.gpu_uuid is None:
            continue
        if (other := owners.setdefault(member.gpu_uuid, member)) is not member:
            raise InfrastructureError(
                f"{other} and {member} have one GPU, {member.gpu_uuid}: give each raylet of a host its own "
                "CUDA_VISIBLE_DEVICES"
            )
