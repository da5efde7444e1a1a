"""Runs of the real job compared by the real program: the same checkout twice, and one whose ring is slow."""

import pytest

from tests.integration.bench_process import QUICK, run
from tests.integration.comparison import FAIL_OVER, SPREAD, compare, in_slow_checkout

ONE_ROW = (*QUICK, "kernel=ppermute", "problem.m_shard=64", "timing.baselines=[]")


@pytest.mark.slow
def test_a_slow_ring_is_found_and_the_same_one_raises_no_alarm(tmp_path):
    # Two points of a sweep that are the same.
    swept = run("-m", *ONE_ROW, "check.calls=1,1", HOME=str(tmp_path))
    assert swept.code == 0, swept.stderr
    base = swept.result["run_dirs"]
    assert len(base) == 2
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
