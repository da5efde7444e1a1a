import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.comparison.statistics import MIN_RUNS, Verdict, change, run_time_us
from jobs.records.row import HEADLINE, TIMES
from tests.jobs.comparison.simulated_runs import Noise, samples
from tests.paths import ROOT

RECORDED = sorted((ROOT / "benchmarks").glob("*/results.jsonl"))
GPU = Noise()
# CPU ranks on a machine that does other things too.
BUSY = Noise(run=0.2, case=0.2, burst=0.1, sample=0.2)
# Nothing but bursts: what a run shows of its own noise is all there is.
BURSTS = Noise(run=0, case=0, burst=0.02, sample=0.005)


def verdicts(rng, noise, *, runs, factors, spread=None, bursts=6):
    """Verdicts of a table whose cases change by ``factors`` from BASE to NEW."""
    base_us = np.linspace(50, 2000, len(factors))
    base = [samples(rng, base_us, noise, bursts=bursts) for _ in range(runs[0])]
    new = [samples(rng, base_us * factors, noise, bursts=bursts) for _ in range(runs[1])]
    return [
        change(
            [run[i] for run in base], [run[i] for run in new], num_cases=len(factors), assumed_spread=spread
        ).verdict(0.03)
        for i in range(len(factors))
    ]


def alarm_rate(noise, *, runs, tables, num_cases=6, **options):
    """Share of tables without any difference that show one."""
    rng = np.random.default_rng(0)
    same = np.ones(num_cases)
    alarms = [
        any(v in (Verdict.slower, Verdict.faster) for v in verdicts(rng, noise, runs=runs, factors=same, **options))
        for _ in range(tables)
    ]
    return sum(alarms) / tables


@pytest.mark.parametrize("journal", RECORDED, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("metric", TIMES)
def test_the_statistic_of_a_run_is_the_headline_of_its_row(journal, metric):
    # Not through jobs.results.disk.journal: these rows were recorded once, under whatever format version.
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    measured = [row for row in rows if metric in row["samples_us"]]
    # Candidates are timed in chains alone.
    assert measured or metric != HEADLINE
    for row in measured:
        assert run_time_us(row["samples_us"][metric]) == pytest.approx(row[metric]["max"], rel=1e-12)


@given(
    st.lists(st.lists(st.lists(st.floats(1, 1e6), max_size=4), min_size=3, max_size=3), min_size=1, max_size=3).filter(
        lambda ranks: any(all(burst) for burst in zip(*ranks, strict=True))
    )
)
@settings(deadline=None, max_examples=50)
def test_bursts_may_differ_in_length_or_be_empty(ranks):
    bursts = [burst for burst in zip(*ranks, strict=True) if all(burst)]
    medians = [np.median([value for burst in bursts for value in burst[rank]]) for rank in range(len(ranks))]
    assert run_time_us(ranks) == pytest.approx(max(medians))


@pytest.mark.parametrize(
    ("noise", "runs", "bursts", "tables"),
    [
        (GPU, (3, 3), 6, 60),
        (GPU, (5, 5), 1, 500),  # one burst, as the profiler's metrics have
        (GPU, (10, 3), 1, 300),
        (BUSY, (5, 5), 1, 500),
        (BURSTS, (3, 3), 6, 60),
    ],
)
def test_a_table_without_a_difference_shows_none_in_19_of_20(noise, runs, bursts, tables):
    assert alarm_rate(noise, runs=runs, bursts=bursts, tables=tables) <= 0.05


@pytest.mark.parametrize("runs", [(1, 1), (2, 1), (2, 2), (20, 1)])
def test_few_runs_raise_no_alarm_where_they_scatter_as_assumed(runs):
    spread = math.hypot(GPU.run, GPU.case, GPU.burst, GPU.sample)
    assert alarm_rate(GPU, runs=runs, bursts=1, tables=200, spread=spread) <= 0.05


@pytest.mark.parametrize("runs", [(1, 1), (2, 5), (3, 3)])
def test_a_case_made_twice_as_slow_is_found(runs):
    factors = np.array([1.0, 2.0, 1.0, 1.0])
    found = [verdicts(np.random.default_rng(i), GPU, runs=runs, factors=factors, spread=0.03) for i in range(20)]
    assert all(table[1] is Verdict.slower for table in found)


def test_five_runs_a_side_find_5_percent_either_way():
    factors = np.array([1.05, 1 / 1.05, 1.0, 1.0])
    found = [verdicts(np.random.default_rng(i), GPU, runs=(5, 5), factors=factors) for i in range(20)]
    assert sum(table[0] is Verdict.slower for table in found) >= 18
    assert sum(table[1] is Verdict.faster for table in found) >= 18


def test_same_is_said_only_where_the_noise_allows_it():
    same = np.ones(3)
    assert set(verdicts(np.random.default_rng(0), GPU, runs=(10, 10), factors=same)) == {Verdict.same}
    assert set(verdicts(np.random.default_rng(0), BUSY, runs=(10, 10), factors=same)) == {Verdict.too_few_runs}


def test_without_an_assumption_few_runs_tell_nothing():
    found = change([[[[99.0, 101.0]], [[99.0]]]], [[[[900.0]], [[900.0]]]], num_cases=1, assumed_spread=None)
    assert (found.low, found.high) == (-1, math.inf)
    assert found.assumed
    assert found.verdict(0.03) is Verdict.too_few_runs
    assert found.relative == pytest.approx(8)


def test_whole_bursts_are_resampled_on_all_ranks_at_once():
    """Two runs whose samples are the same numbers: in one the bursts differ, in the other each holds all of it."""
    values = np.random.default_rng(0).normal(100, 5, size=(6, 10))
    by_burst = np.sort(values.ravel()).reshape(6, 10)
    mixed = by_burst.T.reshape(6, 10)
    widths = []
    for bursts in (by_burst, mixed):
        runs = [[bursts.tolist()] * 2]
        found = change(runs, runs, num_cases=1, assumed_spread=0.0)
        widths.append(found.high - found.low)
        assert found.base_us == pytest.approx(np.median(values))
    assert widths[0] > 3 * widths[1]


def test_the_interval_is_that_of_the_two_sample_t_test():
    """One sample a run, so that nothing but the runs' scatter counts."""
    base, new = np.array([100.0, 102.0, 101.0, 99.0]), np.array([104.0, 103.0, 106.0])
    found = change([[[[t]]] for t in base], [[[[t]]] for t in new], num_cases=4, assumed_spread=None)
    logs = np.log(base), np.log(new)
    variance = sum(((log - log.mean()) ** 2).sum() for log in logs) / 5
    # From the tables: the two-sided quantile of 1 - 0.02 / 4 with 5 degrees of freedom.
    width = 4.77334 * math.sqrt(variance * (1 / 4 + 1 / 3))
    difference = logs[1].mean() - logs[0].mean()
    expected = math.expm1(difference - width), math.expm1(difference + width)
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-6)
    assert found.relative == pytest.approx(math.expm1(difference))


def test_the_same_samples_give_the_same_answer():
    rng = np.random.default_rng(3)
    runs = [samples(rng, [100.0], GPU)[0] for _ in range(2 * MIN_RUNS)]
    found = [change(runs[:MIN_RUNS], runs[MIN_RUNS:], num_cases=2, assumed_spread=None) for _ in range(2)]
    assert found[0] == found[1]
