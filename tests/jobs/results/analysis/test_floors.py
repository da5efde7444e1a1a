"""Floors of the multiply alone, with the rows of two real GPUs."""

import dataclasses

import pytest

from jobs.records.row import HEADLINE
from jobs.results.analysis.floors import slow_ranks
from jobs.results.disk.recorded_run import read_run
from tests.jobs.run_rows import BENCHMARKS, article_rows

MEASURED = sorted({path.parent for path in BENCHMARKS.rglob("results.jsonl")})


def slowed(row, factor, rank=None):
    """The same row, had its ranks, or one of them, taken longer."""
    samples = {
        name: [
            [[time * factor if rank in (None, index) else time for time in burst] for burst in bursts]
            for index, bursts in enumerate(ranks)
        ]
        for name, ranks in row.samples_us.items()
    }
    rate = row.derived.tflops_per_gpu / factor
    derived = dataclasses.replace(row.derived, tflops_per_gpu=rate, utilisation=row.derived.utilisation / factor)
    return dataclasses.replace(row, samples_us=samples, derived=derived)


@pytest.mark.parametrize("run_dir", MEASURED, ids=lambda path: path.name)
def test_healthy_gpus_pass_by_default(run_dir):
    assert slow_ranks(read_run(run_dir).rows, None) == []


def test_gpus_that_are_equally_slow_fail_by_default():
    (local,) = [row for row in article_rows() if row.implementation == "local"]
    assert slow_ranks([slowed(local, 1.2)], None) == []
    slow = slow_ranks([slowed(local, 2.0)], None)
    assert [text.split(" has ")[0] for text in slow] == ["rank 0", "rank 1"]
    assert all(text.endswith("at least 445.2 are needed") for text in slow)


def test_a_given_floor_counts_for_each_rank_and_size():
    (local,) = [row for row in article_rows() if row.implementation == "local"]
    slower = slowed(local, 1.5, rank=1)
    (text,) = slow_ranks([slower], 500.0)
    assert text.startswith("rank 1 has ")
    assert slow_ranks([slower], 100.0) == []
    small = dataclasses.replace(local, case=dataclasses.replace(local.case, m_shard=8))
    assert slow_ranks([small], None) == [], "too small to fill a GPU"
    assert len(slow_ranks([small], 500.0)) == 2
    assert HEADLINE in local.samples_us


def test_the_faster_of_both_multiplies_counts():
    (local,) = [row for row in article_rows() if row.implementation == "local"]
    assert slow_ranks([slowed(local, 3.0), dataclasses.replace(local, implementation="local_cublas")], 500.0) == []
    others = [row for row in article_rows() if row.implementation != "local"]
    assert slow_ranks(others, 5000.0) == []
