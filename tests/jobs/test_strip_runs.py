"""benchmarks/programs/strip_runs.py keeps everything of a run that jobs.compare reads."""

import copy
import os
import subprocess
import sys

import numpy as np
import pytest

from jobs.comparison.comparison import compare
from jobs.comparison.loading import load_side
from tests.jobs.comparison.simulated_runs import ENVIRONMENT, Noise, row, samples, write_run
from tests.paths import ROOT

PROGRAM = ROOT / "benchmarks" / "programs" / "strip_runs.py"


def test_a_stripped_run_compares_as_the_whole_one_and_names_nobody(tmp_path):
    environment = copy.deepcopy(ENVIRONMENT) | {"user": "somebody", "driver_host": "somewhere"}
    for member in environment["members"]:
        member["host"] = "somewhere"
    rng = np.random.default_rng(0)
    times = [samples(rng, [100.0], Noise())[0] for _ in range(6)]
    rows = [row({"in_graph_us": t}, kernels_us={"somebody's kernel": 1.0}) for t in times]
    whole = [write_run(tmp_path / f"run{i}", [r], environment=environment) for i, r in enumerate(rows)]
    subprocess.run(
        [sys.executable, PROGRAM, "--to", tmp_path / "data", "--first", "8", *whole],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    stripped = sorted((tmp_path / "data").iterdir())
    assert [path.name for path in stripped] == ["08", "09", "10", "11", "12", "13"]
    found = []
    for paths in (whole, stripped):
        runs = load_side("runs", [str(path) for path in paths])
        found.append(compare(runs[::2], runs[1::2], metric="in_graph_us"))
    (before,), (after,) = (comparison.rows for comparison in found)
    assert after.verdict is before.verdict
    assert (after.change.low, after.change.high) == pytest.approx((before.change.low, before.change.high), abs=1e-4)
    assert found[0].warnings == found[1].warnings == []
    for path in stripped:
        text = "".join(file.read_text() for file in path.iterdir())
        assert "some" not in text
        assert str(tmp_path) not in text
