import dataclasses

import pytest

from jobs.records.case import Case
from jobs.results.analysis.best import best, best_of_samples
from jobs.results.terminal.steps import Step, duration, steps_of, time_left_s
from tests.jobs.composed import composed

CASE = Case(name="tiny", m_shard=1024, k=4096, n_shard=4096, dtype="bfloat16", num_ranks=8)
SETTINGS = composed("timing.bursts=2")
NAMES = ["auto", "xla", "local"]


def total_s(device_kind: str, case: Case = CASE, *overrides: str) -> float:
    return sum(step.expected_s for step in steps_of(case, NAMES, composed(*overrides), device_kind))


def test_each_implementation_is_checked_warmed_up_and_timed_once_a_burst():
    found = steps_of(CASE, NAMES, SETTINGS, "NVIDIA H200")
    assert len(set(found)) == len(found), "a step that is there twice would be mistaken for the other"
    assert all(step.expected_s > 0 for step in found)
    for name in NAMES:
        doing = [step.doing for step in found if step.implementation == name]
        assert doing == ["check", "warm-up", "burst 1/2", "burst 2/2"]


def test_implementations_take_turns_and_the_profile_is_last():
    found = steps_of(CASE, NAMES, SETTINGS, "NVIDIA H200")
    turns = [step.implementation for step in found if step.implementation]
    assert all(turns[start : start + len(NAMES)] == NAMES for start in range(0, len(turns), len(NAMES)))
    assert found[0] == Step(CASE, "inputs")
    assert found[-1] == Step(CASE, "profile")
    assert Step(CASE, "profile") not in steps_of(CASE, NAMES, SETTINGS, "cpu"), "a CPU has no device times"


def test_bursts_share_the_same_samples_however_many_they_are():
    def bursts_s(bursts: int) -> float:
        steps = steps_of(CASE, NAMES, composed(f"timing.bursts={bursts}"), "NVIDIA H200")
        return sum(step.expected_s for step in steps if step.doing.startswith("burst"))

    assert bursts_s(1) == pytest.approx(bursts_s(5))


def test_expected_times_follow_the_cost_model_and_what_is_measured():
    larger = dataclasses.replace(CASE, m_shard=8192)
    assert total_s("NVIDIA H200", larger) > total_s("NVIDIA H200")
    assert total_s("cpu") > total_s("NVIDIA H200"), "a device without a model is slow"
    many = total_s("NVIDIA H200", larger, "timing.iterations=6000")
    assert many > total_s("NVIDIA H200", larger)
    bursts = {s.implementation: s.expected_s for s in steps_of(larger, NAMES, SETTINGS, "NVIDIA H200")[-4:-1]}
    assert bursts["local"] <= bursts["auto"] < bursts["xla"], "all-gather, then multiply, hides nothing"


@pytest.mark.parametrize(
    ("done_expected_s", "done_s", "current_s", "left_s"),
    [
        (0, 0, 0, 10),  # nothing is done: as expected
        (5, 15, 0, 30),  # all took three times as long
        (5, 2.5, 0, 5),
        (5, 5, 4, 6),
        (5, 5, 14, 0),  # longer than expected, but never negative
    ],
)
def test_time_left_is_scaled_by_what_was_done(done_expected_s, done_s, current_s, left_s):
    found = time_left_s(expected_s=10, done_expected_s=done_expected_s, done_s=done_s, current_s=current_s)
    assert found == pytest.approx(left_s)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (59.6, "60 s"), (100, "2 min"), (5399, "1 h 30 min"), (7500, "2 h 05 min")]
)
def test_durations_for_people(seconds, text):
    assert duration(seconds) == text


def test_best_is_the_fastest_that_communicates():
    found = best({"ppermute": 200.0, "xla": 150.0, "local": 100.0, "local_cublas": 75.0, "mosaic_gpu": None})
    assert str(found) == "best xla 150.0 us, 2.00x local"
    assert str(best({"ppermute": 200.0})) == "best ppermute 200.0 us"
    assert best({"local": 100.0}) is None


def test_an_implementation_counts_as_best_once_it_has_a_chain():
    """The first bursts have none where there are more bursts than chains."""
    none, some = {"in_graph_us": [[[]], [[]]]}, {"in_graph_us": [[[], [3.0]], [[], [4.0]]]}
    assert best_of_samples({"xla": none}) is None
    assert best_of_samples({"xla": none, "ppermute": some}).time_us == 4.0
