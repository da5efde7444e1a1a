import dataclasses
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import InfrastructureError, UsageError
from jobs.records.case import Case
from jobs.records.check import Check
from jobs.records.row import Derived, Row, Telemetry
from jobs.records.statistics import Spread
from jobs.results.disk.journal import Journal, finished_cases, read
from jobs.results.disk.json_safe import json_safe
from tests.jobs.results.wandb.wandb_rows import CHECK as PASSED
from tests.paths import ROOT
from tests.small_disk import small_disk

CASE = Case(name="tiny", m_shard=8, k=16, n_shard=8, dtype="float32", num_ranks=2)

floats = st.floats()
times = st.floats(0.1, 1e9)
integers = st.integers(0, 2**53)
names = st.text(max_size=20) | st.sampled_from(["nan", "inf", "-inf", "a\nb", "\ud800"])
spreads = st.none() | st.builds(Spread, floats, floats, floats)
checks = st.builds(
    Check,
    passed=st.just(True),
    calls=integers,
    num_elements=integers,
    num_wrong=integers,
    max_error=floats,
    relative_error=floats,
    relative_tolerance=floats,
    integers_exact=st.booleans(),
    failed_ranks=st.lists(integers, max_size=3).map(tuple),
)
derived = st.builds(
    Derived,
    **{field.name: floats | (st.none() if "None" in field.type else floats) for field in dataclasses.fields(Derived)},
)
telemetry = st.builds(
    Telemetry,
    rank=integers,
    num_samples=integers,
    sm_clock_mhz=floats,
    sm_clock_min_mhz=floats,
    power_w=floats,
    power_max_w=floats,
    temperature_c=floats,
    throttle_reasons=st.lists(names, max_size=2).map(tuple),
)
rows = st.builds(
    Row,
    case=st.builds(Case, name=names, m_shard=integers, k=integers, n_shard=integers, dtype=names, num_ranks=integers),
    implementation=names,
    requested=names,
    reason=st.none() | names,
    config=st.none() | st.dictionaries(names, integers | names, max_size=3),
    check=checks,
    kernel_us=spreads,
    device_us=spreads,
    in_graph_us=spreads,
    call_us=spreads,
    samples_us=st.dictionaries(
        names, st.lists(st.lists(st.lists(floats, max_size=3), max_size=2), max_size=2), max_size=2
    ),
    kernels_us=st.dictionaries(names, floats, max_size=2),
    derived=st.none() | derived,
    telemetry=st.lists(telemetry, max_size=2).map(tuple),
    time=names,
    attempt=integers,
)


def row(name: str = "tiny", **changes) -> Row:
    case = dataclasses.replace(CASE, name=name)
    return dataclasses.replace(Row(case=case, implementation="ppermute", requested="auto", check=PASSED), **changes)


@settings(max_examples=100, deadline=None)
@given(st.lists(rows, max_size=3))
def test_rows_come_back_as_they_were(wanted):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.jsonl")
        with Journal(path) as journal:
            for r in wanted:
                journal.append(r)
        restored = read(path)
        # repr: NaN is not equal to itself.
        assert repr(restored) == repr(wanted)
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def test_failed_check_has_no_time_and_infinite_error_survives(tmp_path):
    check = dataclasses.replace(PASSED, passed=False, num_wrong=3, max_error=float("inf"), failed_ranks=(1,))
    with Journal(tmp_path / "j") as journal:
        journal.append(row(check=check))
    assert json.loads((tmp_path / "j").read_text())["check"]["max_error"] == "inf"
    assert read(tmp_path / "j")[0].check == check


def test_row_is_on_disk_when_append_returns(tmp_path):
    path = tmp_path / "j"
    # The child is killed without a chance to flush anything.
    code = (
        "import os, sys, pickle; from jobs.results.disk.journal import Journal; from pathlib import Path\n"
        f"journal = Journal(Path({str(path)!r}))\n"
        "for row in pickle.loads(sys.stdin.buffer.read()): journal.append(row)\n"
        "os.kill(os.getpid(), 9)"
    )
    wanted = [row("a"), row("b")]
    killed = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(wanted), cwd=ROOT)
    assert killed.returncode == -9
    assert read(path) == wanted


@pytest.mark.parametrize("torn", ['{"case": {"na', "x", "\0\0\0"])
def test_torn_last_line_is_left_out_and_cut_off(tmp_path, caplog, torn):
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.append(row("a"))
    with path.open("a") as file:
        file.write(torn)
    with caplog.at_level(logging.WARNING):
        assert read(path) == [row("a")]
    assert "line 2 has no end and is left out" in caplog.text
    with Journal(path) as journal:
        journal.append(row("b"))
    assert read(path) == [row("a"), row("b")]


@pytest.mark.parametrize("bad", ["not json", "{}", "[1]", "", '{"version": 99}', '{"version": 3}', "NaN"])
def test_bad_line_is_named(tmp_path, bad):
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.append(row("a"))
    with path.open("a") as file:
        file.write(bad + "\n")
    with Journal(path) as journal:
        journal.append(row("c"))
    with pytest.raises(UsageError, match=rf"{path}:2: not a row"):
        read(path)


def test_journal_of_another_version(tmp_path):
    data = json_safe(row()) | {"version": 99}
    (tmp_path / "j").write_text(json.dumps(data) + "\n")
    with pytest.raises(UsageError, match=r"j:1: .*version=99"):
        read(tmp_path / "j")


@pytest.mark.parametrize(
    ("implementations", "finished"),
    [
        (["ppermute", "xla", "local"], True),
        (["xla", "local"], False),
        (["ppermute", "xla"], False),
        ([], False),
    ],
)
def test_a_case_is_finished_with_its_last_row(implementations, finished):
    whole = [row("whole", implementation=name, requested="baseline") for name in ("xla", "local")]
    whole.append(row("whole"))
    rows = [
        row("x", implementation=name, requested="auto" if name == "ppermute" else "baseline")
        for name in implementations
    ]
    complete = finished_cases([*whole, *rows], baselines=["xla", "local"])
    assert {case.name for case in complete} == ({"whole", "x"} if finished else {"whole"})


def test_one_row_stands_for_auto_and_for_a_baseline():
    """Auto took an implementation that is also a baseline."""
    rows = [row(implementation="xla"), row(implementation="local", requested="baseline")]
    assert finished_cases(rows, baselines=["xla", "local"]) == {CASE}


def test_missing_journal_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nothing: can't be read"):
        read(tmp_path / "nothing")


def test_folder_that_is_gone(tmp_path):
    with pytest.raises(InfrastructureError, match=r"can't be opened \(No such file or directory\)"):
        Journal(tmp_path / "gone" / "j")


def test_second_job_on_the_same_journal_is_refused(tmp_path):
    with Journal(tmp_path / "j") as journal:
        journal.append(row("a"))
        with pytest.raises(UsageError, match=rf"run_dir={tmp_path} is in use by another job"):
            Journal(tmp_path / "j")
    Journal(tmp_path / "j").close()


def test_what_json_can_not_hold_is_a_bug_not_a_torn_line(tmp_path):
    with Journal(tmp_path / "j") as journal:
        with pytest.raises(TypeError, match="object can't be written as JSON"):
            journal.append(row(config={"tile_m": object()}))
        journal.append(row("a"))
    assert read(tmp_path / "j") == [row("a")]


@pytest.fixture
def small(tmp_path):
    with small_disk(tmp_path / "small", "64k") as path:
        yield path


def test_full_disk_keeps_earlier_rows_and_is_reported(small):
    path = small / "results.jsonl"
    # Rows of about 10 KB: the last one fits in part.
    big = row(samples_us={"call_us": [[[1.25] * 1500]]})
    written = 0

    def fill(journal: Journal) -> None:
        nonlocal written
        while True:
            journal.append(big)
            written += 1

    with Journal(path) as journal:
        with pytest.raises(InfrastructureError, match=rf"{path}: .*No space left on device.*rows before it are intact"):
            fill(journal)
        assert written > 1
        # The unfinished line is gone, so a small row that still fits is readable.
        assert read(path) == [big] * written
        journal.append(row("small"))
    assert read(path) == [big] * written + [row("small")]


def test_device_that_refuses_every_write():
    journal = Journal.__new__(Journal)
    journal.path, journal._fd = Path("/dev/full"), os.open("/dev/full", os.O_WRONLY)
    with journal, pytest.raises(InfrastructureError, match=r"/dev/full: .*No space left"):
        journal.append(row())


def test_a_row_of_a_baseline_that_could_not_run_survives(tmp_path):
    row = Row(case=CASE, implementation="torch_fused", requested="baseline", check=None, reason="no torch")
    with Journal(tmp_path / "results.jsonl") as journal:
        journal.append(row)
    assert read(tmp_path / "results.jsonl") == [row]
