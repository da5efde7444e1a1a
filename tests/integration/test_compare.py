"""Runs of the real job compared by the real program: the same checkout twice, and one whose ring is slow."""

import shutil
import subprocess
import sys

import pytest

from tests.integration.bench_process import QUICK, ROOT, environment, run

ONE_ROW = (*QUICK, "kernel=ppermute", "problem.m_shard=64", "timing.baselines=[]")
# On CPUs nothing is assumed of few runs, unless it is asked for: here, that one run takes up to several times as long
# as another one, as on a machine that does other things too.
SPREAD = ("--spread", "100%")
FAIL_OVER = ("--fail-over", "3%")
# Behind the ring's module. Each multiply depends on the one before and adds nothing: the results stay right.
MANY_TIMES = """
_dot = dot
def dot(lhs, rhs, **options):
    again = lambda _, out: _dot(lhs + (0 * out[:1, :1]).astype(lhs.dtype), rhs, **options)
    return lax.fori_loop(0, 1000, again, _dot(lhs, rhs, **options))
"""


def compare(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "jobs.compare", *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True
    )


def in_slow_checkout(tmp_path):
    """How ``run`` runs this checkout, but with a ring that multiplies each shard a thousand times."""
    folder = tmp_path / "checkout"
    for package in ("cmkernel", "jobs", "conf"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "cmkernel" / "ppermute.py", "a") as module:
        module.write(MANY_TIMES)
    return {"root": folder, "PYTHONPATH": str(folder)}


@pytest.mark.slow
def test_a_slow_ring_is_found_and_the_same_one_raises_no_alarm(tmp_path):
    base = [str(tmp_path / name) for name in ("base0", "base1")]
    for path in base:
        assert run(*ONE_ROW, f"run_dir={path}").code == 0
    slow = str(tmp_path / "slow")
    finished = run(*ONE_ROW, f"run_dir={slow}", **in_slow_checkout(tmp_path))
    assert finished.code == 0, "slow, and right: " + finished.stderr

    same = compare(*base, *SPREAD, *FAIL_OVER)
    assert same.returncode == 0, same.stdout + same.stderr
    assert "1 compared: 1 too few runs" in same.stdout
    slower = compare("--base", *base, "--new", slow, *SPREAD, *FAIL_OVER)
    assert slower.returncode == 1, slower.stdout + slower.stderr
    assert "1 compared: 1 slower" in slower.stdout
    assert "REGRESSION: ppermute on m_shard=64 k=256 n_shard=256 bfloat16 D=2" in slower.stdout
    unknown = compare("--base", *base, "--new", slow, *FAIL_OVER)
    assert unknown.returncode == 0, unknown.stdout + unknown.stderr
    assert "1 compared: 1 too few runs" in unknown.stdout
    assert "no verdict is possible" in unknown.stdout
