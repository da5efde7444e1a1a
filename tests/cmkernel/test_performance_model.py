"""The config that a shape gets: valid, and the one that was fastest where that was measured."""

import pytest

from cmkernel.config import KernelConfig, SimpleKernelConfig, validate_shape
from cmkernel.performance_model import heuristic_config, modelled_calls_us, modelled_us, simple_heuristic_config
from cmkernel.protocol import make_protocol

NUM_SMS = 132


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("m_shard", [1, 64, 256, 1000, 4096])
@pytest.mark.parametrize(("k", "n_shard"), [(64, 8), (4096, 3072), (8192, 28672), (4104, 4200)])
def test_every_shape_gets_a_config_that_the_kernel_takes(num_ranks, m_shard, k, n_shard):
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": num_ranks}
    for num_sms in (2, 78, NUM_SMS):
        config = heuristic_config(**sizes, num_sms=num_sms)
        protocol = make_protocol(config, **sizes, num_sms=num_sms)
        assert protocol.num_compute_ctas > 0
        assert (config.num_comm_ctas == 0) or num_ranks > 1


@pytest.mark.parametrize(
    ("shape", "cta_tile", "options"),
    [
        # Two whole waves beside four senders.
        ((1024, 4096, 4096), (128, 256), {}),
        ((4096, 8192, 7168), (128, 256), {}),
        # Two whole waves of 128 x 192, too short for four senders: compute CTAs send the last chunk.
        ((1024, 4096, 3072), (128, 192), {"num_in_tile_chunks": 1}),
        # Two whole waves, and half of one: that is computed in halves.
        ((1024, 8192, 5120), (128, 256), {"split_last_wave": True}),
        # One wave.
        ((256, 8192, 3584), (128, 128), {"num_comm_ctas": 8, "wait_ahead": True}),
        ((256, 8192, 5120), (128, 192), {"num_comm_ctas": 8, "wait_ahead": True}),
    ],
)
def test_what_was_measured_on_two_h200s(shape, cta_tile, options):
    m_shard, k, n_shard = shape
    config = heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=2, num_sms=NUM_SMS)
    assert (config.cta_tile_m, config.cta_tile_n) == cta_tile
    expected = {"num_comm_ctas": 4, "num_in_tile_chunks": 0, "wait_ahead": False} | options
    assert {name: getattr(config, name) for name in expected} == expected


W128, W192 = {"tile_n": 128, "max_concurrent_steps": 6}, {"tile_n": 192}


@pytest.mark.parametrize(
    ("shape", "options", "measured_us"),
    [
        ((1024, 4096, 4096), {}, 87.3),
        ((4096, 4096, 3072), {}, 261.2),
        ((4096, 8192, 5120), {}, 876.1),
        ((1024, 8192, 28672), {}, 1216.5),
        ((1024, 8192, 5120), {"split_last_wave": True}, 216.0),
        ((1024, 8192, 5120), {"split_last_wave": True, "num_comm_ctas": 0}, 223.5),
        ((1024, 8192, 5120), {"grid_tile_width": 4}, 249.6),
        ((1024, 8192, 5120), W128, 236.2),
        ((1024, 4096, 3072), {**W192, "num_chunks": 8}, 70.7),
        ((1024, 4096, 3072), {**W192, "num_chunks": 8, "num_in_tile_chunks": 1}, 67.3),
        ((256, 8192, 3584), {**W128, "num_comm_ctas": 8, "num_chunks": 64, "wait_ahead": True}, 48.8),
        ((256, 8192, 3584), {**W128, "num_comm_ctas": 4, "num_chunks": 64, "wait_ahead": True}, 59.6),
        ((4096, 8192, 256), {"num_comm_ctas": 8, "num_chunks": 8}, 258.4),
    ],
)
def test_the_model_is_near_what_was_measured(shape, options, measured_us):
    m_shard, k, n_shard = shape
    modelled = modelled_us(KernelConfig(**options), m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=2, num_sms=NUM_SMS)
    assert modelled == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize(
    ("shape", "fastest"),
    [
        ((8, 4096, 3072), "xla"),
        ((64, 4096, 3072), "xla"),
        ((8, 8192, 28672), "xla"),
        ((128, 4096, 3072), "mosaic_gpu"),
        ((256, 4096, 3072), "mosaic_gpu"),
        ((1024, 4096, 4096), "mosaic_gpu"),
        ((4096, 8192, 28672), "mosaic_gpu"),
    ],
)
def test_which_implementation_was_measured_to_be_fastest(shape, fastest):
    m_shard, k, n_shard = shape
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard, "num_ranks": 2, "num_sms": NUM_SMS}
    times_us = modelled_calls_us(heuristic_config(**sizes), **sizes)
    assert min(times_us, key=times_us.get) == fastest


def test_of_equals_the_one_with_fewer_parts_is_taken():
    sizes = {"m_shard": 256, "k": 4104, "n_shard": 4100, "num_ranks": 2, "num_sms": NUM_SMS}
    times_us = modelled_calls_us(heuristic_config(**sizes), **sizes)
    assert times_us["ppermute"] == pytest.approx(times_us["xla"])
    assert min(times_us, key=times_us.get) == "xla"


@pytest.mark.parametrize(
    ("change", "copied_us"),
    [
        pytest.param({}, 0, id="nothing grows"),
        pytest.param({"m_shard": 1023}, 12.57, id="lhs of 8.38 MB and result of 16.76 MB"),
        pytest.param({"k": 4104}, 21.01, id="lhs of 8.40 MB and rhs of 33.62 MB"),
        pytest.param({"n_shard": 4104}, 25.21, id="rhs of 33.62 MB and result of 16.81 MB"),
    ],
)
def test_a_call_pays_for_its_padding(change, copied_us):
    """Every copied byte is read and written, at 4 TB/s each; the call itself costs 6 us."""
    sizes = {"m_shard": 1024, "k": 4096, "n_shard": 4096} | change | {"num_ranks": 2, "num_sms": NUM_SMS}
    config = heuristic_config(**sizes)
    paid_us = modelled_calls_us(config, **sizes)["mosaic_gpu"] - modelled_us(config, **sizes) - 6
    assert paid_us == pytest.approx(copied_us, abs=0.01)


@pytest.mark.parametrize(
    ("m_shard", "k", "n_shard"), [(1024, 4096, 4096), (256, 8192, 3072), (64, 256, 256), (64, 32, 64)]
)
def test_the_simple_heuristic_divides_the_shape(m_shard, k, n_shard):
    config = simple_heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard)
    assert isinstance(config, SimpleKernelConfig)
    validate_shape(config, m_shard=m_shard, k=k, n_shard=n_shard)


def test_the_simple_heuristic_says_which_rule_no_tile_can_keep():
    with pytest.raises(ValueError, match="m_shard=100 must be a multiple of"):
        simple_heuristic_config(m_shard=100, k=4096, n_shard=4096)
