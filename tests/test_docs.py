"""Documents of the project: links, commands, options and figures that they name are real."""

import dataclasses
import json
import re
from functools import cache

import pytest

from jobs.config.schema import Settings
from tests.paths import ROOT

README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
# The changelog also names options that are gone.
CURRENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
LOCALS, GATHERS = ("local", "local_cublas"), ("xla", "xla_cublas")
SIZES = re.compile(r"(\d+, \d+, \d+)(?: (bf16|f16))?$")


def named(pattern, documents=DOCUMENTS):
    """First groups of all matches, each with its document."""
    return [(path.name, match) for path in documents for match in re.findall(pattern, path.read_text())]


def anchors(path):
    """Anchors that GitHub makes of a document's headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_link_alive(document, link):
    target, _, anchor = link.partition("#")
    path = (document.parent / target).resolve() if target else document
    return path.exists() and (not anchor or anchor in anchors(path))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(document):
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text())
    assert [link for link in links if not is_link_alive(document, link)] == []


def test_a_dead_link_is_found():
    assert is_link_alive(README, "docs/clusters.md#first-the-doctor")
    assert not is_link_alive(README, "docs/clusters.md#no-such-heading")
    assert not is_link_alive(README, "docs/no_such_file.md")


def test_the_first_mention_of_the_tutorial_is_a_link():
    first = {path.name: path.read_text().partition("JAX tutorial") for path in CURRENT}
    following = {name: after for name, (_, mention, after) in first.items() if mention}
    assert following
    assert [name for name, after in following.items() if not after.startswith("](https://docs.jax.dev/")] == []


def test_modules_and_scripts_exist():
    modules = named(r"(?:python -m|--job) (jobs\.\w+)")
    scripts = named(r"\b(scripts/\w+\.\w+|benchmarks/programs/\w+\.\w+)")
    assert modules
    assert scripts
    runnable = {f"jobs.{path.stem}" for path in (ROOT / "jobs").glob("*.py") if "__main__" in path.read_text()}
    assert [module for module in modules if module[1] not in runnable] == []
    assert [script for script in scripts if not (ROOT / script[1]).is_file()] == []


def test_files_exist():
    paths = named(r"`((?:cmkernel|jobs|tests|conf|docs|benchmarks)/[\w./-]+)`", CURRENT)
    assert paths
    assert [path for path in paths if not (ROOT / path[1]).exists()] == []


def test_options_are_those_of_the_schema():
    groups = {field.name: field.default_factory for field in dataclasses.fields(Settings)}
    groups = {name: schema for name, schema in groups.items() if dataclasses.is_dataclass(schema)}
    options = {f"{group}.{field.name}" for group, schema in groups.items() for field in dataclasses.fields(schema)}
    mentions = named(rf"(?<![\w./])((?:{'|'.join(groups)})\.\w+)=", CURRENT)
    mentions += named(rf"`((?:{'|'.join(groups)})\.\w+)`", CURRENT)
    assert len(mentions) > 50
    # A file, and an option that the table is about to get.
    others = {"results.jsonl", "results.columns"}
    assert [mention for mention in mentions if mention[1] not in options | others] == []


def test_the_tests_that_faults_names_exist():
    sources = {path.name: path.read_text() for path in (ROOT / "tests/integration").glob("test_*.py")}
    page = (ROOT / "docs/faults.md").read_text()
    functions, files = set(re.findall(r"`(test_\w+)`", page)), set(re.findall(r"`(test_\w+\.py)`", page))
    assert functions
    assert files <= sources.keys()
    assert [name for name in functions if not any(f"def {name}(" in text for text in sources.values())] == []


def test_the_readme_is_short_and_begins_with_results():
    lines = README.read_text().splitlines()
    assert len(lines) <= 200
    assert sum(line.startswith("|") for line in lines[:40]) > 3
    assert "speedup" in next(line for line in lines[:40] if line.startswith("|"))


@cache
def measured(folder):
    """Times by sizes, dtype and implementation: the maximum over ranks of each rank's median."""
    times = {}
    for line in (ROOT / "benchmarks" / folder / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        sizes = ", ".join(str(row["case"][name]) for name in ("m_shard", "k", "n_shard"))
        dtype = {"bfloat16": "bf16", "float16": "f16"}[row["case"]["dtype"]]
        assert row["check"]["passed"]
        times.setdefault((sizes, dtype), {})[row["implementation"]] = row
    return times


def figures(rows, metric):
    def fastest(names):
        return min(rows[name][metric]["max"] for name in names if name in rows)

    kernel, local, gather = fastest(["mosaic_gpu"]), fastest(LOCALS), fastest(GATHERS)
    others = [fastest([name]) for name in ("jax_ring", "torch_fused") if name in rows]
    return kernel, local, kernel / local, gather, gather / kernel, others


SCATTER_HEADING = "## Matmul + reduce-scatter"
LOOPED = re.compile(
    r"looped D=(\d+) m_shard,k_shard,n=([\d,]+) .*: paced ([\d.]+) us, .* multiply alone ([\d.]+) .*"
    r"ratio ([\d.]+), link over multiply ([\d.]+), 0 wrong"
)


def shown(time_us):
    return f"{time_us:.1f}" if time_us < 1000 else f"{time_us:.0f}"


def tables(text):
    """Rows whose first cell ends with sizes and that hold figures, without their first cell."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 5 and (sizes := SIZES.search(cells[0])):
            yield (sizes[1], sizes[2] or "bf16"), cells[1:]


def rows_of(key):
    found = [run[key] for run in map(measured, ("2026-11-30_main_2xH200", "2026-11-30_llama3_2xH200")) if key in run]
    assert len(found) == 1, key
    return found[0]


def test_the_readme_has_the_figures_of_its_rows():
    found = list(tables(README.read_text()))
    assert len(found) == 14
    for key, cells in found:
        kernel, local, ratio, gather, speedup, _ = figures(rows_of(key), "in_graph_us")
        assert cells == [shown(kernel), shown(gather), shown(local), f"{ratio:.2f}", f"{speedup:.2f}"], key


def test_the_kernels_page_has_the_figures_of_its_rows():
    page = (ROOT / "docs" / "kernel.md").read_text()
    found = list(tables(page.partition(SCATTER_HEADING)[0]))
    assert len(found) == 19
    for key, cells in found:
        kernel, local, ratio, *_ = figures(rows_of(key), "kernel_us")
        expected = [shown(kernel), shown(local), f"{ratio:.2f}"]
        kernel, local, ratio, gather, speedup, others = figures(rows_of(key), "in_graph_us")
        expected += [shown(kernel), shown(local), f"{ratio:.2f}", shown(gather), f"{speedup:.2f}", *map(shown, others)]
        assert cells == expected, key


def test_the_kernels_page_has_the_looped_figures_of_reduce_scatter():
    lines = (ROOT / "benchmarks" / "2026-12-01_looped_scatter_H200.txt").read_text().splitlines()
    looped = {}
    for line in lines:  # later lines are of the kernel that landed
        if row := LOOPED.match(line):
            ranks, sizes, kernel, alone, ratio, link = row.groups()
            looped[sizes.replace(",", ", "), ranks] = [*map(shown, (float(kernel), float(alone))), ratio, link]
    page = (ROOT / "docs" / "kernel.md").read_text()
    found = list(tables(page.partition(SCATTER_HEADING)[2]))
    assert len(found) == 10
    for (sizes, _), (ranks, kernel, alone, ratio, link) in found:
        expected = looped[sizes, ranks]
        assert [kernel, alone, link] == [*expected[:2], expected[3]], sizes
        assert ratio == f"{float(expected[2]):.2f}", sizes


def test_documents_have_no_long_transcripts():
    for path in DOCUMENTS:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
        transcripts = [block for language, block in blocks if language != "python"]
        assert [block for block in transcripts if block.count("\n") > 20] == [], path.name
