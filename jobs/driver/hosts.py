"""Quick checks that a cluster's hosts are fit for a job."""

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
    """Check the hosts' versions and shared memory, log warnings, and return the versions that all hosts have.

    Checks that depend on where ranks run (their GPUs, their hosts' names) are left to the gang.

    Raises:
      InfrastructureError: a host's versions differ from the driver's, or it doesn't answer; the error names the host
        and says what to do.
    """
    driver = host_facts(cluster.nodes[0].ip, with_gpus=False)
    versions = driver_versions(driver.versions)
    if cluster.is_local:
        # Workers of a local Ray run in the driver's own Python.
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
    """NVLink domain of each Ray node with a GPU, by node id; on CPUs the host of every node.

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
    """Versions of Python and of the packages that a job needs.

    Raises:
      InfrastructureError: the driver's Python lacks a package.
    """
    needed = {name: versions[name] for name in ("python", *PACKAGES)}
    if missing := [name for name, version in needed.items() if version == MISSING]:
        raise InfrastructureError(f"the driver's Python lacks {', '.join(missing)}; {INSTALL}")
    return needed
