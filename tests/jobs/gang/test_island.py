import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.config.schema import ClusterSettings
from jobs.errors import NoCapacity, UsageError
from jobs.gang.island import cut
from jobs.gang.shape import Node


def nodes(*gpus, cpus=8, host="h{}"):
    return tuple(
        Node(f"id{i}", host.format(i), f"10.0.0.{i}", cpus, n, "H200" if n else None) for i, n in enumerate(gpus)
    )


def by_host(cluster):
    return {node.node_id: node.host for node in cluster}


def found(cluster, domains=None, **settings):
    islands = cut(cluster, domains or by_host(cluster), ClusterSettings(**settings))
    return {island.name: {share.node_id: share.num_ranks for share in island.shares} for island in islands}


def test_an_island_is_a_domain():
    assert found(nodes(8, 8)) == {"h0": {"id0": 8}, "h1": {"id1": 8}}
    two_racks = {"id0": "a", "id1": "a", "id2": "b", "id3": "b"}
    assert found(nodes(4, 4, 4, 4), two_racks) == {"h0..h1": {"id0": 4, "id1": 4}, "h2..h3": {"id2": 4, "id3": 4}}
    assert found(nodes(8, 0, 8)) == {"h0": {"id0": 8}, "h2": {"id2": 8}}, "a head without GPUs has no ranks"


def test_a_domain_with_room_for_several_is_several():
    assert found(nodes(8, 8), num_ranks=4) == {
        **{"h0/0": {"id0": 4}, "h0/1": {"id0": 4}},
        **{"h1/0": {"id1": 4}, "h1/1": {"id1": 4}},
    }
    assert found(nodes(8, 4), num_ranks=4) == {"h0/0": {"id0": 4}, "h0/1": {"id0": 4}, "h1": {"id1": 4}}


def test_two_raylets_of_one_machine_are_one_domain():
    pair = nodes(1, 1, host="box")
    machine = {"id0": "boot", "id1": "boot"}
    assert found(pair, machine) == {"box": {"id0": 1, "id1": 1}}
    assert found(pair, machine, num_ranks=1) == {"box/0": {"id0": 1}, "box/1": {"id1": 1}}


def test_containers_of_two_machines_may_have_one_name():
    assert found(nodes(8, 8, host="pod"), {"id0": "a", "id1": "b"}) == {"pod#0": {"id0": 8}, "pod#1": {"id1": 8}}


def test_cpus():
    assert found(nodes(0, 0, cpus=2)) == {"h0": {"id0": 2}, "h1": {"id1": 2}}
    assert set(found(nodes(0, cpus=9), num_ranks=4)) == {"h0/0", "h0/1"}
    assert found(nodes(0, cpus=64)) == {"h0": {"id0": 4}}, "CPU ranks are for trying things out"


@pytest.mark.parametrize(
    ("gpus", "num_ranks", "error", "message"),
    [
        ((8, 7), None, UsageError, "islands of one size, but the GPUs are 8 on h0, 7 on h1: set cluster.num_ranks"),
        ((8, 7), 4, UsageError, "cluster.num_ranks=4 must divide the GPUs of every domain: 8 on h0, 7 on h1"),
        ((8, 8), 16, UsageError, "cluster.num_ranks=16 must divide the GPUs"),
    ],
)
def test_refusals(gpus, num_ranks, error, message):
    with pytest.raises(error, match=message):
        found(nodes(*gpus), num_ranks=num_ranks)


def test_no_room():
    with pytest.raises(NoCapacity, match="num_ranks=3, but no domain has that many CPUs: 2 on h0"):
        found(nodes(0, cpus=2), num_ranks=3)


@given(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=6), st.sampled_from([1, 2]), st.integers(1, 3))
def test_islands_stay_in_their_domain_and_take_every_gpu_once(gpus, num_ranks, hosts_of_a_domain):
    cluster = nodes(*gpus)
    domains = {node.node_id: str(i // hosts_of_a_domain) for i, node in enumerate(cluster)}
    islands = cut(cluster, domains, ClusterSettings(num_ranks=num_ranks))
    assert len({island.name for island in islands}) == len(islands) == sum(gpus) // num_ranks
    for island in islands:
        assert island.num_ranks == num_ranks
        assert len({domains[share.node_id] for share in island.shares}) == 1
    for node in cluster:
        shares = [share for island in islands for share in island.shares if share.node_id == node.node_id]
        assert sum(share.num_ranks for share in shares) == node.num_gpus


def test_a_raylet_started_anew_stands_in_for_the_one_that_is_gone():
    cluster = nodes(1, 1, host="box")
    first, second = cut(cluster, {"id0": "boot", "id1": "boot"}, ClusterSettings(num_ranks=1))
    assert (second.shape(cluster).node_ids, second.shape(cluster).ranks_per_bundle) == (("id1",), (1,))
    anew = dataclasses.replace(cluster[1], node_id="id9")
    assert second.shape((cluster[0], anew)).node_ids == ("id9",)
    assert first.shape((cluster[0], anew)).node_ids == ("id0",)
    with pytest.raises(NoCapacity, match="island box/1 needs its host box"):
        second.shape(cluster[:1])
