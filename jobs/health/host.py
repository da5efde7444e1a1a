"""Facts about the host that this runs on. Without GPUs it needs only the standard library."""

from __future__ import annotations

import os
import platform
import resource
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

from jobs.health.facts import HostFacts

# Packages that every host must have in the same version.
PACKAGES = ("jax", "jaxlib", "ray", "numpy")
# Packages that hosts with GPUs need as well.
GPU_PACKAGES = ("jax-cuda13-plugin", "nvidia-nccl-cu13")
MISSING = "none"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_VMSTAT = Path("/proc/vmstat")
_SHM = "/dev/shm"


def host_facts(ip: str, *, with_gpus: bool) -> HostFacts:
    """Collect the facts about this host; without GPUs it takes a fraction of a second.

    Args:
      ip: address of this host in Ray.
      with_gpus: read the GPUs through NVML, too, which takes longer.
    """
    host = socket.gethostname()
    resolved_ip, owns_resolved_ip = resolve(host)
    return HostFacts(
        host=host,
        ip=ip,
        resolved_ip=resolved_ip,
        owns_resolved_ip=owns_resolved_ip,
        boot_id=boot_id(),
        versions=_versions(),
        shm_bytes=_shm_bytes(),
        memlock_bytes=_memlock_bytes(),
        **(_gpu_entries() if with_gpus else {}),
    )


def resolve(host: str) -> tuple[str | None, bool]:
    """Address that gloo announces for this host's name, and whether an interface here has it.

    As in gloo, it is the first of the name's addresses that a socket can be bound to. If there is none, return the
    first address, or ``None`` if the name doesn't resolve.
    """
    try:
        known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None, False
    for family, kind, protocol, _, address in known:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.bind(address)
            return str(address[0]), True
        except OSError:
            continue
    return str(known[0][4][0]), False


def oom_kills() -> int | None:
    """Processes that the kernel of this host has killed because memory ran out; ``None`` if it doesn't say."""
    try:
        counters = dict(line.split() for line in _VMSTAT.read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, KeyError):
        return None


def boot_id() -> str:
    """Id shared by all processes of a machine until it reboots; empty if the kernel has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in (*PACKAGES, *GPU_PACKAGES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = MISSING
    return versions


def _shm_bytes() -> int | None:
    try:
        stat = os.statvfs(_SHM)
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize


def _memlock_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _gpu_entries() -> dict[str, Any]:
    import pynvml

    from jobs.health.nvml import gpu_facts, visible_gpus

    try:
        handles = visible_gpus()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "driver_version": pynvml.nvmlSystemGetDriverVersion(),
            "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": tuple(gpu_facts(gpu, [peer for peer in handles if peer is not gpu]) for gpu in handles),
        }
    except pynvml.NVMLError_LibraryNotFound:
        return {}  # no NVIDIA driver: a host without GPUs
    except pynvml.NVMLError as error:
        return {"nvml_error": str(error)}
