import dataclasses

import pytest

from jobs.records.case import Case
from jobs.records.op import Op
from jobs.records.row import Row, spreads
from jobs.results.analysis.answers import Answer, answers
from jobs.results.analysis.rounds import changes
from tests.jobs.run_rows import PASSED

CASE = Case(name="tiny", m_shard=64, k=128, n_shard=64, dtype="float32", num_ranks=2)
FAILED = dataclasses.replace(PASSED, passed=False, num_wrong=1, failed_ranks=(1,))


def row(name: str, time_us: float | None, **changes) -> Row:
    """A row whose slower rank takes so long; ``None``: without a time."""
    samples = {"in_graph_us": [[[time_us / 2]], [[time_us]]]} if time_us else {}
    fields = {"case": CASE, "requested": "auto" if name == "ppermute" else "baseline", "check": PASSED}
    return Row(**{**fields, "implementation": name, "samples_us": samples, **spreads(samples), **changes})


def not_run(name: str, **changes) -> Row:
    return row(name, None, check=None, reason="no such thing here", **changes)


def answer(*rows: Row, **options) -> Answer:
    (found,) = answers(rows, **options)
    return found


def test_the_fastest_is_compared_with_all_gather_then_dot_and_with_the_multiply_alone():
    rows = [row("ppermute", 80), row("xla", 160), row("xla_cublas", 120), row("local", 64), row("local_cublas", 70)]
    found = answer(*rows)
    assert (found.case, found.implementation, found.time_us) == (CASE, "ppermute", 80)
    assert (found.speedup, found.ratio_to_local) == (1.5, 1.25)
    assert found.sentence == (
        f"{CASE}: ppermute is fastest, 80.00 us: 1.50 times as fast as all-gather then dot and 25.0 % slower than the "
        "multiply alone."
    )


@pytest.mark.parametrize(
    ("op", "in_turn", "alone"),
    [
        (Op.matmul_reduce_scatter, "dot then reduce-scatter", "the multiply alone"),
        (Op.mlp_grad, "the layer with XLA's collectives", "the layer without communication"),
    ],
)
def test_other_operations_have_words_of_their_own(op, in_turn, alone):
    case = dataclasses.replace(CASE, op=op)
    rows = [row(name, time_us, case=case) for name, time_us in (("ppermute", 80), ("xla_sharded", 120), ("local", 64))]
    assert answer(*rows).sentence == (
        f"{case}: ppermute is fastest, 80.00 us: 1.50 times as fast as {in_turn} and 25.0 % slower than {alone}."
    )


def test_a_baseline_that_wins_is_named_and_so_is_the_loser():
    found = answer(row("ppermute", 160), row("xla", 100), row("local", 104))
    assert (found.implementation, found.speedup) == ("xla", 1.0)
    assert found.sentence == (
        f"{CASE}: xla is fastest, 100.00 us: 3.8 % faster than the multiply alone; ppermute takes 1.60 times as long."
    )


def test_the_multiply_alone_never_wins():
    assert answer(row("ppermute", 100), row("xla", 90), row("local", 10)).implementation == "xla"
    found = answer(row("local", 10))
    assert (found.implementation, found.time_us) == (None, None)


def test_a_large_distance_is_a_factor():
    assert "17.0 times as long as the multiply alone" in answer(row("ppermute", 170), row("local", 10)).sentence


def test_what_is_missing_is_said():
    found = answer(row("ppermute", 100))
    assert (found.speedup, found.ratio_to_local) == (None, None)
    assert found.sentence == (
        f"{CASE}: ppermute is the only one with a time, 100.00 us: all-gather then dot has no time and the multiply "
        "alone has no time."
    )


def test_a_tie_is_no_victory():
    assert "; within 1 % of it: xla." in answer(row("ppermute", 100), row("xla", 100.5), row("local", 50)).sentence


def test_failed_checks_and_baselines_that_could_not_run_are_named():
    rows = [row("ppermute", None, check=FAILED), not_run("torch_fused"), row("xla", 90), row("jax_ring", None)]
    found = answer(*rows)
    assert found.implementation == "xla"
    assert "; ppermute FAILED its check; torch_fused could not run; jax_ring has no time." in found.sentence


def test_a_case_without_any_result_has_a_sentence_too():
    found = answer(row("ppermute", None, check=FAILED), not_run("xla"))
    assert found.sentence == f"{CASE}: no implementation has a result; ppermute FAILED its check; xla could not run."
    assert answer(cases=[CASE]).sentence == f"{CASE}: no implementation has a result."


def test_each_case_has_an_answer_in_order():
    other = dataclasses.replace(CASE, m_shard=8)
    found = answers([row("xla", 2, case=other), row("xla", 1), row("ppermute", 3, case=other)])
    assert [one.case for one in found] == [other, CASE]


def test_a_row_measured_again_replaces_the_earlier_one():
    assert answer(row("ppermute", 10), row("xla", 50), row("ppermute", 100)).implementation == "xla"


def test_of_islands_the_slowest_counts_with_its_own_baselines():
    times_us = {"h1": (90, 180, 60), "h2": (100, 150, 80)}
    rows = [
        row(name, time_us, island=island)
        for island, times in times_us.items()
        for name, time_us in zip(("ppermute", "xla", "local"), times, strict=True)
    ]
    found = answer(*rows)
    assert (found.time_us, found.speedup, found.ratio_to_local) == (100, 1.5, 1.25)
    assert "ppermute is fastest, 100.00 us on h2, the slowest of 2 islands: 1.50 times" in found.sentence


def test_an_implementation_that_some_islands_lack_does_not_compete():
    rows = [row("ppermute", 10, island="h1"), row("xla", 50, island="h1"), row("xla", 60, island="h2")]
    found = answer(*rows)
    assert (found.implementation, found.time_us) == ("xla", 60)
    assert "; ppermute (1 of 2 islands) is missing." in found.sentence
    found = answer(*rows, row("ppermute", None, check=FAILED, island="h2"))
    assert found.implementation == "xla"
    assert "; ppermute on h2 FAILED its check." in found.sentence


HEURISTIC = {"tile_m": 64, "tile_n": 256}


def candidate(time_us: float, *, bursts: int = 4, number: int = 1, reference: bool = False, **config) -> Row:
    samples = {"in_graph_us": [[[time_us]] * bursts] * 2}
    requested = f"tune:{number}/2" + (":heuristic" if reference else "")
    config = {**HEURISTIC, **config}
    return row("ppermute", None, requested=requested, config=config, samples_us=samples, **spreads(samples))


def test_the_best_config_is_compared_with_the_heuristics_of_its_round():
    rows = [
        candidate(90, tile_m=128),
        candidate(100, reference=True),
        # The machine became faster: less time, but a smaller gain.
        candidate(76, number=2, tile_m=32),
        candidate(80, number=2, reference=True),
    ]
    found = answer(*rows)
    assert (found.implementation, found.time_us, found.speedup, found.ratio_to_local) == ("ppermute", 90, None, None)
    assert found.sentence == (
        f"{CASE}: ppermute: tile_m=128 takes 90.00 us, 10.0 % less than the heuristic's config; 2 other configs tried."
    )


def test_a_candidate_that_was_stopped_early_does_not_compete():
    found = answer(candidate(50, bursts=1, tile_m=128), candidate(100, reference=True))
    assert found.time_us == 100
    assert "ppermute: no config is faster than the heuristic's, 100.00 us; 1 other config" in found.sentence
    assert found.sentence.endswith("1 stopped early.")


def test_the_required_gain_is_the_tuners():
    rows = [candidate(97, tile_m=128), candidate(100, reference=True)]
    assert answer(*rows).time_us == 97
    assert answer(*rows, min_gain=0.05).time_us == 100


def test_a_round_without_its_reference_has_no_winner():
    found = answer(candidate(50, tile_m=128))
    assert found.implementation is None
    assert "no time of the heuristic's config to compare with" in found.sentence


@pytest.mark.parametrize(("reference", "text"), [(HEURISTIC, "tile_n=128"), (None, "tile_m=64 tile_n=128")])
def test_changes_of_a_config(reference, text):
    assert changes({**HEURISTIC, "tile_n": 128}, reference) == text


def test_condensed_rows_give_the_same_answers():
    rows = [candidate(90, tile_m=128), candidate(100, reference=True)]
    assert answers(rows) == answers([row.summary() for row in rows])
    rows = [row("ppermute", 80), row("xla", 160), row("local", 64)]
    assert answers(rows) == answers([row.summary() for row in rows])
