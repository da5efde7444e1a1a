"""Findings about hosts, from their facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.health.facts import HostFacts
from jobs.health.finding import Finding, Verdict
from jobs.health.host import GPU_PACKAGES, MISSING, PACKAGES

INSTALL = "install requirements.lock on every host, or submit with scripts/submit.sh --install"
INSTALL_CUDA = "install requirements-cuda13.lock on every host, or submit with scripts/submit.sh --install=cuda13"
# NCCL keeps buffers in /dev/shm, and containers get 64 MiB by default.
MIN_SHM_BYTES = 2**30
MAX_SKEW_S = 1.0
# The first driver that runs CUDA 13.
MIN_CUDA, MIN_DRIVER = 13, "580"
_GIB = 2**30


def version_findings(driver: Mapping[str, str], hosts: Sequence[HostFacts]) -> list[Finding]:
    """Check that each host has the versions of the job's driver, given as ``driver``."""
    findings = []
    for host in hosts:
        different = [
            f"{name} {host.versions.get(name, MISSING)} instead of {driver[name]}"
            for name in ("python", *PACKAGES)
            if _comparable(name, host.versions.get(name, MISSING)) != _comparable(name, driver[name])
        ]
        if different:
            findings.append(Finding("versions", _name(host), ", ".join(different), Verdict.fail, INSTALL))
        else:
            findings.append(Finding("versions", host.host, _listed(host.versions)))
    return findings


def silence_findings(silent: Sequence[tuple[str, str]]) -> list[Finding]:
    """Report hosts that don't answer, given as name and reason."""
    mend = f"check the network to this host (docs/clusters.md lists the ports) and Ray's Python there; {INSTALL}"
    return [Finding("examiner", host, why, Verdict.fail, mend) for host, why in silent]


def resolution_findings(hosts: Sequence[HostFacts], *, on_gpus: bool) -> list[Finding]:
    """Check that other hosts can reach the address that each host's name resolves to, which gloo announces."""
    if not hosts:
        return []
    if len({host.ip for host in hosts}) == 1:
        return [Finding("host name", hosts[0].host, f"{hosts[0].resolved_ip}; no other host needs to reach it")]
    findings = []
    for host in hosts:
        found = f"its name resolves to {host.resolved_ip}"
        if not is_loopback(host.resolved_ip):
            is_rays = host.resolved_ip == host.ip
            findings.append(Finding("host name", host.host, "resolves to Ray's address" if is_rays else found))
            continue
        # NCCL chooses an interface itself.
        verdict = Verdict.warn if on_gpus else Verdict.fail
        findings.append(Finding("host name", _name(host), f"{found}, {UNREACHABLE}", verdict, map_name(host.ip)))
    return findings


UNREACHABLE = "which other hosts can't reach"


def is_loopback(resolved_ip: str | None) -> bool:
    """Return whether other hosts can't use this address."""
    return resolved_ip is None or resolved_ip.startswith("127.")


def map_name(ip: str) -> str:
    """Cure of a host name that resolves to an unusable address."""
    return f"map it to {ip} in /etc/hosts there"


def shm_findings(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Check that /dev/shm has room for NCCL and Ray."""
    findings = []
    for host in hosts:
        if host.shm_bytes is None:
            findings.append(Finding("/dev/shm", host.host, "missing", Verdict.warn, "mount a tmpfs of 1 GiB or more"))
        elif host.shm_bytes < MIN_SHM_BYTES:
            found = f"{host.shm_bytes / 2**20:.0f} MiB; NCCL and Ray keep buffers there"
            mend = "docker run --shm-size=8g; in Kubernetes an emptyDir with medium: Memory at /dev/shm"
            findings.append(Finding("/dev/shm", host.host, found, Verdict.warn, mend))
        else:
            findings.append(Finding("/dev/shm", host.host, f"{host.shm_bytes / _GIB:.0f} GiB"))
    return findings


def memlock_findings(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Check that memory can be locked for RDMA, which GPUs on several hosts need."""
    needs_rdma = len({host.boot_id or host.host for host in hosts}) > 1 and any(host.gpus for host in hosts)
    findings = []
    for host in hosts:
        if host.memlock_bytes is None:
            findings.append(Finding("locked memory", host.host, "unlimited"))
            continue
        found = f"limit {host.memlock_bytes / 2**20:.0f} MiB"
        if needs_rdma:
            mend = "ulimit -l unlimited for the process that starts Ray: NCCL registers its buffers for RDMA"
            findings.append(Finding("locked memory", host.host, found, Verdict.warn, mend))
        else:
            findings.append(
                Finding("locked memory", host.host, f"{found}; only RDMA between hosts with GPUs needs more")
            )
    return findings


def clock_findings(offsets: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Check that the clocks agree.

    Args:
      offsets: by host, its clock minus the driver's and the error of that, both in seconds.
    """
    findings = []
    for host, (offset_s, error_s) in offsets.items():
        found = f"{offset_s * 1e3:+.1f} ms from that of the job's driver (± {error_s * 1e3:.1f} ms)"
        if abs(offset_s) - error_s > MAX_SKEW_S:
            mend = "start chrony or systemd-timesyncd there: otherwise logs can't be ordered and tokens may be refused"
            findings.append(Finding("clock", host, found, Verdict.warn, mend))
        elif abs(offset_s) <= error_s:
            findings.append(Finding("clock", host, f"that of the job's driver, within {max(error_s * 1e3, 1):.0f} ms"))
        else:
            findings.append(Finding("clock", host, found))
    return findings


def driver_findings(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Check that the NVIDIA drivers are present, agree, and run jax's CUDA."""
    findings = []
    seen = {host.driver_version for host in hosts if host.driver_version}
    for host in hosts:
        if host.nvml_error is not None:
            mend = "make nvidia-smi work there; after an update of the driver, reboot"
            findings.append(Finding("NVIDIA driver", host.host, f"NVML: {host.nvml_error}", Verdict.fail, mend))
        elif host.driver_version:
            findings.append(_driver_finding(host, seen))
            missing = [name for name in GPU_PACKAGES if host.versions.get(name, MISSING) == MISSING]
            if missing:
                found = f"not installed: {', '.join(missing)}"
                findings.append(Finding("CUDA for jax", host.host, found, Verdict.warn, INSTALL_CUDA))
            else:
                found = ", ".join(f"{name} {host.versions[name]}" for name in GPU_PACKAGES)
                findings.append(Finding("CUDA for jax", host.host, found))
    return findings


def nccl_findings(loaded: Mapping[str, str], *, needed: tuple[int, ...], is_named: bool) -> list[Finding]:
    """Check that the NCCL loaded by each host's ranks can give one process the addresses of another's memory.

    Args:
      loaded: version by host; ``none`` without NCCL.
      needed: version that ``mosaic_gpu`` needs over several processes.
      is_named: the config names that kernel; otherwise the job can take another implementation.
    """
    findings = []
    for host, version in loaded.items():
        if version != MISSING and tuple(map(int, version.split("."))) >= needed:
            findings.append(Finding("NCCL", host, f"{version} loaded"))
            continue
        mend = f"mosaic_gpu over several processes needs {'.'.join(map(str, needed))} or newer; {INSTALL_CUDA}"
        verdict = Verdict.fail if is_named else Verdict.warn
        findings.append(Finding("NCCL", host, f"{version} loaded", verdict, mend))
    return findings


def _driver_finding(host: HostFacts, seen: set[str]) -> Finding:
    found = f"{host.driver_version}, CUDA {host.cuda_version}"
    if host.cuda_version and int(host.cuda_version.split(".")[0]) < MIN_CUDA:
        mend = f"jax's CUDA 13 needs driver {MIN_DRIVER} or newer"
        return Finding("NVIDIA driver", host.host, found, Verdict.fail, mend)
    if len(seen) > 1:
        mend = f"install the same driver on all hosts; now they have {', '.join(sorted(seen))}"
        return Finding("NVIDIA driver", host.host, found, Verdict.warn, mend)
    return Finding("NVIDIA driver", host.host, found)


def _name(host: HostFacts) -> str:
    return f"{host.host} ({host.ip})"


def _comparable(name: str, version: str) -> str:
    # Patch releases of Python are compatible.
    return ".".join(version.split(".")[:2]) if name == "python" else version


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in ("python", *PACKAGES))
