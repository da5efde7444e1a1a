"""The report: what its page says, and what it can't be made to say."""

import base64
import dataclasses
import html.parser
import json
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

from jobs import report
from jobs.driver import conclusion
from jobs.driver.outcome import Outcome
from jobs.errors import UsageError
from jobs.records.environment import Environment
from jobs.results.disk.recorded_run import read_run, read_runs
from jobs.results.report import tables, write_report
from tests.jobs.run_rows import ARTICLE, BENCHMARKS, LLAMA3, article_rows, failed, not_run, run_of

ROOT = BENCHMARKS.parent
# Text that a config or an error may contain.
HOSTILE = """</td></pre><script>document.title="injected"</script><img src=x onerror='alert(1)'> & "quotes" ${title}"""


class Page(html.parser.HTMLParser):
    """The page as a browser takes it: tables as lists of cells, all elements, all text."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self.attributes, self.text = [], [], [], ""
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "button"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "button"):
            self._in_cell = False

    def handle_data(self, data):
        self.text += data
        if self._in_cell:
            self.tables[-1][-1][-1] += data


def written(runs, folder):
    made = write_report(runs, folder)
    assert made.drawn.failures == {}
    return made.page.read_text()


@pytest.fixture(scope="module")
def article_page(tmp_path_factory):
    return written([read_run(ARTICLE)], tmp_path_factory.mktemp("article"))


def test_the_table_has_a_line_for_each_row(article_page):
    results = Page(article_page).tables[0]
    assert results[0][:8] == ["case", "op", "m_shard", "k", "n_shard", "type", "D", "implementation"]
    assert len(results) == 1 + 10
    line = dict(zip(results[0], results[1], strict=True))
    assert (line["implementation"], line["in_graph_us"], line["TF/s"], line["#wrong"]) == (
        *("mosaic_gpu", "117.11", "586.80", "0"),
    )
    assert "mosaic_gpu_simple" in results[2], "names aren't cut as on a terminal"


def test_the_page_opens_with_what_where_when_and_the_answers(tmp_path):
    run = read_run(ARTICLE)
    environment = dataclasses.replace(run.environment, git_sha="abcdef0123456789" + "0" * 24 + "-dirty")
    run = dataclasses.replace(run, environment=environment)
    page = written([run], tmp_path)
    text = Page(page).text
    places = [
        text.index(part)
        for part in (
            "All 10 checks passed",
            "2 cases in float16, bfloat16; D = 2 ranks; mosaic_gpu, mosaic_gpu_simple, ppermute, xla, local",
            "2 x NVIDIA H200 on 1 host (vm), jax 0.11.2, nccl 2.30.7, driver 580.159.04",
            "2026-11-29 23:44 to 2026-11-29 23:44 UTC",
            "abcdef012345-dirty",
            "article m_shard=1024 k=4096 n_shard=4096 float16 D=2: mosaic_gpu is fastest, 117.11 us",
            "article m_shard=1024 k=4096 n_shard=4096 bfloat16 D=2: mosaic_gpu is fastest",
        )
    ]
    assert places == sorted(places)
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == ["Answers", "Pictures", "Results", "What ran", "Command"]


def test_decimal_points_stand_below_each_other():
    pads = tables._pads(["1470.3", "654.34", "0.9956", "7", "-", "FAILED", "1.2e+05"])
    assert pads == [*(f' data-pad="{pad}"' for pad in ("000", "00")), "", ' data-pad=".0000"', "", "", ""]
    assert tables._pads(["1", "20"]) == ["", ""], "whole numbers alone have no point"


def test_the_decimals_of_a_page_are_padded(article_page):
    for cells in re.findall(r"<tr[^>]*>(.*?)</tr>", article_page):
        for pad, cell in re.findall(r'<td class=""(?: data-pad="([.0]*)")?>([^<]*)</td>', cells):
            assert not pad or re.fullmatch(r"-?\d+(\.\d+)?", cell)
    # Column by column, cells and pads have the same number of decimals.
    body = article_page.split("<h2>Results</h2>")[1].split("</tbody>")[0]
    lines = [re.findall(r'<td class="[^"]*"(?: data-pad="([.0]*)")?>([^<]*)</td>', line) for line in body.split("<tr")]
    for column in zip(*(line for line in lines if line), strict=True):
        numbers = [cell + pad for pad, cell in column if re.fullmatch(r"-?\d+(\.\d+)?", cell)]
        assert len({len(number.partition(".")[2]) for number in numbers}) <= 1, column


def test_the_page_has_a_dark_side_and_fits_a_phone(article_page):
    assert '<meta name="color-scheme" content="light dark">' in article_page
    assert "@media (prefers-color-scheme: dark)" in article_page
    assert 'content="width=device-width, initial-scale=1"' in article_page
    style = article_page.split("<style>")[1].split("</style>")[0]
    named = set(re.findall(r"var\((--[a-z-]+)\)", style))
    light, dark = (set(re.findall(r"(--[a-z-]+): #", part)) for part in style.split("@media (prefers-color-scheme")[:2])
    assert named == light == dark, "each colour has both sides"


def test_command_environment_config_and_configs_are_there(article_page):
    text = Page(article_page).text
    assert "python -m jobs.bench kernel=mosaic_gpu problem=article problem.dtype=[f16,bf16]" in text
    for expected in (
        "members[1].gpu_uuid",
        "GPU-455de922",
        "versions.jax",
        "0.11.2",
        "chain_length: 16",
        "num_chunks=4",
    ):
        assert expected in text
    assert "All 10 checks passed" in text


def test_pictures_are_inside_and_nothing_is_outside(article_page):
    page = Page(article_page)
    sources = [value for tag, name, value in page.attributes if name in ("src", "href")]
    assert len(sources) == page.tags.count("img") == 4
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not re.search(r"https?://|url\(|@import", article_page)
    texts = {value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")}
    assert len(texts) == 4
    assert all(texts)
    # Without it a browser that forces dark pages turns their black text white, on white.
    pictures = [base64.b64decode(source.partition(",")[2]) for source in sources]
    assert all(b'<svg style="color-scheme: only light"' in picture for picture in pictures)


def test_failed_checks_and_rows_that_did_not_run_stand_out(tmp_path):
    rows = article_rows()
    page = written([run_of([rows[0], failed(rows[1]), rows[2], not_run(rows[3], "torch is missing")])], tmp_path)
    found = Page(page)
    assert "FAILED: 1 of 3 checks; 1 of 4 rows not run" in found.text
    assert "FAILED" in found.tables[1][2]
    assert "not run" in found.tables[1][4]
    (_, line) = found.tables[0]
    assert line[6:] == ["mosaic_gpu_simple", "1", "123", "100663296", "0.126", "inf", "0.00061", "exact"]
    assert "torch is missing" in found.text
    classes = [value for tag, name, value in found.attributes if (tag, name) == ("tr", "class")]
    assert classes[:5] == ["failed", "", "failed", "", "not_run"]


def test_texts_cannot_break_out_of_their_place(tmp_path):
    rows = article_rows()
    config = f"problem:\n  name: {HOSTILE}\n"
    run = run_of(
        [rows[0], not_run(rows[1], HOSTILE)],
        config=config,
        environment=Environment(command=HOSTILE, versions={HOSTILE: HOSTILE}),
    )
    page = Page(written([run], tmp_path))
    assert page.tags.count("script") == 1
    assert page.tags.count("img") == 4
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    # Everywhere as it was written: the reason, the config, the command, two values and a name of the environment.
    assert page.text.count(HOSTILE) == 6


def test_each_table_of_several_runs_and_islands_says_where_a_row_is_from(tmp_path):
    row = article_rows()[0]
    rows = [dataclasses.replace(row, island="rack1"), failed(dataclasses.replace(row, island="rack2"))]
    one = dataclasses.replace(run_of(rows), path=tmp_path / "monday" / "run")
    page = Page(written([one], tmp_path))
    for table, islands in zip(page.tables[:3], (["rack2"], ["rack1", "rack2"], ["rack1", "rack2"]), strict=True):
        assert table[0][:2] == ["island", "case"]
        assert [line[0] for line in table[1:]] == islands
    other = dataclasses.replace(run_of([row]), path=tmp_path / "tuesday" / "run")
    names = [str(one.path), str(one.path), str(other.path)]
    for table, expected in zip(
        Page(written([one, other], tmp_path)).tables[:3], (names[1:2], names, names), strict=True
    ):
        assert table[0][:3] == ["run", "island", "case"]
        assert [line[0] for line in table[1:]] == expected, "paths, as both are called run"


def test_a_title_of_many_cases_is_short(tmp_path):
    row = article_rows()[0]
    rows = [dataclasses.replace(row, case=dataclasses.replace(row.case, name=f"layer{n}")) for n in range(200)]
    page = written([run_of(rows)], tmp_path)
    title = "cmkernel: layer0, layer1, layer2, layer3, layer4, layer5 and 194 more on 2 x NVIDIA H200"
    assert f"<title>{title}</title>" in page
    assert f"<h1>{title}</h1>" in page


def test_a_run_that_ended_before_its_first_row(tmp_path):
    (tmp_path / "results.jsonl").touch()
    assert "Nothing was checked" in written([read_run(tmp_path)], tmp_path)


# The command


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "jobs.report", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_reports_on_any_run_directory(tmp_path):
    done = command(LLAMA3, "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"# Report  : {tmp_path}/report.html"
    assert "All 30 checks passed" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "pictures" / "utilisation.png").stat().st_size > 10_000
    assert not (LLAMA3 / "report.html").exists()


def test_a_multiruns_folder_stands_for_its_points(tmp_path):
    for number in (0, 1, 10):
        shutil.copytree(ARTICLE, tmp_path / str(number))
    runs = read_runs([tmp_path])
    assert [run.path.name for run in runs] == ["0", "1", "10"]
    page = Page(written(runs, tmp_path / "out"))
    assert page.tables[0][0][:2] == ["run", "case"]
    assert [line[0] for line in page.tables[0][1:]] == ["0"] * 10 + ["1"] * 10 + ["10"] * 10


def test_usage_errors_name_what_is_wrong(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2
    expected = f"usage_error: RUN_DIR={tmp_path} holds neither a results.jsonl nor folders with one\n"
    assert capsys.readouterr().err == expected
    (tmp_path / "results.jsonl").write_text("no row\n")
    assert report.main([str(tmp_path)]) == 2
    assert f"{tmp_path}/results.jsonl:1: not a row" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_of:
        report.main([])
    assert exit_of.value.code == 2


def test_a_bug_exits_with_3_and_says_where_its_traceback_is(tmp_path, monkeypatch, capsys):
    def broken(runs, folder):
        raise KeyError("no such column")

    monkeypatch.setattr("jobs.results.report.write_report", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert report.main([str(ARTICLE)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    (path,) = tmp_path.iterdir()
    assert line == f"bug: KeyError: 'no such column' (traceback: {path})"
    assert "in broken" in path.read_text()


@pytest.mark.parametrize("environment", ["[]", "null", '{"members": 3}', '{"members": [0]}', '{"islands": 1}'])
def test_an_environment_that_is_none_of_a_job_is_named(environment, tmp_path):
    (tmp_path / "results.jsonl").touch()
    (tmp_path / "environment.json").write_text(environment)
    with pytest.raises(UsageError, match=f"{tmp_path}/environment.json: not written by a job"):
        read_run(tmp_path)


def test_runs_of_different_devices_share_no_report(tmp_path):
    shutil.copytree(ARTICLE, tmp_path / "gpu")
    shutil.copytree(ARTICLE, tmp_path / "other")
    environment = json.loads((tmp_path / "other" / "environment.json").read_text())
    environment["members"][0]["device_kind"] = "cpu"
    (tmp_path / "other" / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(UsageError, match=r"different devices \(NVIDIA H200, cpu\)"):
        read_runs([tmp_path])


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert report.main([str(ARTICLE), "--out", str(tmp_path / "file")]) == 3
    assert f"{tmp_path}/file: the report can't be written" in capsys.readouterr().err


def test_the_rows_of_hundreds_of_hosts_are_left_to_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "results.jsonl").write_text("{}\n" * 100)
    outcome = Outcome()
    outcome.run_dir = tmp_path
    monkeypatch.setattr(conclusion, "MAX_REPORTED_MIB", 1e-6)
    assert conclusion._report(outcome) == {}
    assert f"MiB of rows are left to python -m jobs.report {tmp_path}" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()
