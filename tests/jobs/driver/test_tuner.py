"""Tuning without a gang: its options, and the rounds that are complete."""

import dataclasses

import pytest

from jobs.driver.benchmark import BENCH
from jobs.driver.candidate import LOST, configs_done
from jobs.driver.naming import Naming
from jobs.driver.opening import open_job
from jobs.driver.tuner import TUNE
from jobs.errors import UsageError
from jobs.results.analysis.rounds import complete_rounds, ranking_score, relative
from tests.jobs.composed import composed, composed_config
from tests.jobs.run_rows import article_rows, not_run

ROW = article_rows()[0]


def rows_of(*requested):
    return [dataclasses.replace(ROW, requested=f"tune:{name}").summary() for name in requested]


def opened(folder, *overrides, kind=TUNE, submission=None):
    """Job of these overrides, in its own run directory."""
    naming = Naming(overrides=overrides, point=None, multirun=None, submission=submission, env_set="{}")
    return open_job(composed_config(*overrides, f"run_dir={folder / 'run'}"), kind, naming)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["kernel=xla"], r"kernel.implementation=xla can't be tuned; use one of auto, mosaic_gpu, ppermute"),
        (["kernel=mosaic_gpu", "kernel.tile_n=128"], r"kernel.tile_n is set, but jobs.tune searches for it"),
        (["cluster.world=per_island"], r"cluster.world=per_island is not for jobs.tune"),
        (["timing.soak_minutes=2"], r"timing.soak_minutes=2.0 is for jobs.bench"),
        (["tuning.table=/nowhere/tuned.jsonl"], r"tuning.table=/nowhere/tuned.jsonl: /nowhere isn't a folder"),
        (["tuning.table=/proc/tuned.jsonl"], r"tuning.table=/proc/tuned.jsonl: /proc isn't writable"),
        (
            ["tuning.round_size=5", "cluster.gpu_memory_fraction=0.2"],
            r"tuning.round_size=5 .* cluster.gpu_memory_fraction=0.2 of a GPU's memory; at most 4 do",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused(overrides, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        opened(tmp_path, *overrides)


def test_the_table_is_in_the_run_directory_unless_it_is_named(tmp_path):
    assert opened(tmp_path).winners_path == tmp_path / "run" / "tuned.jsonl"
    mine = tmp_path / "mine.jsonl"
    assert opened(tmp_path, f"tuning.table={mine}").winners_path == mine


def test_a_table_is_not_left_in_the_working_directory_of_a_submitted_job(tmp_path):
    with pytest.raises(UsageError, match=r"tuning.table=mine.jsonl must be absolute: a submitted job's working"):
        opened(tmp_path, "tuning.table=mine.jsonl", submission="raysubmit_1")
    assert opened(tmp_path, submission="raysubmit_1").winners_path == tmp_path / "run" / "tuned.jsonl"


@pytest.mark.parametrize("option", ["kernel.table", "tuning.table"])
def test_a_table_that_is_refused_leaves_no_run_directory(option, tmp_path):
    with pytest.raises(UsageError, match=rf"{option}=/nowhere/tuned.jsonl: "):
        opened(tmp_path, f"{option}=/nowhere/tuned.jsonl")
    assert not (tmp_path / "run").exists()


def test_a_damaged_table_in_the_run_directory_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tuned.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"tuned.jsonl:1: no entry of a table"):
        opened(tmp_path)
    assert opened(tmp_path, kind=BENCH).settings.tuning.table is None, "a benchmark writes no table"


def resumed(folder, *overrides, kind=TUNE):
    naming = Naming(overrides=overrides, point=None, multirun=None, submission=None, env_set="{}")
    return open_job(composed_config(*overrides, f"resume={folder}"), kind, naming)


@pytest.mark.parametrize("kind", [BENCH, TUNE])
def test_a_run_directory_that_was_moved_can_be_resumed(kind, tmp_path):
    job = opened(tmp_path, kind=kind)
    job.run_dir.write_config(job.settings)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert resumed(moved, kind=kind).winners_path == moved / "tuned.jsonl"


def test_a_resumed_job_is_refused_by_its_own_settings(tmp_path):
    job = opened(tmp_path, "kernel=xla", kind=BENCH)
    job.run_dir.write_config(job.settings)
    with pytest.raises(UsageError, match=r"kernel.implementation=xla can't be tuned"):
        resumed(tmp_path / "run")


def test_a_resumed_job_reads_the_same_table_wherever_it_is_started(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").touch()
    for kind in (BENCH, TUNE):
        job = opened(tmp_path, "kernel.table=mine.jsonl", kind=kind)
        assert job.settings.kernel.table == str(tmp_path / "mine.jsonl")
        assert job.table.entries == ()
        assert opened(tmp_path, kind=kind).settings.kernel.table is None


def test_a_table_that_would_be_overwritten_unread_is_refused(tmp_path):
    path = tmp_path / "tuned.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UsageError, match=r"tuning.table=.*tuned.jsonl:1: no entry of a table"):
        opened(tmp_path, f"tuning.table={path}")


def test_the_defaults_fit_beside_each_other(tmp_path):
    assert opened(tmp_path, "tuning.round_size=9").settings.tuning.round_size == 9
    with pytest.raises(UsageError, match="at most 9 do"):
        opened(tmp_path, "tuning.round_size=10")


@pytest.mark.parametrize(
    ("requested", "finished"),
    [
        ((), False),
        (("1/2", "1/2:heuristic"), False),
        (("1/2", "1/2:heuristic", "2/2"), False),
        (("1/2", "1/2:heuristic", "2/2", "2/2:heuristic"), True),
        (("1/1:heuristic",), True),
    ],
)
def test_a_case_is_finished_with_its_last_round(requested, finished):
    unfinished = TUNE.unfinished(composed(), [ROW.case], rows_of(*requested))
    assert unfinished == ([] if finished else [ROW.case])


def test_rows_of_a_round_that_was_cut_short_are_left_out():
    rows = rows_of("1/3", "1/3:heuristic", "2/3", "2/2", "2/2", "2/2:heuristic", "3/3")
    assert [[row.requested for row in of_round] for of_round in complete_rounds(rows)] == [
        ["tune:1/3", "tune:1/3:heuristic"],
        ["tune:2/2", "tune:2/2", "tune:2/2:heuristic"],
    ]


def test_rows_of_an_earlier_gang_are_no_part_of_the_round_that_was_measured_again():
    cut_short, again = rows_of("1/1"), rows_of("1/1", "1/1", "1/1:heuristic")
    again = [dataclasses.replace(row, attempt=2) for row in again]
    assert complete_rounds([*cut_short, *again]) == [again]


def test_a_config_that_a_gang_was_lost_with_is_not_tried_again():
    one, two, three = ({"tile_n": tile_n} for tile_n in (64, 128, 192))
    rows = [dataclasses.replace(row, config=one) for row in rows_of("1/2", "1/2:heuristic")]
    lost = dataclasses.replace(not_run(ROW, f"{LOST}: no progress"), requested="tune:2/2", config=two).summary()
    (cut_short,) = (dataclasses.replace(row, config=three) for row in rows_of("2/2"))
    assert configs_done([*rows, cut_short, lost]) == [one, one, two]


def test_each_kind_of_job_refuses_the_others_run_directory():
    settings = composed("resume=/runs/a")
    with pytest.raises(UsageError, match=r"resume=/runs/a is a run directory of jobs.bench, not of jobs.tune"):
        TUNE.unfinished(settings, [ROW.case], [ROW])
    with pytest.raises(UsageError, match=r"resume=/runs/a is a run directory of jobs.tune, not of jobs.bench"):
        BENCH.unfinished(settings, [ROW.case], rows_of("1/1"))


def test_a_candidate_is_compared_with_the_reference_burst_by_burst():
    # Times double in the second burst, and only the reference has a third one.
    candidate = [[[9.0, 9.0], [18.0, 18.0]], [[8.0, 8.0], [16.0, 16.0]]]
    reference = [[[10.0, 10.0], [20.0, 20.0], [99.0]], [[9.0, 9.0], [18.0, 18.0], [99.0]]]
    assert relative(candidate, reference) == pytest.approx(0.9)
    assert relative([], reference) == float("inf")


# The headline of each of five bursts on 2x H200, at m_shard=256 k=4096 n_shard=3072.
HEURISTIC, MORE_SENDERS = (64.4, 63.8, 57.8, 63.2, 74.4), (63.4, 61.2, 61.8, 65.6, 66.1)


def bursts(*times_us):
    return [[[time_us] for time_us in times_us]]


def test_a_winner_is_faster_by_burst_and_as_a_whole():
    reference = bursts(*HEURISTIC)
    assert relative(bursts(*MORE_SENDERS), reference) < 0.99, "in three bursts of five"
    assert ranking_score(bursts(*MORE_SENDERS), reference, min_gain=0.0) == pytest.approx(63.4 / 63.8)
    slower = bursts(64.5, 63.7, 60, 65.6, 66.1)
    assert relative(slower, reference) < ranking_score(slower, reference, min_gain=0.0) == pytest.approx(64.5 / 63.8)
    assert ranking_score(reference, reference, min_gain=0.01) == 1
    assert ranking_score(bursts(*(0.9 * time_us for time_us in HEURISTIC)), reference, min_gain=0.01) == pytest.approx(
        0.91
    )


def test_a_candidate_that_was_stopped_early_does_not_win_by_its_few_turns():
    assert relative(bursts(50.0), bursts(*HEURISTIC)) < 1
    assert ranking_score(bursts(50.0), bursts(*HEURISTIC), min_gain=0.01) == float("inf")
    assert ranking_score([], bursts(*HEURISTIC), min_gain=0.01) == float("inf")
