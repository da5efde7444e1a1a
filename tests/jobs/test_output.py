"""Output that can't be written stops nothing and changes no exit code."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

# Much more than a buffer, then the end of the process as an entry point makes it.
PROGRAM = """
import logging, sys
from jobs.output import keep_output
keep_output()
logging.basicConfig()
for number in range(20_000):
    print(f"line {number}", flush=number % 100 == 0)
sys.exit(4)
"""


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "| head -1", "2>&- >&-", "2>/dev/full >/dev/full"])
def test_the_exit_code_is_the_programs(redirection, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = f'{{ "{sys.executable}" "{tmp_path / "program.py"}"; echo $? >"{tmp_path / "code"}"; }} {redirection}'
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (tmp_path / "code").read_text() == "4\n"
    assert "Traceback" not in done.stderr
    if redirection == "| head -1":
        assert done.stderr == ""
    if redirection == ">/dev/full":
        assert done.stderr.count("standard output can't be written: ") == 1


def test_what_can_be_written_is_written():
    program = PROGRAM.replace("20_000", "3")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "line 0\nline 1\nline 2\n"
    assert done.stderr == ""
