"""Findings about links, from their measured bandwidths."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from cmkernel import cost
from jobs.config.schema import HealthSettings
from jobs.health.facts import Bandwidth
from jobs.health.finding import Finding, Verdict

# Slowest bandwidth of a healthy link, as a ratio to the median of its kind; a slower link drags the ring down.
MIN_SHARE = 0.5
INSIDE, BETWEEN = "GPU links inside hosts", "GPU links between hosts"
# Two H200s reached 0.64 of the datasheet's rate (benchmarks/2026-11-30_hosts_and_faults_2xH200).
DEFAULT_SHARE_OF_LINK = 0.4
# Among two links, neither is the odd one.
MIN_LINKS = 3


@dataclasses.dataclass(frozen=True)
class Floor:
    """Rate below which a link fails."""

    option: str
    gbytes_per_s: float


def gpu_link_floor(kind: str, health: HealthSettings, device_kind: str) -> Floor | None:
    """Floor of a kind of GPU links: the option's, or a share of the datasheet's rate."""
    if kind == BETWEEN:
        given = health.min_nic_gbytes_per_s
        return Floor("health.min_nic_gbytes_per_s", given) if given else None
    model = cost.device_model(device_kind)
    default = DEFAULT_SHARE_OF_LINK * model.link_gbytes_per_s if model else None
    given = health.min_link_gbytes_per_s or default
    return Floor("health.min_link_gbytes_per_s", given) if given else None


def link_findings(
    check: str, links: Sequence[Bandwidth], *, mend: str, cure: str, floor: Floor | None = None
) -> list[Finding]:
    """Check links of one kind: each must work, none may be below the floor or much slower than the others.

    Healthy links share one finding.

    Args:
      check: name of the check.
      links: all links of that kind.
      mend: cure of a slow link.
      cure: cure of a broken link.
      floor: rate that each link must have.
    """
    speeds = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    median = statistics.median(speeds) if speeds else 0.0
    findings, healthy = [], []
    for link in links:
        if link.bytes_per_s is None or link.error is not None:
            findings.append(Finding(check, link.link, link.error or "no data arrived", Verdict.fail, cure))
            continue
        if floor is not None and link.bytes_per_s < floor.gbytes_per_s * 1e9:
            found = f"{link.bytes_per_s / 1e9:.3g} GB/s; {floor.option}={floor.gbytes_per_s:g} is needed"
            findings.append(Finding(check, link.link, found, Verdict.fail, mend))
        elif len(speeds) >= MIN_LINKS and link.bytes_per_s < MIN_SHARE * median:
            found = f"{link.bytes_per_s / 1e9:.3g} GB/s; the median is {median / 1e9:.3g} GB/s"
            findings.append(Finding(check, link.link, found, Verdict.warn, mend))
        else:
            healthy.append(link)
    return [*_healthy(check, healthy), *findings]


def _healthy(check: str, links: Sequence[Bandwidth]) -> list[Finding]:
    speeds = sorted(link.bytes_per_s / 1e9 for link in links if link.bytes_per_s is not None)
    if not speeds:
        return []
    if len(speeds) == 1:
        return [Finding(check, links[0].link, f"{speeds[0]:.3g} GB/s")]
    found = f"{speeds[0]:.3g} to {speeds[-1]:.3g} GB/s, median {statistics.median(speeds):.3g} GB/s"
    return [Finding(check, f"{len(speeds)} links", found)]
