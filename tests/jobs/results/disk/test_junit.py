"""JUnit XML."""

import xml.etree.ElementTree as ET

import pytest

from jobs.errors import InfrastructureError
from jobs.health.finding import Finding, Verdict
from jobs.results.disk.junit import given_up, of_finding, of_row, whole, write_junit
from tests.jobs.run_rows import article_rows, failed, not_run


def written(path, cases):
    write_junit(path, "cmkernel", cases)
    return ET.parse(path).getroot()[0]


def test_rows(tmp_path):
    good = article_rows()[0]
    cases = [
        of_row(good),
        of_row(failed(good)),
        of_row(not_run(good, "no torch \x1b[1m here")),
        given_up("case: given up, x"),
    ]
    suite = written(tmp_path / "a.xml", [*cases, whole("check_failed", 1, "1 of 2 rows are wrong")])
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "2",
        "errors": "1",
        "skipped": "1",
    }
    passed, wrong, skipped, lost, job = suite
    assert (passed.get("classname"), passed.get("name")) == (good.implementation, str(good.case))
    assert [child.tag for child in passed] == ["system-out"]
    assert wrong.find("failure").get("message").startswith("123 of ")
    assert wrong.find("failure").get("message").endswith("on ranks [1]")
    assert skipped.find("skipped").get("message") == "no torch ?[1m here"
    assert (lost.get("name"), lost.find("error").get("message")) == ("case", "case: given up, x")
    assert job.find("failure").get("message") == "check_failed: 1 of 2 rows are wrong"


@pytest.mark.parametrize(("code", "element"), [(0, None), (1, "failure"), (2, "error"), (3, "error"), (143, "error")])
def test_the_end_of_the_job(tmp_path, code, element):
    (job,) = written(tmp_path / "a.xml", [whole("status", code, None)])
    assert (element is None) == (code == 0)
    assert element is None or job.find(element) is not None


def test_findings(tmp_path):
    verdicts = {
        Verdict.ok: "system-out",
        Verdict.unknown: "skipped",
        Verdict.warn: "system-out",
        Verdict.fail: "failure",
    }
    cases = [of_finding(Finding("clock", "h1", "late", verdict, "start chrony")) for verdict in verdicts]
    suite = written(tmp_path / "a.xml", cases)
    assert [case[0].tag for case in suite] == list(verdicts.values())
    assert suite[2][0].text == "warning: late; start chrony"
    assert suite[3][0].get("message") == "late; start chrony"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InfrastructureError, match=r"results.junit=.*missing/a.xml: can't be written \(No such file"):
        write_junit(tmp_path / "missing" / "a.xml", "cmkernel", [])
