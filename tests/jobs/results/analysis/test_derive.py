import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.config.implementations import IN_TURN, LOCALS
from jobs.records.case import Case
from jobs.results.analysis.derive import derive, fastest_us

ARTICLE = Case(name="article", m_shard=1024, k=4096, n_shard=4096, dtype="bfloat16", num_ranks=2)


def test_the_article_on_two_h200():
    # By hand: 2 * 2048 * 4096 * 4096 = 68,719,476,736 operations in 100 us = 687.19476736 TFLOP/s; the H200's datasheet
    # has 989.4. Gathered: 2 * 1024 * 4096 * 2 bytes = 16,777,216 bytes in 100 us = 167.77216 GB/s, times 1/2.
    found = derive(ARTICLE, 100.0, local_us=80.0, xla_us=160.0, device_kind="NVIDIA H200")
    assert found.tflops_per_gpu == pytest.approx(687.19476736)
    assert found.utilisation == pytest.approx(687.19476736 / 989.4)
    assert found.ratio_to_local == pytest.approx(1.25)
    assert found.speedup_over_xla == pytest.approx(1.6)
    assert found.bus_bandwidth_gbps == pytest.approx(83.88608)
    assert found.overlap_efficiency == pytest.approx(0.75)
    assert found.article_bound_us == pytest.approx(86.0)


def test_four_ranks_of_float32_on_a_cpu():
    # 2 * 4 * 64 * 256 * 128 = 16,777,216 operations in 1 ms = 0.016777216 TFLOP/s. Gathered: 4 * 64 * 256 * 4 bytes =
    # 262,144 bytes in 1 ms = 0.262144 GB/s, times 3/4.
    case = Case(name="tiny", m_shard=64, k=256, n_shard=128, dtype="float32", num_ranks=4)
    found = derive(case, 1000.0, local_us=None, xla_us=None, device_kind="cpu")
    assert found.tflops_per_gpu == pytest.approx(0.016777216)
    assert found.bus_bandwidth_gbps == pytest.approx(0.196608)
    assert found.utilisation is None
    assert found.ratio_to_local is None
    assert found.speedup_over_xla is None
    assert found.overlap_efficiency is None
    assert found.article_bound_us is None


def test_six_us_for_each_exchange():
    case = Case(name="x", m_shard=1, k=8, n_shard=1, dtype="float16", num_ranks=8)
    assert derive(case, 9.0, local_us=5.0, xla_us=None, device_kind="cpu").article_bound_us == 5.0 + 6 * 7


def test_baselines_themselves():
    xla = derive(ARTICLE, 160.0, local_us=80.0, xla_us=160.0, device_kind="cpu")
    assert (xla.overlap_efficiency, xla.speedup_over_xla) == (0.0, 1.0)
    local = derive(ARTICLE, 80.0, local_us=80.0, xla_us=160.0, device_kind="cpu", communicates=False)
    assert (local.overlap_efficiency, local.ratio_to_local) == (1.0, 1.0)
    assert local.bus_bandwidth_gbps is None


@pytest.mark.parametrize(
    ("headlines", "bound_us"),
    [
        ({"xla": 70.0, "local": 91.0, "local_cublas": 90.0, "mosaic_gpu": 60.0}, 90.0),
        ({"local": 90.0, "local_cublas": 91.0}, 90.0),
        ({"local": 90.0, "local_cublas": None}, 90.0),
        ({"local": None, "local_cublas": 91.0}, 91.0),
        ({"local_cublas": 91.0, "xla": 70.0}, 91.0),
        ({"xla": 70.0, "local": None}, None),
    ],
)
def test_the_bound_is_the_faster_multiply_of_those_measured(headlines, bound_us):
    assert fastest_us(LOCALS, headlines) == bound_us


def test_speedups_are_over_the_faster_multiply_after_the_all_gather():
    assert fastest_us(IN_TURN, {"xla": 150.0, "xla_cublas": 140.0, "local": 90.0}) == 140.0
    assert fastest_us(IN_TURN, {"xla": 150.0, "local_cublas": 90.0}) == 150.0


@pytest.mark.parametrize("xla_us", [80.0, 70.0])
def test_overlap_is_undefined_where_communication_costs_nothing(xla_us):
    assert derive(ARTICLE, 75.0, local_us=80.0, xla_us=xla_us, device_kind="cpu").overlap_efficiency is None


def test_single_rank_has_nothing_to_exchange():
    case = Case(name="x", m_shard=64, k=64, n_shard=64, dtype="bfloat16", num_ranks=1)
    found = derive(case, 10.0, local_us=9.0, xla_us=11.0, device_kind="cpu")
    assert found.bus_bandwidth_gbps == 0.0
    assert found.overlap_efficiency is None
    assert found.article_bound_us == 9.0


@pytest.mark.parametrize("time_us", [0.0, -1.0, math.nan])
def test_time_that_is_none(time_us):
    with pytest.raises(ValueError, match=r"headline_us=.* must be greater than 0"):
        derive(ARTICLE, time_us, local_us=None, xla_us=None, device_kind="cpu")
    with pytest.raises(ValueError, match=r"local_us=.* must be greater than 0"):
        derive(ARTICLE, 1.0, local_us=time_us, xla_us=None, device_kind="cpu")


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e6), st.floats(1.0, 1e6))
def test_all_ratios_agree(time_us, local_us, xla_us):
    found = derive(ARTICLE, time_us, local_us=local_us, xla_us=xla_us, device_kind="NVIDIA H200")
    assert found.ratio_to_local * found.speedup_over_xla == pytest.approx(xla_us / local_us)
    if found.overlap_efficiency is not None:
        assert xla_us - found.overlap_efficiency * (xla_us - local_us) == pytest.approx(time_us, abs=1e-6 * xla_us)
