"""What the measured bandwidths mean."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from jobs.health.facts import Bandwidth
from jobs.health.finding import Finding, Verdict

# Of the median of its kind: below it a link is one that drags a ring down.
MIN_SHARE = 0.5
# Two links can't tell which of them is the odd one.
MIN_LINKS = 3


def link_findings(check: str, links: Sequence[Bandwidth], *, mend: str, cure: str) -> list[Finding]:
    """Links of one kind: each must work, and none may be much slower than the others.

    Args:
      check: What the links are.
      links: All of that kind.
      mend: For one that is slow.
      cure: For one that doesn't work.
    """
    speeds = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    median = statistics.median(speeds) if speeds else 0.0
    findings = []
    for link in links:
        if link.bytes_per_s is None or link.error is not None:
            findings.append(Finding(check, link.link, link.error or "nothing arrived", Verdict.fail, cure))
            continue
        found = f"{link.bytes_per_s / 1e9:.3g} GB/s"
        if len(speeds) >= MIN_LINKS and link.bytes_per_s < MIN_SHARE * median:
            found += f", where the median is {median / 1e9:.3g}"
            findings.append(Finding(check, link.link, found, Verdict.warn, mend))
        else:
            findings.append(Finding(check, link.link, found))
    return findings
