"""JUnit XML for CI systems: checks, findings, and the job itself as test cases."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from jobs.errors import EXIT_CHECK_FAILED, EXIT_OK, InfrastructureError
from jobs.health.finding import Finding, Verdict
from jobs.records.row import RowSummary


class End(Enum):
    """End of a test case; the values are JUnit's elements."""

    passed = ""
    failed = "failure"
    broken = "error"
    skipped = "skipped"


@dataclasses.dataclass(frozen=True)
class TestCase:
    """One test case."""

    group: str
    name: str
    end: End = End.passed
    text: str = ""
    """Reason of a failure, an error or a skipped case; for a case that passed, what was found."""


def of_row(row: RowSummary) -> TestCase:
    """The check of a row; a baseline that couldn't run is skipped."""
    name = f"{row.case} of island {row.island}" if row.island else str(row.case)
    if row.check is None:
        return TestCase(row.implementation, name, End.skipped, row.reason or "")
    if row.check.passed:
        found = f"{row.headline_us:.2f} us" if row.headline_us else ""
        return TestCase(row.implementation, name, text=found)
    check = row.check
    wrong = f"{check.num_wrong} of {check.num_elements} elements are wrong, integers {check.integers}"
    return TestCase(row.implementation, name, End.failed, f"{wrong}, on ranks {list(check.failed_ranks)}")


def of_finding(finding: Finding) -> TestCase:
    """A finding of the doctor; a warning passes."""
    found = f"{finding.found}; {finding.mend}" if finding.mend else finding.found
    end = {Verdict.fail: End.failed, Verdict.unknown: End.skipped}.get(finding.verdict, End.passed)
    warning = "warning: " if finding.verdict is Verdict.warn else ""
    return TestCase(finding.check, finding.where, end, f"{warning}{found}")


def given_up(text: str) -> TestCase:
    """A case on which two gangs were lost."""
    return TestCase("given up", text.partition(": given up")[0], End.broken, text)


def whole(status: str, exit_code: int, error: str | None) -> TestCase:
    """The job as a test case: what its RESULT line says."""
    end = {EXIT_OK: End.passed, EXIT_CHECK_FAILED: End.failed}.get(exit_code, End.broken)
    return TestCase("job", "the whole job", end, f"{status}: {error}" if error else status)


def write_junit(path: Path, suite: str, cases: Sequence[TestCase]) -> None:
    """Write the file; an old one is replaced as a whole.

    Raises:
      InfrastructureError: it can't be written.
    """
    counts = {"failures": End.failed, "errors": End.broken, "skipped": End.skipped}
    totals = {name: str(sum(case.end is end for case in cases)) for name, end in counts.items()}
    root = ET.Element("testsuites")
    node = ET.SubElement(root, "testsuite", {"name": suite, "tests": str(len(cases)), **totals})
    for case in cases:
        entry = ET.SubElement(node, "testcase", classname=_printable(case.group), name=_printable(case.name))
        if case.end is not End.passed:
            ET.SubElement(entry, case.end.value, message=_printable(case.text))
        elif case.text:
            ET.SubElement(entry, "system-out").text = _printable(case.text)
    new = path.with_name(f".{path.name}.new")
    try:
        ET.ElementTree(root).write(new, encoding="utf-8", xml_declaration=True)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise InfrastructureError(f"results.junit={path}: can't be written ({error.strerror})") from error


def _printable(text: str) -> str:
    """XML has no control characters."""
    return "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)
