"""Findings about links, from their measured bandwidths."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from jobs.health.facts import Bandwidth
from jobs.health.finding import Finding, Verdict

# Slowest bandwidth of a healthy link, as a ratio to the median of its kind; a slower link drags the ring down.
MIN_SHARE = 0.5
# Among two links, neither is the odd one.
MIN_LINKS = 3


def link_findings(check: str, links: Sequence[Bandwidth], *, mend: str, cure: str) -> list[Finding]:
    """Check links of one kind: each must work, and none may be much slower than the others.

    Healthy links share one finding.

    Args:
      check: name of the check.
      links: all links of that kind.
      mend: cure of a slow link.
      cure: cure of a broken link.
    """
    speeds = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    median = statistics.median(speeds) if speeds else 0.0
    findings, healthy = [], []
    for link in links:
        if link.bytes_per_s is None or link.error is not None:
            findings.append(Finding(check, link.link, link.error or "no data arrived", Verdict.fail, cure))
            continue
        if len(speeds) >= MIN_LINKS and link.bytes_per_s < MIN_SHARE * median:
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
