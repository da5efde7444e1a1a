"""Examination of a cluster for ``jobs.doctor``: hosts, GPUs, links, then the findings.

The entry point imports this late: it is slow.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from cmkernel.hardware import COMPUTE_CAPABILITY, MIN_NCCL_VERSION
from jobs.config.choices import Implementation
from jobs.config.rules import to_settings
from jobs.config.schema import ClusterSettings, Settings
from jobs.driver.hosts import driver_versions
from jobs.driver.opening import with_junit_path
from jobs.driver.outcome import Outcome
from jobs.errors import EXIT_CHECK_FAILED, InfrastructureError, NoCapacity
from jobs.gang.capacity import default_num_ranks
from jobs.gang.cluster import Cluster, connect
from jobs.gang.examiners import Examiners
from jobs.gang.gang import Gang
from jobs.gang.submission import submission_id, submitted_git_sha
from jobs.health import gpu_findings, host_findings
from jobs.health.facts import Bandwidth, HostFacts
from jobs.health.finding import Finding, Verdict
from jobs.health.host import host_facts
from jobs.health.link_findings import BETWEEN, INSIDE, Floor, gpu_link_floor, link_findings
from jobs.health.pairs import rounds
from jobs.health.table import print_findings
from jobs.records.environment import here
from jobs.results.disk.junit import of_finding, whole, write_junit
from jobs.results.disk.run_dir import RunDir

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
LINKS = "jobs.health.links:LinkSession"
_LINK_BYTES, _LINK_REPEATS = 256 * 2**20, 10
# The whole examination takes less than a minute; a gang that isn't ready by then is a finding.
_EXAMINER_TIMEOUT_S, _PLACEMENT_TIMEOUT_S, _SETUP_TIMEOUT_S, _STEP_TIMEOUT_S = 20.0, 10.0, 40.0, 30.0


@dataclasses.dataclass
class Examination:
    """Facts of the cluster, and the findings about them."""

    hosts: list[HostFacts] = dataclasses.field(default_factory=list)
    links: list[Bandwidth] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def failures(self) -> list[Finding]:
        """Findings that must be fixed before a job runs."""
        return [finding for finding in self.findings if finding.verdict is Verdict.fail]


def examine(config: DictConfig, outcome: Outcome) -> None:
    """Examine the cluster and print the findings; the caller prints the RESULT line from ``outcome``.

    Raises:
      UsageError, InfrastructureError: an option is wrong, or the run directory can't be made; later errors are in
        ``outcome``.
    """
    seen = Examination()
    settings = with_junit_path(to_settings(config), submission_id=submission_id())
    run_dir = RunDir.create(settings.run_dir, submission_id=submission_id())
    outcome.run_dir = run_dir.path
    run_dir.write_config(settings)
    with outcome.recording(), connect(settings.cluster) as cluster:
        _look(cluster, settings, seen)
    with outcome.recording():
        _conclude(outcome, seen, run_dir)
    if settings.results.junit:
        with outcome.recording():
            cases = [*map(of_finding, seen.findings), whole(outcome.status, outcome.exit_code, outcome.error)]
            write_junit(Path(settings.results.junit), "cmkernel doctor", cases)


def _look(cluster: Cluster, settings: Settings, seen: Examination) -> None:
    """Examine everything, the cheapest things first."""
    driver = driver_versions(host_facts(cluster.nodes[0].ip, with_gpus=False).versions)
    with Examiners(cluster.nodes) as examiners:
        hosts, silent = examiners.facts(with_gpus=True, timeout_s=_EXAMINER_TIMEOUT_S)
        seen.hosts.extend(hosts)
        seen.findings += host_findings.silence_findings([(node.host, why) for node, why in silent])
        seen.findings += host_findings.version_findings(driver, hosts)
        seen.findings += host_findings.name_findings(hosts, on_gpus=cluster.on_gpus)
        seen.findings += [] if cluster.on_gpus else examiners.unreachable_names()
        seen.findings += host_findings.clock_findings(examiners.clock_offsets())
        seen.findings += host_findings.shm_findings(hosts)
        seen.findings += host_findings.memlock_findings(hosts)
        seen.findings += host_findings.driver_findings(hosts)
        seen.findings += _gpus(cluster, hosts, _names_kernel(settings))
        seen.findings += _tcp(examiners, seen, settings.health.min_tcp_gbytes_per_s)
        # Capacity comes late: a cluster that is too small is still examined.
        num_ranks = default_num_ranks(cluster, _impatient(settings.cluster))
        if cluster.on_gpus:
            _look_at_links(cluster, settings, num_ranks, seen)
        for host, xids, error in examiners.xids():
            seen.findings += gpu_findings.xid_findings(host, xids, error)


def _gpus(cluster: Cluster, hosts: Sequence[HostFacts], names_kernel: bool) -> list[Finding]:
    """Report each GPU once: raylets on one machine may see the same GPUs."""
    findings, known = [], set()
    for host in hosts:
        new = [gpu for gpu in host.gpus if gpu.uuid not in known]
        known |= {gpu.uuid for gpu in new}
        for gpu in new:
            where = gpu_findings.gpu_name(host.host, gpu)
            findings.append(
                gpu_findings.architecture_finding(where, gpu, needed=COMPUTE_CAPABILITY, is_named=names_kernel)
            )
            findings += gpu_findings.gpu_findings(where, gpu)
        findings += gpu_findings.peer_findings(dataclasses.replace(host, gpus=tuple(new)))
    if not known and not cluster.on_gpus:
        findings.append(Finding("GPUs", "the cluster", "none: ranks run on CPUs", Verdict.unknown))
    elif len(known) < cluster.num_gpus:
        counts = f"Ray counts {cluster.num_gpus}, NVML finds {len(known)}"
        mend = "nvidia-smi -L on each host; several raylets on one host each need their own CUDA_VISIBLE_DEVICES"
        findings.append(Finding("GPUs", "the cluster", counts, Verdict.fail, mend))
    return findings


def _tcp(examiners: Examiners, seen: Examination, min_gbytes_per_s: float | None) -> list[Finding]:
    """Measure TCP between neighbours in the ring of hosts."""
    links = examiners.tcp()
    if not links:
        return [Finding("TCP", "the cluster", "one host: nothing to measure", Verdict.unknown)]
    seen.links += links
    cure = "let the hosts reach each other on all TCP ports, see docs/clusters.md"
    floor = Floor("health.min_tcp_gbytes_per_s", min_gbytes_per_s) if min_gbytes_per_s else None
    return link_findings("TCP", links, mend="ethtool: speed, duplex and errors of both ends", cure=cure, floor=floor)


def _look_at_links(cluster: Cluster, settings: Settings, num_ranks: int, seen: Examination) -> None:
    """Measure NCCL between GPUs and check its version; a gang that doesn't start is a finding."""
    if failures := seen.failures():
        reason = f"not measured: fix {failures[0].check} on {failures[0].where} first"
        seen.findings.append(Finding("GPU links", "the cluster", reason, Verdict.unknown))
        return
    try:
        links, device_kind = _exchange(cluster, _impatient(settings.cluster), num_ranks, seen, _names_kernel(settings))
    except NoCapacity:
        raise
    except InfrastructureError as error:
        mend = "the message names the rank; NCCL_DEBUG=INFO in the environment of ray start logs more"
        seen.findings.append(Finding("GPU links", "the cluster", str(error), Verdict.fail, mend))
        return
    seen.links += [link for kind in links.values() for link in kind]
    for kind, measured in links.items():
        mend, cure = "nvidia-smi nvlink -e; nvidia-smi topo -m", "nvidia-smi topo -p2p w; dmesg on both hosts"
        floor = gpu_link_floor(kind, settings.health, device_kind)
        seen.findings += link_findings(kind, measured, mend=mend, cure=cure, floor=floor)


def _exchange(
    cluster: Cluster, settings: ClusterSettings, num_ranks: int, seen: Examination, names_kernel: bool
) -> tuple[dict[str, list[Bandwidth]], str]:
    """Start a gang and measure its links, by kind; return the kind of device, too."""
    with Gang.start(cluster, settings, num_ranks, session=LINKS) as gang:
        loaded = {member.host: member.versions["nccl"] for member in gang.members}
        seen.findings += host_findings.nccl_findings(loaded, needed=MIN_NCCL_VERSION, is_named=names_kernel)
        links = measure_links(gang, num_bytes=_LINK_BYTES, repeats=_LINK_REPEATS)
        return links, gang.members[0].device_kind


def measure_links(gang: Gang, *, num_bytes: int, repeats: int) -> dict[str, list[Bandwidth]]:
    """Measure each pair of GPUs inside hosts, and neighbours between hosts: ``num_bytes`` both ways at once.

    Returns links by kind.

    Args:
      gang: gang whose ranks run a ``LinkSession``, in the order of the ring.
      num_bytes: bytes of one exchange in each direction.
      repeats: exchanges that are timed together.
    """
    groups: dict[str, list[int]] = {}
    for member in gang.members:
        groups.setdefault(member.host, []).append(member.rank)
    links: dict[str, list[Bandwidth]] = {}
    for pairs in rounds(list(groups.values())):
        exchanges = gang.call(
            "exchange", pairs, num_bytes, repeats, timeout_s=_STEP_TIMEOUT_S, doing=f"exchanging between ranks {pairs}"
        )
        for a, b in pairs:
            here, there = gang.members[a], gang.members[b]
            is_inside = here.host == there.host
            name = f"{here.host} rank {a} - {b}" if is_inside else f"{here.host} rank {a} - {there.host} rank {b}"
            is_intact = exchanges[a].is_intact and exchanges[b].is_intact
            links.setdefault(INSIDE if is_inside else BETWEEN, []).append(
                Bandwidth(
                    link=name,
                    bytes_per_s=num_bytes / max(exchanges[a].seconds, exchanges[b].seconds),
                    error=None if is_intact else "other data arrived than were sent",
                )
            )
    return links


def _conclude(outcome: Outcome, seen: Examination, run_dir: RunDir) -> None:
    """Print the table, write ``doctor.json``, set the exit code."""
    if not seen.findings:
        return
    print_findings(seen.findings, sys.stdout)
    run_dir.write_examination(
        {
            "format_version": FORMAT_VERSION,
            **_driver(),
            "hosts": [dataclasses.asdict(host) for host in seen.hosts],
            "links": [dataclasses.asdict(link) for link in seen.links],
            "findings": [
                {**dataclasses.asdict(finding), "verdict": finding.verdict.value} for finding in seen.findings
            ],
        }
    )
    print(f"# Results : {outcome.run_dir}", flush=True)
    if failures := seen.failures():
        named = "; ".join(f"{finding.check} on {finding.where}" for finding in failures[:8])
        outcome.end("check_failed", EXIT_CHECK_FAILED, f"{len(failures)} checks failed: {named}")


def _driver() -> dict[str, Any]:
    """Command, code and machine of the driver."""
    environment = dataclasses.asdict(here(submitted_git_sha()))
    return {name: environment[name] for name in ("command", "git_sha", "python", "platform", "driver_host", "user")}


def _names_kernel(settings: Settings) -> bool:
    return settings.kernel.implementation in (Implementation.mosaic_gpu, Implementation.mosaic_gpu_simple)


def _impatient(settings: ClusterSettings) -> ClusterSettings:
    return dataclasses.replace(
        settings,
        placement_timeout_s=min(settings.placement_timeout_s, _PLACEMENT_TIMEOUT_S),
        setup_timeout_s=min(settings.setup_timeout_s, _SETUP_TIMEOUT_S),
    )
