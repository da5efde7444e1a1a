"""Facts of the hosts and GPUs of a healthy 2x H200; tests replace them one by one."""

from jobs.health.facts import Fabric, GpuFacts, HostFacts, NvLinks, RemappedRows

NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
VERSIONS = {
    "python": "3.12.3",
    "jax": "0.11.2",
    "jaxlib": "0.11.2",
    "ray": "2.60.0",
    "numpy": "2.5.2",
    "jax-cuda13-plugin": "0.11.2",
    "nvidia-nccl-cu13": "2.30.7",
}


def gpu(index=0, **changes):
    healthy = {
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "memory_total_bytes": 141 * 2**30,
        "memory_used_bytes": 4 * 2**20,
        "processes": (),
        "ecc_enabled": True,
        "ecc_volatile": 0,
        "ecc_aggregate": 0,
        "remapped_rows": RemappedRows(correctable=0, uncorrectable=0, pending=False, failed=False),
        "nvlinks": NvLinks(num_links=18, num_active=18, errors={"replay": 0, "recovery": 0}),
        "fabric": fabric(),
        "peers": {1 - index: "ok"},
        "is_mig": False,
    }
    return GpuFacts(index=index, **{**healthy, **changes})


def fabric(**changes):
    healthy = {"state": "completed", "error": None, "cluster_uuid": NO_CLUSTER, "clique_id": 0, "is_degraded": False}
    return Fabric(**{**healthy, **changes})


def host(name="gpu-1", **changes):
    number = name.rpartition("-")[2]
    healthy = {
        "ip": f"10.0.0.{number}",
        "resolved_ip": f"10.0.0.{number}",
        "boot_id": f"boot-{number}",
        "versions": VERSIONS,
        "shm_bytes": 64 * 2**30,
        "memlock_bytes": None,
        "driver_version": "580.159.04",
        "cuda_version": "13.0",
        "gpus": (gpu(0), gpu(1)),
    }
    return HostFacts(host=name, **{**healthy, **changes})
