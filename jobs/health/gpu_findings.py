"""Findings about GPUs, from their facts."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.health.facts import GpuFacts, HostFacts, Xid
from jobs.health.finding import Finding, Verdict

# An idle CUDA context takes half of it.
MAX_FOREIGN_BYTES = 2**30
_GIB = 2**30
_RESET = "nvidia-smi --gpu-reset, or reboot the host"


def gpu_findings(where: str, gpu: GpuFacts) -> list[Finding]:
    """Check that a GPU is healthy and that no other process uses it."""
    return [
        _memory(where, gpu),
        _ecc(where, gpu),
        _remapped_rows(where, gpu),
        _nvlinks(where, gpu),
        *_fabric(where, gpu),
        *_mig(where, gpu),
    ]


def architecture_finding(where: str, gpu: GpuFacts, *, needed: str, is_named: bool) -> Finding:
    """Check that a GPU can run the kernel.

    Args:
      where: name of the GPU.
      gpu: facts of the GPU.
      needed: compute capability that the kernel needs.
      is_named: the config names the kernel; otherwise the job can take another implementation.
    """
    if gpu.compute_capability is None:
        return _unknown("architecture", where, gpu, "compute_capability")
    found = f"{gpu.name}, compute capability {gpu.compute_capability}"
    if gpu.compute_capability == needed:
        return Finding("architecture", where, found)
    mend = f"mosaic_gpu needs {needed} (Hopper); kernel=ppermute runs here"
    return Finding("architecture", where, found, Verdict.fail if is_named else Verdict.warn, mend)


def peer_findings(host: HostFacts) -> list[Finding]:
    """Check that the GPUs of a host can access each other's memory."""
    findings = []
    for gpu in host.gpus:
        where = gpu_name(host.host, gpu)
        if gpu.peers is None:
            findings.append(_unknown("peer access", where, gpu, "peers"))
        elif broken := {peer: reason for peer, reason in gpu.peers.items() if reason != "ok"}:
            found = ", ".join(f"not to GPU {peer} ({reason})" for peer, reason in broken.items())
            # Without NVLink the machine may not support it at all.
            verdict = Verdict.fail if gpu.nvlinks and gpu.nvlinks.num_active else Verdict.warn
            mend = "nvidia-smi topo -p2p w shows access; in a virtual machine the hypervisor must pass NVLink through"
            findings.append(Finding("peer access", where, found, verdict, mend))
        elif gpu.peers:
            findings.append(Finding("peer access", where, "to every other GPU of the host"))
    return findings


def xid_findings(host: HostFacts, xids: Sequence[Xid], error: str | None) -> list[Finding]:
    """Report errors of the NVIDIA driver during the examination."""
    if not host.gpus:
        return []
    if error is not None:
        return [Finding("XIDs", host.host, f"can't listen: {error}", Verdict.unknown)]
    if not xids:
        return [Finding("XIDs", host.host, "none during the examination")]
    by_uuid = {gpu.uuid: gpu_name(host.host, gpu) for gpu in host.gpus}
    mend = f"look up the number in NVIDIA's list of XIDs and its context in dmesg; often {_RESET} helps"
    return [
        Finding("XIDs", by_uuid.get(xid.gpu_uuid, xid.gpu_uuid), f"XID {xid.number}", Verdict.fail, mend)
        for xid in dict.fromkeys(xids)
    ]


def gpu_name(host: str, gpu: GpuFacts) -> str:
    """Name such as ``host7 GPU 3``."""
    return f"{host} GPU {gpu.index}"


def _memory(where: str, gpu: GpuFacts) -> Finding:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is None or total is None:
        return _unknown("memory", where, gpu, "memory_used_bytes")
    free = f"{(total - used) / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    # Inside a container the list may be empty, or hold process ids of the machine.
    pids = ", ".join(str(process.pid) for process in gpu.processes or ())
    who = f"process {pids}" if pids else "a process that isn't listed here"
    if used > MAX_FOREIGN_BYTES:
        found = f"{free}: {who} uses {used / _GIB:.1f} GiB"
        mend = "end that process (nvidia-smi lists it): it takes memory and distorts the times"
        return Finding("memory", where, found, Verdict.fail, mend)
    if pids:
        return Finding(
            "memory", where, f"{free}; {who} is there", Verdict.warn, "end it: its work would distort the times"
        )
    return Finding("memory", where, f"{free}, no process")


def _ecc(where: str, gpu: GpuFacts) -> Finding:
    if gpu.ecc_enabled is False:
        mend = "nvidia-smi -e 1 and a reset switch it on; without ECC, wrong bits go unnoticed"
        return Finding("ECC", where, "switched off", Verdict.warn, mend)
    if gpu.ecc_volatile is None:
        return _unknown("ECC", where, gpu, "ecc_volatile")
    if gpu.ecc_volatile:
        found = f"{gpu.ecc_volatile} uncorrected errors since the driver was loaded"
        return Finding("ECC", where, found, Verdict.fail, f"{_RESET}; if errors come back, have the GPU replaced")
    if gpu.ecc_aggregate:
        found = f"{gpu.ecc_aggregate} uncorrected errors in the past, none since the driver was loaded"
        return Finding("ECC", where, found, Verdict.warn, "watch for new ones")
    return Finding("ECC", where, "no uncorrected errors")


def _remapped_rows(where: str, gpu: GpuFacts) -> Finding:
    rows = gpu.remapped_rows
    if rows is None:
        return _unknown("remapped rows", where, gpu, "remapped_rows")
    found = f"{rows.correctable + rows.uncorrectable} rows ({rows.uncorrectable} after uncorrected errors)"
    if rows.failed:
        return Finding("remapped rows", where, f"{found}; one failed", Verdict.fail, "have the GPU replaced")
    if rows.pending:
        return Finding("remapped rows", where, f"{found}; one is pending", Verdict.fail, _RESET)
    return Finding("remapped rows", where, found if rows.correctable + rows.uncorrectable else "none")


def _nvlinks(where: str, gpu: GpuFacts) -> Finding:
    links = gpu.nvlinks
    if links is None:
        return _unknown("NVLink", where, gpu, "nvlinks")
    counted = ", ".join(f"{name} {count}" for name, count in links.errors.items()) or "unknown"
    found = f"{links.num_active} of {links.num_links} links active; errors: {counted}"
    if links.num_active < links.num_links:
        mend = "nvidia-smi nvlink -s; systemctl status nvidia-fabricmanager; reseat or replace what stays down"
        return Finding("NVLink", where, found, Verdict.warn, mend)
    if links.errors.get("recovery"):
        return Finding("NVLink", where, found, Verdict.warn, f"a link had to recover: watch it, or {_RESET}")
    return Finding("NVLink", where, found)


def _fabric(where: str, gpu: GpuFacts) -> list[Finding]:
    fabric = gpu.fabric
    # Machines without NVSwitch have no fabric.
    if fabric is None or fabric.state == "not supported":
        return []
    # Only warnings: if CUDA needs the fabric, it refuses to start and says so.
    mend = "systemctl status nvidia-fabricmanager; on a fabric of several hosts also nvidia-imex"
    if fabric.state != "completed":
        return [Finding("fabric", where, f"registration {fabric.state}", Verdict.warn, mend)]
    if fabric.error is not None:
        return [Finding("fabric", where, f"registration failed: {fabric.error}", Verdict.warn, mend)]
    found = f"cluster {fabric.cluster_uuid}, clique {fabric.clique_id}"
    if fabric.is_degraded:
        return [Finding("fabric", where, f"{found}: degraded bandwidth", Verdict.warn, mend)]
    return [Finding("fabric", where, found)]


def _mig(where: str, gpu: GpuFacts) -> list[Finding]:
    if not gpu.is_mig:
        return []
    mend = "nvidia-smi -mig 0: NCCL and mosaic_gpu need whole GPUs"
    return [Finding("MIG", where, "divided into instances", Verdict.warn, mend)]


def _unknown(check: str, where: str, gpu: GpuFacts, fact: str) -> Finding:
    return Finding(check, where, gpu.unreadable.get(fact, "unknown").lower(), Verdict.unknown)
