"""The names of the ranks' hosts: gloo announces to its peers the address that a host's own name resolves to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jobs.gang.examiners import Examiners
from jobs.gang.messages import Place
from jobs.gang.shape import Node
from jobs.health.finding import Verdict, refuse_failures
from jobs.health.host_findings import announces_another, name_findings

logger = logging.getLogger(__name__)


def refuse_unusable_names(places: Sequence[Place], nodes: Sequence[Node], *, on_gpus: bool) -> None:
    """Raise ``InfrastructureError`` if the ranks can't use the address that a host's own name resolves to.

    NCCL announces other addresses. With GPUs it is enough that gloo, which jax starts there too, can bind the address.
    """
    findings = name_findings(places, on_gpus=on_gpus)
    refuse_failures([finding for finding in findings if finding.verdict is Verdict.fail], logger)
    if on_gpus or len({place.ip for place in places}) == 1 or not any(map(announces_another, places)):
        return
    used = {place.node_id for place in places}
    with Examiners([node for node in nodes if node.node_id in used]) as examiners:
        examiners.facts(with_gpus=False)
        refuse_failures(examiners.unreachable_names(), logger)
