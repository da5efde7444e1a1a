"""False alarms and the smallest visible difference, on pairs of runs of one config recorded on 2x H200.

The runs are numbered: 0 and 1 are the first pair. benchmarks/programs/strip_runs.py made them from run directories.
"""

import dataclasses
import math

import numpy as np
import pytest

from jobs.comparison.comparison import GPU_SPREAD, compare
from jobs.comparison.loading import load_side
from jobs.comparison.matching import match
from jobs.comparison.statistics import Verdict, run_time_us
from tests.paths import DATA

FOLDER = DATA / "pairs_2xH200"
METRICS = ("in_graph_us", "kernel_us", "call_us")


@pytest.fixture(scope="module")
def pairs():
    runs = load_side("recorded", sorted(map(str, FOLDER.iterdir())))
    assert len(runs) >= 18, "9 pairs"
    return list(zip(runs[::2], runs[1::2], strict=True))


def sides(pairs):
    return [base for base, _ in pairs], [new for _, new in pairs]


def made_slower(run, factor):
    """The run, with each of its samples that much longer."""
    rows = [
        dataclasses.replace(
            row, samples_us={name: (np.array(times) * factor).tolist() for name, times in row.samples_us.items()}
        )
        for row in run.rows
    ]
    return dataclasses.replace(run, rows=tuple(rows))


def alarms(found):
    return [row for row in found.rows if row.verdict in (Verdict.slower, Verdict.faster)]


def smallest_visible(found):
    """A longer time shifts the interval and leaves its width: the least change, relative, whose interval excludes 0."""
    widths = [(math.log1p(row.change.high) - math.log1p(row.change.low)) / 2 for row in found.rows]
    return math.expm1(max(widths))


@pytest.mark.parametrize("metric", METRICS)
def test_at_most_1_of_20_pairs_raises_a_false_alarm(pairs, metric):
    alarmed = [i for i, (base, new) in enumerate(pairs) if alarms(compare([base], [new], metric=metric))]
    assert len(alarmed) <= len(pairs) / 20, f"pairs {alarmed}"


def test_no_false_alarm_where_the_runs_show_their_own_scatter(pairs):
    groups = [pairs[i : i + 5] for i in range(0, len(pairs), 5)]
    alarmed = [group for group in groups if alarms(compare(*sides(group), metric="in_graph_us"))]
    assert alarmed == []


@pytest.mark.parametrize(("num_runs", "percent"), [(1, 20), (5, 10), (20, 5)])
def test_the_smallest_visible_difference(pairs, num_runs, percent, capsys):
    groups = [pairs[i : i + num_runs] for i in range(0, len(pairs), num_runs)]
    visible = [smallest_visible(compare(*sides(group), metric="in_graph_us")) for group in groups]
    with capsys.disabled():
        shown = f"a difference of {100 * np.median(visible):.1f} % shows (median of {len(visible)})"
        print(f"\n{len(groups[0])} a side: {shown}")
    assert 100 * np.median(visible) <= percent


def test_a_planted_slowdown_is_found_in_every_pair(pairs):
    for base, new in pairs:
        found = compare([base], [made_slower(new, 2)], metric="in_graph_us", fail_over=0.03)
        assert {row.verdict for row in found.rows} == {Verdict.slower}
        assert len(found.regressions) == len(found.rows)


def test_the_scatter_that_is_assumed_of_few_runs_is_not_below_the_recorded_one(pairs):
    base, new = sides(pairs)
    for pair in match(base, new, "in_graph_us").pairs:
        logs = np.log([run_time_us(samples) for samples in (*pair.base, *pair.new)])
        assert np.std(logs, ddof=1) <= math.log1p(GPU_SPREAD), pair.key
