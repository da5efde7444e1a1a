"""Rows: the format refuses what must never be written."""

import dataclasses
import json

import pytest

from cmkernel.timeline import Interval, StepTimes
from jobs.errors import UsageError
from jobs.records.case import Case
from jobs.records.check import Check, RankCheck
from jobs.records.op import Op
from jobs.records.row import TIMES, Derived, Row, Telemetry
from jobs.records.statistics import Quartiles, Spread
from jobs.results.disk.journal import read
from jobs.results.disk.json_safe import json_safe

CASE = Case(name="article", m_shard=64, k=256, n_shard=128, dtype="bfloat16", num_ranks=2)
PASSED = RankCheck(
    passed=True,
    calls=4,
    num_elements=100,
    num_wrong=0,
    max_error=0.25,
    relative_error=0.001,
    relative_tolerance=0.004,
    integers_exact=True,
)
FAILED = dataclasses.replace(PASSED, passed=False, num_wrong=3, max_error=9.0)


def test_one_failed_rank_fails_the_check():
    check = Check.of_ranks([PASSED, FAILED])
    assert not check.passed
    assert check.failed_ranks == (1,)
    assert (check.num_elements, check.num_wrong, check.max_error) == (200, 3, 9.0)


@pytest.mark.parametrize("time", TIMES)
def test_a_failed_check_leaves_no_time(time):
    failed = Check.of_ranks([PASSED, FAILED])
    with pytest.raises(ValueError, match="has a time although its check failed"):
        Row(case=CASE, implementation="xla", requested="baseline", check=failed, **{time: Spread(1.0, 2.0, 3.0)})
    with pytest.raises(ValueError, match="has a time although its check failed"):
        Row(case=CASE, implementation="xla", requested="baseline", check=failed, samples_us={time: [[[1.0]]]})


def written_and_read(row, folder, **changes):
    """Row read back from the journal, with these changes of its JSON."""
    path = folder / "results.jsonl"
    path.write_text(json.dumps({**json_safe(row), **changes}) + "\n")
    (restored,) = read(path)
    return restored


def test_a_row_survives_the_journal(tmp_path):
    row = Row(
        case=CASE,
        implementation="ppermute",
        requested="auto",
        check=Check.of_ranks([PASSED, PASSED]),
        in_graph_us=Spread.over([3.0, 1.0, 2.0]),
        samples_us={"in_graph_us": [[[1.0, 2.0]], [[3.0]]]},
        derived=Derived(
            tflops_per_gpu=1.0,
            utilisation=None,
            ratio_to_local=1.5,
            speedup_over_xla=2.0,
            bus_bandwidth_gbps=3.0,
            overlap_efficiency=None,
            article_bound_us=8.0,
        ),
        timeline=[[dataclasses.asdict(StepTimes(1, Interval(38.0, 80.0), Interval(-1.5, 35.0), 2.5))]] * 2,
        telemetry=(
            Telemetry(
                rank=0,
                num_samples=3,
                sm_clock_mhz=1980,
                sm_clock_min_mhz=1400,
                power_w=650,
                power_max_w=700,
                temperature_c=50,
                throttle_reasons=("sw_power_cap",),
            ),
        ),
    )
    assert written_and_read(row, tmp_path) == row
    assert row.headline_us == 3.0
    assert row.in_graph_us == Spread(1.0, 2.0, 3.0)


def test_a_baseline_that_could_not_run_has_a_reason_and_no_time(tmp_path):
    row = Row(case=CASE, implementation="torch_fused", requested="baseline", check=None, reason="no torch")
    assert written_and_read(row, tmp_path) == row
    assert row.headline_us is None
    assert not row.failed
    for wrong in ({"reason": None}, {"call_us": Spread(1.0, 2.0, 3.0)}):
        with pytest.raises(ValueError, match="needs a reason, and no time"):
            dataclasses.replace(row, **wrong)


def test_another_format_version_is_refused(tmp_path):
    row = Row(case=CASE, implementation="xla", requested="xla", check=Check.of_ranks([PASSED]))
    with pytest.raises(UsageError, match=r"version=99 must be one of \(1, 2, 3, 4\)"):
        written_and_read(row, tmp_path, version=99)


@pytest.mark.parametrize(("version", "missing"), [(1, "attempt"), (1, "island"), (2, "timeline")])
def test_earlier_versions_lack_fields(version, missing, tmp_path):
    row = Row(case=CASE, implementation="xla", requested="xla", check=Check.of_ranks([PASSED]), version=version)
    data = json_safe(row)
    del data[missing], data["case"]["op"], data["case"]["partial_dtype"]
    (tmp_path / "results.jsonl").write_text(json.dumps(data) + "\n")
    (restored,) = read(tmp_path / "results.jsonl")
    assert restored == dataclasses.replace(row, version=4)
    assert (restored.attempt, restored.island, restored.timeline) == (1, None, [])
    assert restored.case.op is Op.all_gather_matmul


def test_what_stays_of_a_row_has_no_bulk():
    row = Row(
        case=CASE,
        implementation="mosaic_gpu",
        requested="auto",
        check=Check.of_ranks([PASSED]),
        samples_us={"in_graph_us": [[[4.0, 1.0], [2.0, 3.0, 5.0]]], "call_us": [[[7.0, 9.0, 8.0, 6.0, 5.0]]]},
        kernels_us={"ring": 3.0},
        timeline=[[dataclasses.asdict(StepTimes(0, Interval(0.0, 40.5), None, 0.0))]],
    )
    summary = row.summary()
    assert summary.medians_us == row.medians_us == {"in_graph_us": [3.0], "call_us": [7.0]}
    assert summary.headline_quartiles_us == row.headline_quartiles_us == [Quartiles(2.0, 3.0, 4.0, num_samples=5)]
    assert summary.samples_us == {}
    assert not hasattr(summary, "timeline")
    candidate = dataclasses.replace(row, requested="tune:1/2").summary()
    assert candidate.samples_us == row.samples_us, "the tuner compares bursts"
