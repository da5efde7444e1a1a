"""Whether the hosts of a cluster are fit for a job, as far as that is seen at once."""

from __future__ import annotations

import logging

from jobs.errors import InfrastructureError
from jobs.gang.cluster import Cluster
from jobs.gang.examiners import Examiners
from jobs.health.domain import nvlink_domain
from jobs.health.finding import refuse_failures
from jobs.health.host import MISSING, PACKAGES, host_facts
from jobs.health.host_findings import INSTALL, shm_findings, silence_findings, version_findings

logger = logging.getLogger(__name__)


def refuse_unfit_hosts(cluster: Cluster) -> dict[str, str]:
    """Look at what can be seen of the hosts at once, log the warnings; the versions that they all have.

    What matters only where ranks are, the gang looks at when it knows: their GPUs and the names of their hosts.

    Raises:
      InfrastructureError: a host has other versions than the driver, or doesn't answer; it is named with what mends it.
    """
    driver = host_facts(cluster.nodes[0].ip, with_gpus=False)
    versions = driver_versions(driver.versions)
    if cluster.is_local:
        # Its workers run in the driver's own Python.
        refuse_failures(shm_findings([driver]), logger)
        return versions
    nodes = [node for node in cluster.nodes if node.num_gpus or not cluster.on_gpus]
    with Examiners(nodes) as examiners:
        hosts, silent = examiners.facts(with_gpus=False)
    findings = [
        *silence_findings([(node.host, why) for node, why in silent]),
        *version_findings(versions, hosts),
        *shm_findings(hosts),
    ]
    refuse_failures(findings, logger)
    return versions


def nvlink_domains(cluster: Cluster) -> dict[str, str]:
    """Of each Ray node with a GPU, by its id; on CPUs of every one, where a host is a domain.

    Raises:
      InfrastructureError: a host doesn't answer.
    """
    if not cluster.on_gpus:
        return {node.node_id: node.host for node in cluster.nodes}
    nodes = [node for node in cluster.nodes if node.num_gpus]
    with Examiners(nodes) as examiners:
        hosts, silent = examiners.facts(with_gpus=True)
    refuse_failures(silence_findings([(node.host, why) for node, why in silent]), logger)
    return {
        node.node_id: nvlink_domain(host=facts.host, boot_id=facts.boot_id, gpu=facts.gpus[0] if facts.gpus else None)
        for node, facts in zip(nodes, hosts, strict=True)
    }


def driver_versions(versions: dict[str, str]) -> dict[str, str]:
    """Of Python and of the packages that matter; ``InfrastructureError`` where the driver itself lacks one."""
    found = {name: versions[name] for name in ("python", *PACKAGES)}
    if missing := [name for name, version in found.items() if version == MISSING]:
        raise InfrastructureError(f"the driver's Python lacks {', '.join(missing)}; {INSTALL}")
    return found
