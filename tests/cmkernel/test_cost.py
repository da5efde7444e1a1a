"""The cost model against figures worked out by hand."""

import pytest

from cmkernel import cost

ARTICLE = {"m_shard": 1024, "k": 4096, "n_shard": 4096}


def test_flops_and_bytes_of_the_article_problem():
    assert cost.flops(**ARTICLE, num_ranks=2) == 2 * 2048 * 4096 * 4096
    assert cost.received_bytes(m_shard=1024, k=4096, num_ranks=2, dtype="bfloat16") == 8 * 2**20
    assert cost.gathered_bytes(m_shard=1024, k=4096, num_ranks=2, dtype="float32") == 32 * 2**20


@pytest.mark.parametrize(("num_ranks", "local_us"), [(2, 69.5), (4, 138.9), (8, 277.8)])
def test_expected_time_on_an_h200(num_ranks, local_us):
    expected = cost.expected_time(cost.device_model("NVIDIA H200"), **ARTICLE, num_ranks=num_ranks, dtype="bfloat16")
    assert expected.local_us == pytest.approx(local_us, abs=0.1)
    exchanges = num_ranks - 1
    # 8.4 MB at 450 GB/s take 18.6 us: less than a step's multiply, so the ring hides them all.
    assert expected.gather_us == pytest.approx(exchanges * 18.64, abs=0.01)
    assert expected.overlapped_us == pytest.approx(expected.local_us)
    assert expected.serial_us == pytest.approx(expected.local_us + expected.gather_us)
    assert expected.article_bound_us == pytest.approx(expected.local_us + 6 * exchanges)


def test_a_narrow_weight_leaves_the_exchange_exposed():
    device = cost.device_model("NVIDIA H200")
    expected = cost.expected_time(device, m_shard=1024, k=4096, n_shard=512, num_ranks=4, dtype="bfloat16")
    assert expected.overlapped_us == pytest.approx(3 * 18.64 + 1024 * 4096 * 512 * 2 / 989.4e6, abs=0.1)


def test_one_rank_communicates_nothing():
    expected = cost.expected_time(cost.device_model("NVIDIA H200"), **ARTICLE, num_ranks=1, dtype="float16")
    assert expected.gather_us == 0
    assert expected.local_us == expected.serial_us == expected.overlapped_us == expected.article_bound_us


def test_no_peak_is_claimed_where_none_is_known():
    assert cost.peak_tflops("cpu", "bfloat16") is None
    assert cost.peak_tflops("NVIDIA H200", "float32") is None
    assert cost.peak_tflops("NVIDIA H200", "float16") == 989.4


def test_the_article_bound_from_a_measured_time():
    # The article: 43 us a shard on one H100, two ranks.
    assert cost.article_bound_us(2 * 43, 2) == 92
