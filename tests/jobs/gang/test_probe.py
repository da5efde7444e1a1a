"""The probe of a gang, with actors whose answers are futures."""

import dataclasses
import threading
import types
from concurrent.futures import Future

import pytest

from jobs.gang import probe
from jobs.gang.closing import Closing, finishes_within
from jobs.gang.messages import NOWHERE, Report

REPORT = Report(idle_s=0.0, is_compiling=False, step="burst", iteration=1, finished_case=None, stacks="in burst")


def actor(value=None, error=None):
    future = Future()
    if error is not None:
        future.set_exception(error)
    elif value is not None:
        future.set_result(value)
    remote = types.SimpleNamespace(remote=lambda: types.SimpleNamespace(future=lambda: future))
    return types.SimpleNamespace(ping=remote, report=remote)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(probe, "PING_TIMEOUT_S", 0.05)
    monkeypatch.setattr(probe, "REPORT_TIMEOUT_S", 0.05)


def test_the_dead_and_the_silent():
    actors = [actor(value=True), actor(error=RuntimeError("dead")), actor(), actor(error=RuntimeError("dead"))]
    assert probe.Probe(actors).survey() == ([1, 3], [2])
    assert probe.Probe(actors).survey(but={1, 2}) == ([3], [])


def test_reports_of_those_that_answer():
    actors = [actor(value=REPORT), actor(), actor(error=RuntimeError("dead")), actor(value=REPORT)]
    assert probe.Probe(actors).reports() == {0: REPORT, 3: REPORT}
    assert probe.Probe(actors).reports(but=[0]) == {3: REPORT}


def test_stacks_go_to_the_file_or_to_the_log(tmp_path, caplog):
    places = [dataclasses.replace(NOWHERE, host=f"host{i}", pid=7 + i) for i in range(2)]
    path = tmp_path / "stacks.txt"
    assert probe.save_stacks(places, {0: REPORT}, path) == str(path)
    assert "=== rank 0 on host0 (pid 7) ===\niteration 1 of burst" in path.read_text()
    assert "=== rank 1 on host1 (pid 8) ===\nno answer" in path.read_text()
    assert probe.save_stacks(places, {0: REPORT}, tmp_path / "missing" / "file") == "in the log"
    assert "in burst" in caplog.text


def test_a_cleanup_that_hangs_is_left_behind():
    never = threading.Event()
    assert finishes_within(5.0, lambda: None, "quick")
    assert not finishes_within(0.05, never.wait, "stuck")
    never.set()


def test_a_block_is_closed_after_an_error():
    closed = []

    class Held(Closing):
        def close(self):
            closed.append(True)

    with pytest.raises(RuntimeError), Held():
        raise RuntimeError
    assert closed == [True]
