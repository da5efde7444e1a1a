"""The report in a real browser, from a file and without a network."""

import dataclasses
import io

import pytest
from PIL import Image

from jobs.records.environment import Environment
from jobs.results.disk.recorded_run import read_run
from jobs.results.report import write_report
from tests.integration.browser import BINARY, browser
from tests.jobs.run_rows import LLAMA3, article_rows, failed, not_run, run_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="no chromium: apt-get install chromium"),
]


def column(page, title):
    """The cells of a column of the first table that has it, from top to bottom."""
    return page.evaluate(
        "(() => { const table = [...document.querySelectorAll('table.sortable')].find((t) =>"
        f" [...t.tHead.rows[0].cells].some((h) => h.firstElementChild.textContent === '{title}'));"
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
        assert page.evaluate("document.querySelector('.wide').getBoundingClientRect().height") < 1000
        page.evaluate("document.querySelector('.wide').scrollTop = 1000")
        title, box = (
            page.evaluate(f"document.querySelector('.wide{inner}').getBoundingClientRect().top")
            for inner in (" th", "")
        )
        assert title == box
        click_title(page, "m_shard")
        click_title(page, "m_shard")
        assert column(page, "m_shard")[:2] == ["300", "299"]


def test_on_a_phone_tables_scroll_in_their_own_box_and_pictures_fit(tmp_path):
    report = write_report([read_run(LLAMA3)], tmp_path)
    with browser(tmp_path / "profile") as page:
        page.emulate(width=390)
        page.open(report.page)
        assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        assert page.evaluate("document.querySelector('.wide').scrollWidth") > 390
        widths = page.evaluate("[...document.images].map((image) => image.getBoundingClientRect().right)")
        assert max(widths) <= 390
        page.evaluate("document.images[0].focus()")
        assert page.evaluate("document.images[0].getBoundingClientRect().width") > 500, "at its full size"
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_decimal_points_stand_below_each_other(tmp_path):
    report = write_report([read_run(LLAMA3)], tmp_path)
    points = """(() => { const table = document.querySelector('table.sortable');
        const at = [...table.tHead.rows[0].cells].findIndex((h) => h.firstElementChild.textContent === 'in_graph_us');
        return [...table.tBodies[0].rows].map((row) => { const range = document.createRange();
          const text = row.cells[at].firstChild, point = text.data.indexOf('.');
          range.setStart(text, point); range.setEnd(text, point + 1);
          return range.getBoundingClientRect().left; }); })()"""
    with browser(tmp_path / "profile") as page:
        page.open(report.page)
        places = page.evaluate(points)
        assert max(places) - min(places) < 0.5, "less than half a pixel"


FORCED = "--enable-features=WebContentsForceDark"


@pytest.mark.parametrize(("dark", "options"), [(True, ()), (True, (FORCED,)), (False, (FORCED,))])
def test_dark_pages_have_light_text_and_pictures_with_black_text_on_white(dark, options, tmp_path):
    report = write_report([read_run(LLAMA3)], tmp_path)
    with browser(tmp_path / "profile", options=options) as page:
        page.emulate(width=1280, dark=dark)
        page.open(report.page)
        # Shades from 0, black, to 255; a picture's own ones are those of its PNG.
        shades = [Image.open(io.BytesIO(page.screenshot(part))).convert("L") for part in ("dl", ".card img")]
        (back, _), *_ = shades[0].getextrema(), None
        assert back < 40 < 200 < shades[0].getextrema()[1]
        counts = shades[1].histogram()
        assert max(range(256), key=counts.__getitem__) == 255
        assert sum(counts[:40]) > 2000, "black text"


def test_failures_are_seen_and_hostile_texts_do_nothing(tmp_path):
    hostile = "</td><script>document.title='injected'</script><img src=x onerror=\"document.title='injected'\">"
    rows = article_rows()
    run = run_of(
        [rows[0], failed(rows[1]), not_run(rows[2], hostile)], config=hostile, environment=Environment(command=hostile)
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
