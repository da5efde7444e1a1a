"""The schedule, executed on paper: any number of ranks, any order in which they make progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmkernel import ring

NUM_RANKS = range(1, 17)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_every_rank_multiplies_every_shard_once(num_ranks):
    for rank in range(num_ranks):
        shards = [step.source_shard for step in ring.schedule(rank, num_ranks)]
        assert sorted(shards) == list(range(num_ranks))
        assert shards[0] == rank, "the first step needs no communication"


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_a_rank_forwards_what_its_neighbour_multiplies_next(num_ranks):
    schedules = [ring.schedule(rank, num_ranks) for rank in range(num_ranks)]
    for steps in schedules:
        for step in steps[:-1]:
            received = schedules[step.send_rank][step.step + 1]
            assert received.source_shard == step.source_shard
            assert received.read_slot == step.write_slot
        assert steps[-1].send_rank is None


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_neighbours_agree(num_ranks):
    for rank in range(num_ranks):
        assert ring.receive_rank(ring.send_rank(rank, num_ranks), num_ranks) == rank
    sources, destinations = zip(*ring.permutation(num_ranks), strict=True)
    assert sorted(sources) == sorted(destinations) == list(range(num_ranks))


@given(data=st.data(), num_ranks=st.integers(1, 16))
def test_no_slot_is_overwritten_and_nobody_waits_for_ever(data, num_ranks):
    """Ranks advance in an arbitrary order; a rank may start a step only when its shard has arrived."""
    schedules = [ring.schedule(rank, num_ranks) for rank in range(num_ranks)]
    scratch = [[None] * ring.num_scratch_slots(num_ranks) for _ in range(num_ranks)]
    next_step = [0] * num_ranks

    def can_run(rank):
        if next_step[rank] == num_ranks:
            return False
        slot = schedules[rank][next_step[rank]].read_slot
        return slot is None or scratch[rank][slot] is not None

    while any(step < num_ranks for step in next_step):
        ready = [rank for rank in range(num_ranks) if can_run(rank)]
        assert ready, "deadlock"
        rank = data.draw(st.sampled_from(ready))
        step = schedules[rank][next_step[rank]]
        shard = rank if step.read_slot is None else scratch[rank][step.read_slot]
        assert shard == step.source_shard
        if step.send_rank is not None:
            # The neighbour may be any number of steps behind: what lies in a slot may still be in use.
            assert scratch[step.send_rank][step.write_slot] is None
            scratch[step.send_rank][step.write_slot] = shard
        next_step[rank] += 1


@pytest.mark.parametrize(("rank", "num_ranks"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_ring_is_refused(rank, num_ranks):
    with pytest.raises(ValueError, match=f"rank={rank} must be in"):
        ring.schedule(rank, num_ranks)
