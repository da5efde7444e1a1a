"""Findings about hosts, from their facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from jobs.health.facts import HostFacts, HostName
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


def name_findings(hosts: Sequence[HostName], *, on_gpus: bool) -> list[Finding]:
    """Check the address that each host's own name resolves to: gloo binds it, and announces it to the other hosts."""
    by_ip = {host.ip: host for host in hosts}  # raylets of one host share its name
    return [_name_finding(host, is_alone=len(by_ip) == 1, on_gpus=on_gpus) for host in by_ip.values()]


def announces_another(host: HostName) -> bool:
    """Return whether gloo announces another address than Ray uses, one that other hosts may reach."""
    return host.resolved_ip not in (None, host.ip) and host.owns_resolved_ip and not _is_loopback(host.resolved_ip)


def unreachable_name(host: HostName, why: str) -> Finding:
    """Report that another host can't reach the address that this host's name resolves to."""
    found = f"its name resolves to {host.resolved_ip}, {_UNREACHABLE} ({why})"
    return Finding("host name", _name(host), found, Verdict.fail, _map_name(host))


_UNREACHABLE = "which other hosts can't reach"


def _name_finding(host: HostName, *, is_alone: bool, on_gpus: bool) -> Finding:
    if host.resolved_ip is None:
        return Finding("host name", _name(host), "it doesn't resolve", Verdict.fail, _map_name(host))
    found = f"its name resolves to {host.resolved_ip}"
    if not host.owns_resolved_ip:
        lacking = f"{found}, which none of its interfaces has"
        return Finding("host name", _name(host), lacking, Verdict.fail, _map_name(host))
    if is_alone:
        return Finding("host name", host.host, f"{host.resolved_ip}; no other host needs to reach it")
    if _is_loopback(host.resolved_ip):
        # NCCL chooses an interface itself.
        verdict = Verdict.warn if on_gpus else Verdict.fail
        return Finding("host name", _name(host), f"{found}, {_UNREACHABLE}", verdict, _map_name(host))
    return Finding("host name", host.host, "resolves to Ray's address" if host.resolved_ip == host.ip else found)


def _is_loopback(ip: str | None) -> bool:
    return ip is not None and ip_address(ip.partition("%")[0]).is_loopback


def _map_name(host: HostName) -> str:
    return f'add the line "{host.ip} {host.host}" to /etc/hosts there'


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


def _name(host: HostName) -> str:
    return f"{host.host} ({host.ip})"


def _comparable(name: str, version: str) -> str:
    # Patch releases of Python are compatible.
    return ".".join(version.split(".")[:2]) if name == "python" else version


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in ("python", *PACKAGES))
