"""One thing that was looked at: what was found, what that means for a job, and what mends it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from enum import Enum

from jobs.errors import InfrastructureError


class Verdict(Enum):
    """Worst last."""

    ok = "ok"
    unknown = "n/a"
    """It doesn't tell, or there is nothing to look at."""
    warn = "warn"
    """Jobs run, slower or less safely."""
    fail = "fail"
    """Jobs don't run, hang, or can't be trusted."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """The verdict on one thing at one place."""

    check: str
    """What was looked at."""
    where: str
    found: str
    verdict: Verdict = Verdict.ok
    mend: str = ""
    """What to do about a warning or a failure."""

    def __str__(self) -> str:
        return f"{self.where}: {self.check}: {self.found}" + (f"; {self.mend}" if self.mend else "")


def worst(findings: Iterable[Finding]) -> Verdict:
    """The worst verdict; ok where there is none."""
    order = list(Verdict)
    return max((finding.verdict for finding in findings), key=order.index, default=Verdict.ok)


def refuse_failures(findings: Iterable[Finding], logger: logging.Logger) -> None:
    """Log the warnings, and raise ``InfrastructureError`` with all failures where there is one."""
    failures = []
    for finding in findings:
        if finding.verdict is Verdict.fail:
            failures.append(str(finding))
        elif finding.verdict is Verdict.warn:
            logger.warning("%s", finding)
    if failures:
        raise InfrastructureError(f"this job can't run here: {' | '.join(failures)}")
