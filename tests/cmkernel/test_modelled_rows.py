"""The table of modelled rows in the docs is what its program prints."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

from cmkernel import h200
from tests.paths import ROOT

PROGRAM = ROOT / "benchmarks" / "programs" / "modelled_rows.py"
DOCS = ROOT / "docs" / "kernel.md"
RENEW = "run PYTHONPATH=. python benchmarks/programs/modelled_rows.py --write"


@pytest.fixture
def modelled_rows():
    spec = importlib.util.spec_from_file_location("modelled_rows", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_docs_have_what_the_program_prints():
    printed = subprocess.run(
        [sys.executable, PROGRAM], env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert printed.count("\n") == 5
    assert printed in DOCS.read_text(), RENEW


def test_each_heading_says_modelled_or_measured(modelled_rows):
    assert all(("MODELLED" in heading) != ("measured" in heading) for heading in modelled_rows.HEADINGS[1:])


def test_a_table_of_other_models_is_replaced_and_nothing_else(modelled_rows, monkeypatch):
    docs = DOCS.read_text()
    monkeypatch.setattr(h200, "MULTIPLY_ADD_US", 2 * h200.MULTIPLY_ADD_US)
    stale = modelled_rows.with_table(docs)
    assert stale != docs
    monkeypatch.undo()
    assert modelled_rows.with_table(stale) == docs
    # At the end of the file, too.
    start = docs.index("| D | tutorial's kernel")
    end = docs.index("\n\n", start) + 1
    assert modelled_rows.with_table(docs[:end]) == docs[:end]


def test_write_renews_the_docs_of_its_checkout(tmp_path):
    """Without the rows, the program puts them where the headings are."""
    program, docs = tmp_path / "benchmarks" / "programs" / PROGRAM.name, tmp_path / "docs" / DOCS.name
    for path in (program, docs):
        path.parent.mkdir(parents=True)
    shutil.copy(PROGRAM, program)
    lines = DOCS.read_text().splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("| D | tutorial's kernel"))
    docs.write_text("".join(lines[: start + 1] + lines[start + 5 :]))
    subprocess.run(
        [sys.executable, program, "--write"], env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, check=True
    )
    assert docs.read_text() == DOCS.read_text()
