"""Tuning on CPU ranks: candidates measured, the winner in a table, and the table used."""

import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import pytest

from cmkernel import PpermuteConfig, Table
from jobs.config.problem import expand
from jobs.driver import tuner
from jobs.driver.candidate import configs_done
from jobs.driver.plan import requests_of
from jobs.driver.tuner import TUNE, Tuner
from jobs.errors import GangLost
from jobs.gang.gang import Gang
from jobs.records.statistics import headline_us
from jobs.results.analysis.rounds import ranking_score
from tests.integration.bench_process import QUICK, finish, run, start
from tests.integration.comparison import FAIL_OVER, SPREAD, compare, in_slow_checkout
from tests.integration.measurements import Observed
from tests.jobs.composed import composed

pytestmark = pytest.mark.slow

# A program of many pieces takes long to compile.
SHORT = (*QUICK, "timing.chain_length=2")
ONE_CASE = (*SHORT, "problem.m_shard=64")
# Two rounds: 2 pieces and the default, 4 pieces and the default.
ROUNDS = ("tuning.max_candidates=3", "tuning.round_size=2", "tuning.bursts=2", "tuning.chains=1")
PIECES = [2, 1, 4, 1]


def pieces(rows):
    return [row["config"]["num_chunks"] for row in rows]


@pytest.fixture(scope="module")
def stopped_and_resumed(tmp_path_factory):
    """A tuning that is stopped after its first round, and the one that continues it."""
    run_dir = tmp_path_factory.mktemp("tune") / "run"
    process = start(*ONE_CASE, *ROUNDS, f"run_dir={run_dir}", job="jobs.tune")
    path, deadline = run_dir / "results.jsonl", time.monotonic() + 120
    while not (path.exists() and b"heuristic" in path.read_bytes()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process, timeout_s=180)
    command = json.loads((run_dir / "environment.json").read_text())["command"]
    assert command.startswith("python -m jobs.tune problem=tiny ")
    before = stopped.rows()
    resumed = run(f"resume={run_dir}", job="jobs.tune")
    assert resumed.code == 0, resumed.stderr
    return stopped, before, resumed


@pytest.fixture(scope="module")
def tuned(stopped_and_resumed):
    """The whole tuning, and its table."""
    *_, resumed = stopped_and_resumed
    return resumed, Path(resumed.result["run_dir"]) / "tuned.jsonl"


def test_a_stopped_tuning_goes_on_where_it_was_and_measures_nothing_twice(stopped_and_resumed):
    stopped, before, resumed = stopped_and_resumed
    assert stopped.code == 143, stopped.stderr
    assert 2 <= len(before) < len(PIECES)
    rows = resumed.rows()
    assert rows[: len(before)] == before
    assert pieces(rows) == PIECES


def test_each_candidate_is_a_checked_row_and_the_winner_is_in_the_table(tuned):
    finished, path = tuned
    rows = finished.rows()
    assert pieces(rows) == PIECES
    assert [row["requested"] for row in rows[:2]] == ["tune:1/2", "tune:1/2:heuristic"]
    assert rows[-1]["requested"] == "tune:2/2:heuristic"
    for row in rows:
        assert row["implementation"] == "ppermute"
        assert row["check"]["passed"]
        assert row["in_graph_us"]["max"] > 0
        assert set(row["samples_us"]) == {"in_graph_us"}
    for candidate, reference in zip(rows[::2], rows[1::2], strict=True):
        calls = sorted((candidate["check"]["calls"], reference["check"]["calls"]))
        assert calls == [2, 4], "two chains, and of the faster one single calls too"
    (entry,) = Table.read(path).entries
    assert entry.shape == dataclasses.replace(entry.shape, device_kind="cpu", num_ranks=2, m_shard=64, k=256)
    assert entry.us <= entry.heuristic_us
    assert f"in {path}" in finished.stdout


def test_the_table_is_used_and_a_config_that_is_slow_is_found(tuned, tmp_path):
    _, path = tuned
    (entry,) = Table.read(path).entries
    # Beside the measured entry, one whose config differs from the default.
    two = dataclasses.replace(
        entry, config=PpermuteConfig(num_chunks=2), shape=dataclasses.replace(entry.shape, m_shard=96)
    )
    table = tmp_path / "tuned.jsonl"
    Table((entry, two)).write(table)
    sides = {
        "base": (["problem.m_shard=[64,96,128]", f"kernel.table={table}"], {}),
        "slow": (["problem.m_shard=[64]", "kernel=ppermute", "kernel.num_chunks=16"], in_slow_checkout(tmp_path)),
    }
    rows = {}
    for name, (overrides, where) in sides.items():
        finished = run(*SHORT, "timing.baselines=[]", *overrides, f"run_dir={tmp_path / name}", **where)
        assert finished.code == 0, finished.stderr
        rows[name] = finished.rows()
    own, other, near = (row["reason"] for row in rows["base"])
    assert own.endswith(f"its config tuned on {entry.date}")
    assert other.endswith(f"its config tuned on {entry.date}")
    assert near.endswith(f"its config tuned on {entry.date} for m_shard=96 k=256 n_shard=256, the nearest")
    assert pieces(rows["base"]) == [entry.config.num_chunks, 2, 2]
    assert pieces(rows["slow"]) == [16]
    # 16 pieces alone may cost less than the noise of a busy machine, so the ring is slow as well.
    compared = compare(tmp_path / "base", tmp_path / "slow", *SPREAD, *FAIL_OVER)
    assert compared.returncode == 1, compared.stdout + compared.stderr
    assert "REGRESSION: ppermute on m_shard=64" in compared.stdout
    assert f"bfloat16 D=2: num_chunks {entry.config.num_chunks} -> 16\n" in compared.stdout


def test_a_table_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "tuned.jsonl"
    path.write_text("{}\n")
    finished = run(*ONE_CASE, f"kernel.table={path}", f"run_dir={tmp_path / 'run'}")
    assert finished.code == 2
    assert f"kernel.table={path}: {path}:1: no entry of a table" in finished.result["error"]


# The tuner itself over a gang, with other candidates.


@pytest.fixture(scope="module")
def settings():
    return composed(*ONE_CASE, "cluster=local", "tuning.bursts=3", "tuning.early_stop=1.5")


@pytest.fixture(scope="module")
def gang(local_ray, settings):
    with Gang.start(local_ray, settings.cluster, 2) as gang:
        yield gang


def tune(gang, settings, tmp_path, monkeypatch, *candidates):
    monkeypatch.setattr(
        tuner, "ppermute_candidates", lambda m_shard: [PpermuteConfig(num_chunks=n) for n in candidates]
    )
    observed, requests = Observed(gang, settings), requests_of(settings)
    measured = Tuner(observed.measurement, requests[0], tmp_path / "tuned.jsonl")
    (case,) = expand(settings.problem, 2)
    rows = [row for of_round in measured.run(case) for row in of_round]
    # Each step is in the plan, in this order.
    plan = TUNE.steps(case, requests, settings, "cpu")
    places = [plan.index(step) for step, _, _ in observed.begun]
    assert places == sorted(set(places))
    return rows, observed.messages


def stays_by(samples, early_stop):
    """The burst after which each candidate of a round has to leave, by the samples; the last candidate stays."""
    num_bursts = len(samples[-1][0])
    stays = dict.fromkeys(range(len(samples)), num_bursts)
    for burst in range(1, num_bursts):
        us = {i: headline_us([rank[:burst] for rank in samples[i]]) for i, stay in stays.items() if stay == num_bursts}
        stays |= {i: burst for i in us if i != len(samples) - 1 and us[i] > early_stop * min(us.values())}
    return list(stays.values())


def test_hopeless_candidates_drop_out_and_the_fastest_one_is_checked_as_a_whole_and_wins(
    gang, settings, tmp_path, monkeypatch
):
    rows, messages = tune(gang, settings, tmp_path, monkeypatch, 8, 1, 16)
    assert [row.config["num_chunks"] for row in rows] == [1, 16, 8]
    # A piece costs the ranks a meeting, so 1 piece is the fastest, except on a machine that does other things too.
    samples = [row.samples_us["in_graph_us"] for row in rows]
    had = [len(of_rank) for (of_rank, _) in samples]
    assert had == stays_by(samples, settings.tuning.early_stop)
    for row, num_bursts in zip(rows, had, strict=True):
        assert (f"stopped after {num_bursts} of 3 bursts" in row.reason) == (num_bursts < 3)
    scores = [ranking_score(of_row, samples[-1], min_gain=settings.tuning.min_gain) for of_row in samples]
    winner, reference = rows[scores.index(min(scores))], rows[-1]
    assert [row.check.calls for row in rows] == [4 if row is winner else 2 for row in rows]
    (entry,) = Table.read(tmp_path / "tuned.jsonl").entries
    assert entry.config == PpermuteConfig(**winner.config)
    assert entry.us == pytest.approx(winner.headline_us, abs=0.01)
    assert entry.heuristic_us == pytest.approx(reference.headline_us, abs=0.01)
    if winner is reference:
        assert "no config is faster than the heuristic's, " in messages[-1]
    else:
        assert entry.us < entry.heuristic_us
        assert f"num_chunks={winner.config['num_chunks']} takes {winner.headline_us:.2f} us, " in messages[-1]
        assert "less than the heuristic's config" in messages[-1]


def test_results_that_are_wrong_keep_a_config_out_of_the_table(gang, settings, tmp_path, monkeypatch):
    wrong = dataclasses.replace(settings, check=composed("check.calls=1", "check.fault=wrong_element").check)
    rows, messages = tune(gang, wrong, tmp_path, monkeypatch, 1, 2)
    assert len(rows) == 2
    assert all(row.failed and not row.samples_us for row in rows)
    assert not (tmp_path / "tuned.jsonl").exists()
    assert "no config passed its check" in messages[-1]


def test_a_merged_table_keeps_what_it_had(gang, settings, tmp_path, monkeypatch):
    tune(gang, settings, tmp_path, monkeypatch, 1)
    path = tmp_path / "tuned.jsonl"
    (entry,) = Table.read(path).entries
    other = dataclasses.replace(entry, shape=dataclasses.replace(entry.shape, k=512))
    Table((other,)).write(path)
    rows, _ = tune(gang, settings, tmp_path, monkeypatch, 1)
    assert [row.requested for row in rows] == ["tune:1/1:heuristic"]
    assert [known.shape.k for known in Table.read(path).entries] == [256, 512]
    assert json.loads(path.read_text().splitlines()[0])["implementation"] == "ppermute"


def test_the_candidate_that_a_gang_is_lost_with_has_a_row(gang, settings, tmp_path, monkeypatch):
    """The module's last test, as it kills a rank of the gang."""
    monkeypatch.setattr(tuner, "ppermute_candidates", lambda m_shard: [PpermuteConfig(num_chunks=n) for n in (1, 2, 4)])

    def kill_one(step):
        if step.doing == "round 1: candidate 1":
            os.kill(gang.members[1].pid, signal.SIGKILL)

    measured = Tuner(Observed(gang, settings, kill_one).measurement, requests_of(settings)[0], tmp_path / "tuned.jsonl")
    (case,) = expand(settings.problem, 2)
    running = measured.run(case)
    (row,) = next(running)
    with pytest.raises(GangLost):
        next(running)
    assert (row.config, row.check, row.requested) == ({"num_chunks": 2}, None, "tune:1/1")
    assert row.reason.startswith("the gang was lost with it: rank 1 on ")
    assert configs_done([row.summary()]) == [{"num_chunks": 2}]
