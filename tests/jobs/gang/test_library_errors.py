"""Errors of other processes, as they really end."""

import subprocess
import sys

import pytest

from jobs.gang.library_errors import fatal_error, is_version_mismatch

MISMATCH = (
    "from ray._private.utils import check_version_info as check\n"
    "check({'ray_version': '2.9.0', 'python_version': '3.11.4'}, 'node 10.0.0.1:6379')"
)
LOGGED_LATER = (
    "\nimport atexit, sys; atexit.register(sys.stderr.write, '[2026-12-01 10:00:00,1 E 7 7] a log line\\n')\n"
)


@pytest.mark.parametrize("before", ["", LOGGED_LATER], ids=["alone", "a log line follows"])
def test_all_lines_of_rays_version_check(before):
    text = fatal_error(stderr_of(before + MISMATCH))
    assert text is not None
    expected = (
        "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.9.0 Python: 3.11.4 "
        "This process on node 10.0.0.1:6379 was started with: Ray: "
    )
    assert text.startswith(expected)
    assert text.endswith("Python: " + sys.version.split()[0])
    assert is_version_mismatch(text)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise OSError(5, 'gone')", "OSError: [Errno 5] gone"),
        ("raise ValueError('one\\n\\nTypeError: two')", "ValueError: one TypeError: two"),
        ("class Stop(BaseException): pass\nraise Stop('now')", "Stop: now"),
        ("try: 1 / 0\nexcept ZeroDivisionError: raise KeyError('second\\nline')", r"KeyError: 'second\nline'"),
        ("import sys; print('F x.cc:3: Check failed: a == b why', file=sys.stderr)", "Check failed: a == b why"),
        ("raise SystemExit(3)", None),
    ],
)
def test_the_last_error(program, expected):
    assert fatal_error(stderr_of(program)) == expected


def stderr_of(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return done.stderr
