"""A finding: one check at one place, its verdict for a job, and the cure."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from enum import Enum

from jobs.errors import InfrastructureError


class Verdict(Enum):
    """Verdicts, worst last."""

    ok = "ok"
    unknown = "n/a"
    """The fact is unknown, or there is nothing to check."""
    warn = "warn"
    """Jobs run, but slower or less safely."""
    fail = "fail"
    """Jobs don't run, hang, or can't be trusted."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """The verdict of one check at one place."""

    check: str
    """Name of the check."""
    where: str
    found: str
    verdict: Verdict = Verdict.ok
    mend: str = ""
    """Cure of a warning or a failure."""

    def __str__(self) -> str:
        return f"{self.where}: {self.check}: {self.found}" + (f"; {self.mend}" if self.mend else "")


def worst(findings: Iterable[Finding]) -> Verdict:
    """Worst verdict; ``ok`` without findings."""
    order = list(Verdict)
    return max((finding.verdict for finding in findings), key=order.index, default=Verdict.ok)


def refuse_failures(findings: Iterable[Finding], logger: logging.Logger) -> None:
    """Log all warnings; raise ``InfrastructureError`` with all failures, if any."""
    failures = []
    for finding in findings:
        if finding.verdict is Verdict.fail:
            failures.append(str(finding))
        elif finding.verdict is Verdict.warn:
            logger.warning("%s", finding)
    if failures:
        raise InfrastructureError(f"this job can't run here: {' | '.join(failures)}")
