"""NVLink domains: sets of GPUs that reach each other's memory over NVLink."""

from __future__ import annotations

from jobs.health.facts import GpuFacts

_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


def nvlink_domain(*, host: str, boot_id: str, gpu: GpuFacts | None) -> str:
    """Name of a rank's domain; two ranks have the same name exactly if they share a domain.

    For a GPU registered with a fabric of several hosts, the fabric's cluster and clique. For any other GPU, the boot id
    of its machine, as several Ray nodes or containers may share one. For a CPU rank, its host.
    """
    if gpu is None:
        return host
    fabric = gpu.fabric
    if fabric and fabric.state == "completed" and fabric.error is None and fabric.cluster_uuid != _NO_CLUSTER:
        return f"{fabric.cluster_uuid}/{fabric.clique_id}"
    return boot_id or host
