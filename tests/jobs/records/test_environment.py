"""environment.json: its gangs, and fields that early jobs lack."""

import dataclasses
import json

import pytest

from jobs.records.environment import Environment, GangsRecord
from jobs.records.member import Member
from jobs.results.disk.environment_file import EnvironmentFile
from jobs.results.disk.recorded_run import read_environment
from jobs.results.disk.run_dir import RunDir
from tests.jobs.run_rows import article_rows

ROW = article_rows()[0]


def member(rank, host="h1"):
    return Member(
        rank=rank,
        host=host,
        ip="10.0.0.1",
        node_id="n",
        pid=100 + rank,
        device_kind="cpu",
        gpu_uuid=None,
        gpu_index=None,
        driver_version=None,
        versions={"jax": "0.11.2"},
        stderr_path="/logs/worker.err",
        nvlink_domain=host,
    )


def test_a_job_that_lost_a_gang(tmp_path):
    file = EnvironmentFile(
        RunDir.create(str(tmp_path), submission_id=None), Environment(command="python -m jobs.bench")
    )
    assert file.begin(None) == 1
    assert "attempt" not in json.loads((tmp_path / "environment.json").read_text()), "no gang has started"
    file.started(None, [member(0), member(1)], "fresh")
    file.lost(None, "rank 1 died")
    assert file.begin(None) == 2
    file.started(None, [member(0, "h2"), member(1, "h2")], "fresh")
    file.restarted(None, 9.234)
    data = json.loads((tmp_path / "environment.json").read_text())
    assert (data["attempt"], [one["host"] for one in data["members"]], data["gang"]) == (2, ["h2", "h2"], "fresh")
    (earlier,) = data["earlier_attempts"]
    assert (earlier["attempt"], earlier["ended"], earlier["restart_s"]) == (1, "rank 1 died", 9.2)
    restored = read_environment(tmp_path)
    assert restored == file.environment
    hosts = [restored.members_of(dataclasses.replace(ROW, attempt=attempt)) for attempt in (1, 2, 3)]
    assert [[one.host for one in members] for members in hosts] == [["h1", "h1"], ["h2", "h2"], []]
    assert (len(restored.members), len(restored.all_members)) == (2, 4)


def test_islands_keep_their_gangs_apart(tmp_path):
    gangs = (GangsRecord(island="a"), GangsRecord(island="b"))
    file = EnvironmentFile(RunDir.create(str(tmp_path), submission_id=None), Environment(gangs=gangs))
    for island in ("b", "a"):
        file.begin(island)
        file.started(island, [member(0, f"host-{island}")], "fresh")
    file.lost("b", "the host is gone")
    data = json.loads((tmp_path / "environment.json").read_text())
    assert [one["island"] for one in data["islands"]] == ["a", "b"]
    assert "members" not in data
    restored = read_environment(tmp_path)
    assert restored == file.environment
    assert [one.host for one in restored.members_of(dataclasses.replace(ROW, island="b"))] == ["host-b"]
    assert [one.host for one in restored.members] == ["host-a"]


def test_a_resumed_job_counts_on():
    gangs = GangsRecord(attempt=2, members=(member(0),)).retired("the job ended")
    assert (gangs.attempt, gangs.members) == (2, ())
    assert [(one.attempt, one.ended) for one in gangs.earlier_attempts] == [(2, "the job ended")]
    assert GangsRecord().retired("the job ended") == GangsRecord(), "no gang, nothing to remember"


def test_an_early_job_numbered_no_gang():
    restored = Environment.from_json({"versions": {}, "members": [{"device_kind": "NVIDIA H200"}]})
    assert [one.device_kind for one in restored.members_of(ROW)] == ["NVIDIA H200"]


@pytest.mark.parametrize("data", [[], None, {"members": 3}, {"members": [0]}, {"islands": 1}, {"versions": 3}])
def test_other_json_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        Environment.from_json(data)
