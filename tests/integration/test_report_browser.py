"""The report in a real browser, from a file and without a network."""

import dataclasses

import pytest

from jobs.results.disk.recorded_run import read_run
from jobs.results.report import write_report
from tests.integration.browser import BINARY, browser
from tests.jobs.run_rows import LLAMA3, article_rows, failed, not_run, run_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="no chromium: apt-get install chromium"),
]


def column(page, title):
    """The cells of a column of the first table, from top to bottom."""
    return page.evaluate(
        "(() => { const table = document.querySelector('table.sortable');"
        f" const at = [...table.tHead.rows[0].cells].findIndex((h) => h.firstElementChild.textContent === '{title}');"
        " return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent); })()"
    )


def click_title(page, title):
    page.evaluate(
        "[...document.querySelectorAll('table.sortable th')].find((h) => h.firstElementChild.textContent === "
        f"'{title}').id = 'wanted'"
    )
    page.click("#wanted button")
    page.evaluate("document.getElementById('wanted').removeAttribute('id')")


def test_a_click_on_a_title_sorts_by_number(tmp_path):
    report = write_report([read_run(LLAMA3)], tmp_path)
    with browser(tmp_path / "profile") as page:
        page.open(report.page)
        before = column(page, "in_graph_us")
        click_title(page, "in_graph_us")
        ascending = column(page, "in_graph_us")
        assert ascending == sorted(before, key=float) != before
        click_title(page, "in_graph_us")
        assert column(page, "in_graph_us") == ascending[::-1]
        click_title(page, "implementation")
        assert column(page, "implementation") == ["local"] * 10 + ["mosaic_gpu"] * 10 + ["xla"] * 10
        click_title(page, "busbw")
        assert column(page, "busbw")[-10:] == ["-"] * 10, "what has no value comes last"
        click_title(page, "busbw")
        assert column(page, "busbw")[-10:] == ["-"] * 10
        images = page.evaluate("[...document.images].map((image) => image.complete && image.naturalWidth > 500)")
        assert images == [True] * 4
        assert page.complaints == []
        assert {request.split(":")[0] for request in page.requests} == {"file", "data"}


def test_the_titles_of_a_long_table_stay_in_sight(tmp_path):
    row = article_rows()[0]
    rows = [dataclasses.replace(row, case=dataclasses.replace(row.case, m_shard=m)) for m in range(1, 301)]
    report = write_report([run_of(rows)], tmp_path)
    with browser(tmp_path / "profile") as page:
        page.open(report.page)
        assert page.evaluate("document.querySelector('figure').getBoundingClientRect().top") < 2000
        page.evaluate("document.querySelector('.wide').scrollTop = 1000")
        title, box = (
            page.evaluate(f"document.querySelector('.wide{inner}').getBoundingClientRect().top")
            for inner in (" th", "")
        )
        assert title == box
        click_title(page, "m_shard")
        click_title(page, "m_shard")
        assert column(page, "m_shard")[:2] == ["300", "299"]


def test_failures_are_seen_and_hostile_texts_do_nothing(tmp_path):
    hostile = "</td><script>document.title='injected'</script><img src=x onerror=\"document.title='injected'\">"
    rows = article_rows()
    run = run_of(
        [rows[0], failed(rows[1]), not_run(rows[2], hostile)], config=hostile, environment={"command": hostile}
    )
    report = write_report([run], tmp_path)
    with browser(tmp_path / "profile") as page:
        page.open(report.page)
        assert page.evaluate("document.title") == "cmkernel: article"
        assert page.evaluate("document.scripts.length") == 1
        assert page.evaluate("document.querySelector('.verdict').textContent").startswith("FAILED: 1 of 2 checks")
        click_title(page, "in_graph_us")
        click_title(page, "in_graph_us")
        assert column(page, "in_graph_us") == ["117.11", "not run", "FAILED"]
        assert page.complaints == []


def test_the_policy_of_the_page_refuses_other_scripts(tmp_path):
    report = write_report([run_of(article_rows())], tmp_path)
    text = report.page.read_text()
    report.page.write_text(text.replace("<h2>", "<script>document.title = 'injected'</script><h2>", 1))
    with browser(tmp_path / "profile") as page:
        page.open(report.page)
        assert page.evaluate("document.title").startswith("cmkernel: article")
        assert any("Content Security Policy" in complaint for complaint in page.complaints)
