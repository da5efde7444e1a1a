"""The schedule, executed on paper: any number of ranks, any order in which they make progress."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmkernel import ring
from cmkernel.ring import TwoLevelRing

NUM_RANKS = range(1, 17)


def sent_in(step, rank, num_ranks):
    """Receiver and slot of what a rank sends in a step of the flat ring."""
    if ring.sends_in(step, num_ranks):
        yield ring.send_rank(rank, num_ranks), ring.write_slot(step)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_every_rank_multiplies_every_shard_once(num_ranks):
    for rank in range(num_ranks):
        shards = [ring.source_shard(rank, step, num_ranks) for step in range(num_ranks)]
        assert sorted(shards) == list(range(num_ranks))
        assert shards[0] == rank, "the first step needs no communication"


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_a_rank_forwards_what_its_neighbour_multiplies_next(num_ranks):
    for rank in range(num_ranks):
        for step in range(num_ranks - 1):
            ((receiver, slot),) = sent_in(step, rank, num_ranks)
            assert ring.source_shard(receiver, step + 1, num_ranks) == ring.source_shard(rank, step, num_ranks)
            assert ring.read_slot(step + 1) == slot < ring.num_scratch_slots(num_ranks)
        assert not list(sent_in(num_ranks - 1, rank, num_ranks))


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_neighbours_agree(num_ranks):
    for rank in range(num_ranks):
        assert ring.receive_rank(ring.send_rank(rank, num_ranks), num_ranks) == rank
    sources, destinations = zip(*ring.permutation(num_ranks), strict=True)
    assert sorted(sources) == sorted(destinations) == list(range(num_ranks))


@given(data=st.data(), num_ranks=st.integers(1, 16))
def test_no_slot_is_overwritten_and_nobody_waits_for_ever(data, num_ranks):
    """Ranks advance in an arbitrary order; a rank may start a step only when its shard has arrived."""
    scratch = [[None] * ring.num_scratch_slots(num_ranks) for _ in range(num_ranks)]
    next_step = [0] * num_ranks

    def shard_of(rank):
        step = next_step[rank]
        return scratch[rank][ring.read_slot(step)] if step > 0 else rank

    while any(step < num_ranks for step in next_step):
        ready = [rank for rank in range(num_ranks) if next_step[rank] < num_ranks and shard_of(rank) is not None]
        assert ready, "deadlock"
        rank = data.draw(st.sampled_from(ready))
        shard, step = shard_of(rank), next_step[rank]
        assert shard == ring.source_shard(rank, step, num_ranks)
        for receiver, slot in sent_in(step, rank, num_ranks):
            # The neighbour may be any number of steps behind: what lies in a slot may still be in use.
            assert scratch[receiver][slot] is None
            scratch[receiver][slot] = shard
        next_step[rank] += 1


# The two-level ring.

HOSTS = [(num_hosts, num_devices) for num_hosts in range(1, 9) for num_devices in range(1, 9)]


def steps(hosts):
    return [(outer, inner) for outer in range(hosts.num_hosts) for inner in range(hosts.devices_per_host)]


def sent(hosts, outer, inner, rank):
    """Receiver and slot of each copy of its shard that a rank sends in a step."""
    if hosts.sends_across(outer, inner):
        yield hosts.outer_send_rank(rank), hosts.outer_write_slot(outer)
    if hosts.sends_within(inner):
        yield hosts.inner_send_rank(rank), hosts.inner_write_slot(outer, inner)


@pytest.mark.parametrize(("num_hosts", "num_devices"), HOSTS)
def test_two_levels_multiply_every_shard_once(num_hosts, num_devices):
    hosts = TwoLevelRing(num_hosts, num_devices)
    for rank in range(hosts.num_ranks):
        shards = [hosts.source_shard(rank, *step) for step in steps(hosts)]
        assert sorted(shards) == list(range(hosts.num_ranks))
        assert shards[0] == rank, "the first step needs no communication"
        for start in range(0, hosts.num_ranks, num_devices):
            assert len({shard // num_devices for shard in shards[start : start + num_devices]}) == 1, "a host at a time"


@pytest.mark.parametrize(("num_hosts", "num_devices"), HOSTS)
def test_two_levels_send_each_shard_once_and_before_it_is_needed(num_hosts, num_devices):
    """In lockstep: whatever is sent in a step has landed when the step ends."""
    hosts = TwoLevelRing(num_hosts, num_devices)
    scratch = [[None] * ring.num_scratch_slots(hosts.num_ranks) for _ in range(hosts.num_ranks)]
    for outer, inner in steps(hosts):
        landing = []
        for rank in range(hosts.num_ranks):
            step = hosts.step(outer, inner)
            shard = scratch[rank][ring.read_slot(step)] if step > 0 else rank
            assert shard == hosts.source_shard(rank, outer, inner)
            landing += [(*where, shard) for where in sent(hosts, outer, inner, rank)]
        for receiver, slot, shard in landing:
            assert scratch[receiver][slot] is None
            scratch[receiver][slot] = shard
    assert all(shard is not None for slots in scratch for shard in slots)


@pytest.mark.parametrize(("num_hosts", "num_devices"), HOSTS)
def test_two_levels_cross_between_hosts_once_a_revolution(num_hosts, num_devices):
    hosts = TwoLevelRing(num_hosts, num_devices)
    num_ranks = hosts.num_ranks
    within = [0] * num_ranks
    across = [[0] * num_hosts for _ in range(num_ranks)]
    for outer, inner in steps(hosts):
        for rank in range(num_ranks):
            for receiver, _ in sent(hosts, outer, inner, rank):
                if receiver // num_devices == rank // num_devices:
                    within[rank] += 1
                else:
                    assert receiver == (rank - num_devices) % num_ranks, "the twin in the host before"
                    across[rank][outer] += 1
    assert within == [num_hosts * (num_devices - 1)] * num_ranks
    assert across == [[1] * (num_hosts - 1) + [0]] * num_ranks
    # The least that any schedule can do: each host gets every shard of the others once.
    by_host = (num_hosts - 1) * num_devices
    # The flat ring: only the first rank of each host crosses, in each of its steps.
    flat = [
        sum(
            receiver // num_devices != rank // num_devices
            for step in range(num_ranks)
            for receiver, _ in sent_in(step, rank, num_ranks)
        )
        for rank in range(num_ranks)
    ]
    if num_hosts > 1:
        assert flat == ([num_ranks - 1] + [0] * (num_devices - 1)) * num_hosts
        assert by_host <= sum(flat[:num_devices]) == by_host + num_devices - 1


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_one_level_alone_is_the_flat_ring(num_ranks):
    for hosts in (TwoLevelRing(num_ranks, 1), TwoLevelRing(1, num_ranks)):
        for rank in range(num_ranks):
            for step, (outer, inner) in enumerate(steps(hosts)):
                assert hosts.source_shard(rank, outer, inner) == ring.source_shard(rank, step, num_ranks)
                assert list(sent(hosts, outer, inner, rank)) == list(sent_in(step, rank, num_ranks))


@pytest.mark.parametrize(("num_hosts", "num_devices"), HOSTS)
def test_both_permutations_move_every_rank(num_hosts, num_devices):
    hosts = TwoLevelRing(num_hosts, num_devices)
    for permutation in (hosts.inner_permutation(), hosts.outer_permutation()):
        sources, destinations = zip(*permutation, strict=True)
        assert list(sources) == sorted(destinations) == list(range(hosts.num_ranks))


@settings(deadline=None)
@given(data=st.data(), num_hosts=st.integers(1, 8), num_devices=st.integers(1, 8))
def test_two_levels_in_any_order_of_progress(data, num_hosts, num_devices):
    """Ranks advance in an arbitrary order, and what they send may land in any order."""
    hosts = TwoLevelRing(num_hosts, num_devices)
    order = steps(hosts)
    scratch = [[None] * ring.num_scratch_slots(hosts.num_ranks) for _ in range(hosts.num_ranks)]
    next_step = [0] * hosts.num_ranks
    flying = []
    rng = data.draw(st.randoms(use_true_random=False))

    def can_run(rank):
        step = next_step[rank]
        return step < len(order) and (step == 0 or scratch[rank][ring.read_slot(step)] is not None)

    while any(step < len(order) for step in next_step):
        first = rng.randrange(hosts.num_ranks)
        anyone = ((first + i) % hosts.num_ranks for i in range(hosts.num_ranks))
        rank = next((rank for rank in anyone if can_run(rank)), None)
        assert rank is not None or flying, "deadlock"
        if flying and (rank is None or rng.random() < 0.5):
            receiver, slot, shard = flying.pop(rng.randrange(len(flying)))
            assert scratch[receiver][slot] is None
            scratch[receiver][slot] = shard
            continue
        step = next_step[rank]
        shard = scratch[rank][ring.read_slot(step)] if step > 0 else rank
        assert shard == hosts.source_shard(rank, *order[step])
        flying += [(*where, shard) for where in sent(hosts, *order[step], rank)]
        next_step[rank] += 1
    assert not flying


@pytest.mark.parametrize(("sizes", "name"), [((0, 2), "num_hosts"), ((2, 0), "devices_per_host")])
def test_a_ring_of_no_ranks_is_refused(sizes, name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        TwoLevelRing(*sizes)


@given(num_rows=st.integers(1, 300), num_chunks=st.integers(1, 400))
def test_pieces_are_all_rows_once_and_none_is_empty(num_rows, num_chunks):
    pieces = ring.pieces(num_rows, num_chunks)
    assert len(pieces) == min(num_chunks, num_rows)
    assert [row for start, stop in pieces for row in range(start, stop)] == list(range(num_rows))
    sizes = {stop - start for start, stop in pieces}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
