"""The table of modelled rows in the docs is what its program prints."""

import importlib.util
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
