import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.config.schema import ClusterSettings
from jobs.errors import InfrastructureError, UsageError
from jobs.gang.shape import Node, describe, natural, plan, wanted_ranks


def hosts(*gpus, cpus=8):
    return tuple(Node(f"id{i}", f"host{i}", f"10.0.0.{i}", cpus, n, "H200" if n else None) for i, n in enumerate(gpus))


@pytest.mark.parametrize(
    ("nodes", "settings", "num_ranks", "bundles", "strategy"),
    [
        (hosts(0), {}, 4, (1, 1, 1, 1), "PACK"),
        (hosts(0, cpus=2), {}, 2, (1, 1), "PACK"),
        (hosts(0, 0, cpus=2), {}, 4, (1, 1, 1, 1), "PACK"),
        (hosts(8), {}, 8, (8,), "STRICT_PACK"),
        (hosts(8, 8), {}, 16, (8, 8), "STRICT_SPREAD"),
        (hosts(1, 1), {}, 2, (1, 1), "STRICT_SPREAD"),
        (hosts(0, 8, 8), {}, 16, (8, 8), "STRICT_SPREAD"),
        (hosts(8, 8), {"num_ranks": 4}, 4, (4,), "STRICT_PACK"),
        (hosts(8, 4), {}, 12, (1,) * 12, "PACK"),
        (hosts(8, 8), {"num_ranks": 12}, 12, (1,) * 12, "PACK"),
        (hosts(8, 8), {"gpus_per_host": 2}, 4, (2, 2), "STRICT_SPREAD"),
        (hosts(8, 1), {"gpus_per_host": 2}, 2, (2,), "STRICT_SPREAD"),
        (hosts(8, 8), {"num_ranks": 2, "gpus_per_host": 1}, 2, (1, 1), "STRICT_SPREAD"),
    ],
)
def test_plan(nodes, settings, num_ranks, bundles, strategy):
    settings = ClusterSettings(**settings)
    assert wanted_ranks(nodes, settings) == num_ranks
    shape = plan(nodes, settings, num_ranks)
    assert (shape.ranks_per_bundle, shape.strategy) == (bundles, strategy)


@pytest.mark.parametrize(
    ("nodes", "settings", "message"),
    [
        (
            hosts(2),
            {"num_ranks": 8},
            r"cluster.num_ranks=8 needs 8 GPUs .* room for 2: host0 \(10.0.0.0\): 2 GPUs \(H200\), 8 CP",
        ),
        (hosts(0, cpus=2), {"num_ranks": 3}, "cluster.num_ranks=3 needs 3 CPUs .* room for 2: host0"),
        (hosts(0, 0), {"gpus_per_host": 1}, "cluster.gpus_per_host=1, but no host has that many: host0"),
        (hosts(8, 2), {"num_ranks": 8, "gpus_per_host": 4}, "needs 4 GPUs on each of 2 hosts, but there is room for 4"),
        (hosts(0), {"num_ranks": 2, "gpus_per_host": 2}, "cluster.gpus_per_host=2, but no GPU"),
        ((), {}, "needs 4 CPUs on any hosts, but there is room for 0: no hosts"),
    ],
)
def test_too_little(nodes, settings, message):
    settings = ClusterSettings(**settings)
    with pytest.raises(InfrastructureError, match=message):
        plan(nodes, settings, wanted_ranks(nodes, settings))


def test_num_ranks_must_fit_gpus_per_host():
    with pytest.raises(UsageError, match=r"cluster.num_ranks=3 must be a multiple of cluster.gpus_per_host=2"):
        plan(hosts(8, 8), ClusterSettings(gpus_per_host=2), 3)


@given(gpus=st.lists(st.integers(0, 8), min_size=1, max_size=6), num_ranks=st.integers(1, 48))
def test_bundles_hold_all_ranks_and_fit_the_hosts(gpus, num_ranks):
    nodes = hosts(*gpus, cpus=4)
    total = sum(gpus) or 4 * len(gpus)
    if num_ranks > total:
        with pytest.raises(InfrastructureError):
            plan(nodes, ClusterSettings(), num_ranks)
        return
    shape = plan(nodes, ClusterSettings(), num_ranks)
    assert shape.num_ranks == num_ranks
    assert shape.on_gpus == any(gpus)
    largest = sorted((n if any(gpus) else 4 for n in gpus), reverse=True)
    wanted = sorted(shape.ranks_per_bundle, reverse=True)
    if shape.strategy == "STRICT_SPREAD":
        assert len(wanted) <= len(largest)
        assert all(bundle <= host for bundle, host in zip(wanted, largest, strict=False))
    else:
        assert wanted[0] <= largest[0]


def test_natural_order():
    assert sorted(["gpu-10", "gpu-9", "cpu", "gpu-9b", "10", "9"], key=natural) == [
        "9",
        "10",
        "cpu",
        "gpu-9",
        "gpu-9b",
        "gpu-10",
    ]


def test_describe_is_cut_short():
    text = describe(hosts(*[8] * 20))
    assert text.count("host") == 9
    assert text.endswith("and 12 more hosts")
