"""The cost model against figures worked out by hand."""

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmkernel import cost
from cmkernel.cost import Links

TUTORIAL = {"m_shard": 1024, "k": 4096, "n_shard": 4096}


def test_flops_and_bytes_of_the_tutorial_problem():
    assert cost.flops(**TUTORIAL, num_ranks=2) == 2 * 2048 * 4096 * 4096
    assert cost.received_bytes(m_shard=1024, k=4096, num_ranks=2, dtype="bfloat16") == 8 * 2**20
    assert cost.gathered_bytes(m_shard=1024, k=4096, num_ranks=2, dtype="float32") == 32 * 2**20


@pytest.mark.parametrize(("num_ranks", "local_us"), [(2, 69.5), (4, 138.9), (8, 277.8)])
def test_expected_time_on_an_h200(num_ranks, local_us):
    expected = cost.expected_time(cost.device_model("NVIDIA H200"), **TUTORIAL, num_ranks=num_ranks, dtype="bfloat16")
    assert expected.local_us == pytest.approx(local_us, abs=0.1)
    exchanges = num_ranks - 1
    # 8.4 MB at 450 GB/s take 18.6 us: less than a step's multiply, so the ring hides them all.
    assert expected.exchange_us == pytest.approx(exchanges * 18.64, abs=0.01)
    assert expected.overlapped_us == pytest.approx(expected.local_us)
    assert expected.serial_us == pytest.approx(expected.local_us + expected.exchange_us)
    assert expected.article_bound_us == pytest.approx(expected.local_us + 6 * exchanges)


def test_a_narrow_weight_leaves_the_exchange_exposed():
    device = cost.device_model("NVIDIA H200")
    expected = cost.expected_time(device, m_shard=1024, k=4096, n_shard=512, num_ranks=4, dtype="bfloat16")
    assert expected.overlapped_us == pytest.approx(3 * 18.64 + 1024 * 4096 * 512 * 2 / 989.4e6, abs=0.1)


def test_one_rank_communicates_nothing():
    expected = cost.expected_time(cost.device_model("NVIDIA H200"), **TUTORIAL, num_ranks=1, dtype="float16")
    assert expected.exchange_us == 0
    assert expected.local_us == expected.serial_us == expected.overlapped_us == expected.article_bound_us


def test_no_peak_is_claimed_where_none_is_known():
    assert cost.peak_tflops("cpu", "bfloat16") is None
    assert cost.peak_tflops("NVIDIA H200", "float32") is None
    assert cost.peak_tflops("NVIDIA H200", "float16") == 989.4


def test_the_tutorial_bound_from_a_measured_time():
    # The JAX tutorial: 43 us a shard on one H100, two ranks.
    assert cost.article_bound_us(2 * 43, 2) == 92


# Both rings over hosts: 8.39 MB a shard; a step's multiply takes 34.7 us on an H200, its NVLink 18.6 us.

PEAK_TFLOPS = 989.4
STEP_US, LINK_US = 34.73, 8 * 2**20 / 450e3


def rings(links, *, num_hosts, devices_per_host, peak_tflops=PEAK_TFLOPS, **sizes):
    return cost.expected_rings(
        links,
        peak_tflops=peak_tflops,
        **{**TUTORIAL, **sizes},
        num_hosts=num_hosts,
        devices_per_host=devices_per_host,
        dtype="bfloat16",
    )


def test_the_two_level_ring_wins_on_two_hosts_that_share_a_slow_card():
    """15 shards cross one after the other in the flat ring, and 8 at once in the two-level one."""
    expected = rings(Links(450.0, nic_gbytes_per_s=25.0), num_hosts=2, devices_per_host=8)
    crossing_us = 8 * 2**20 / 25e3
    assert expected.flat_us == pytest.approx(15 * crossing_us + STEP_US, abs=0.1)
    assert expected.two_level_us == pytest.approx(8 * crossing_us + 8 * STEP_US, abs=0.1)
    assert expected.prefers_two_level


def test_a_card_for_each_device_carries_one_shard_a_revolution():
    """The default of an H200 host: 168 us a crossing hide behind eight multiplies, but not behind one."""
    expected = rings(cost.default_links("NVIDIA H200"), num_hosts=2, devices_per_host=8)
    assert expected.flat_us == pytest.approx(15 * 167.8 + STEP_US, abs=1)
    assert expected.two_level_us == pytest.approx(16 * STEP_US, abs=0.1), "as fast as the multiply"
    assert expected.prefers_two_level


def test_cards_shared_by_a_few_devices():
    """4 devices on 3 cards: one of these has two shards to send."""
    slow = {"num_hosts": 3, "devices_per_host": 4, "peak_tflops": None}
    one, three, four = (rings(Links(450.0, 25.0, nics_per_host=n), **slow).two_level_us for n in (1, 3, 4))
    last_us = 3 * LINK_US
    assert one - last_us == pytest.approx(2 * (three - last_us)) == pytest.approx(4 * (four - last_us))


def test_a_fast_network_leaves_nothing_to_win():
    expected = rings(Links(450.0, nic_gbytes_per_s=400.0), num_hosts=2, devices_per_host=8)
    assert expected.flat_us == pytest.approx(expected.two_level_us)
    assert not expected.prefers_two_level


SIZES = st.integers(1, 2**14)
BANDWIDTH = st.floats(0.01, 2_000)


@given(
    links=st.builds(Links, link_gbytes_per_s=BANDWIDTH, nic_gbytes_per_s=BANDWIDTH, nics_per_host=st.integers(1, 10)),
    sizes=st.fixed_dictionaries({"m_shard": SIZES, "k": SIZES, "n_shard": SIZES}),
    num_hosts=st.integers(1, 8),
    devices_per_host=st.integers(1, 8),
    peak_tflops=st.none() | st.just(PEAK_TFLOPS),
)
def test_the_two_level_ring_loses_nowhere_and_ties_with_one_level(
    links, sizes, num_hosts, devices_per_host, peak_tflops
):
    shape = {"num_hosts": num_hosts, "devices_per_host": devices_per_host, "peak_tflops": peak_tflops}
    expected = rings(links, **sizes, **shape)
    if 1 in (num_hosts, devices_per_host):
        assert expected.two_level_us == pytest.approx(expected.flat_us)
        assert not expected.prefers_two_level
    assert expected.two_level_us <= expected.flat_us * (1 + 1e-9)


def test_both_rings_are_the_known_ring_on_one_host():
    device = cost.device_model("NVIDIA H200")
    for n_shard in (512, 4096):
        known = cost.expected_time(device, m_shard=1024, k=4096, n_shard=n_shard, num_ranks=8, dtype="bfloat16")
        expected = rings(cost.default_links("NVIDIA H200"), num_hosts=1, devices_per_host=8, n_shard=n_shard)
        assert expected.flat_us == pytest.approx(known.overlapped_us)


@pytest.mark.parametrize("field", ["link_gbytes_per_s", "nic_gbytes_per_s", "nics_per_host"])
def test_links_carry_something(field):
    with pytest.raises(ValueError, match=f"{field}=0 must be greater than 0"):
        Links(**{"link_gbytes_per_s": 1.0, "nic_gbytes_per_s": 1.0, "nics_per_host": 1, field: 0})


@pytest.mark.parametrize("name", ["link", "nic"])
def test_the_old_name_of_a_bandwidth_is_answered_with_the_new_one(name):
    with pytest.raises(TypeError, match=f"{name}_gbps=1.0 is now called {name}_gbytes_per_s"):
        Links(**{"link_gbytes_per_s": 1.0, "nic_gbytes_per_s": 1.0, f"{name}_gbps": 1.0})


def test_links_can_be_copied():
    links = Links(450.0, 50.0, 8)
    assert dataclasses.replace(links, nics_per_host=4) == Links(450.0, 50.0, 4)
    assert pickle.loads(pickle.dumps(links)) == copy.deepcopy(links) == links
