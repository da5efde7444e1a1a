"""The config that a shape gets: valid, and the one that was fastest where that was measured."""

import pytest

from cmkernel.config import KernelConfig, SimpleKernelConfig, validate_shape
from cmkernel.protocol import make_protocol
from cmkernel.tuning import heuristic_config, modelled_us, simple_heuristic_config

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
    ("shape", "cta_tile", "num_comm_ctas"),
    [
        # Two waves with and without four senders.
        ((1024, 4096, 4096), (128, 256), 4),
        ((4096, 8192, 7168), (128, 256), 4),
        # 128 x 192 makes two whole waves, too short for four senders.
        ((1024, 4096, 3072), (128, 192), 0),
        # Six waves are too short for four senders; more would add a wave.
        ((4096, 4096, 3072), (128, 256), 0),
        # One wave.
        ((256, 8192, 3584), (128, 128), 8),
        ((256, 8192, 5120), (128, 192), 8),
    ],
)
def test_what_was_measured_on_two_h200s(shape, cta_tile, num_comm_ctas):
    m_shard, k, n_shard = shape
    config = heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=2, num_sms=NUM_SMS)
    assert (config.cta_tile_m, config.cta_tile_n) == cta_tile
    assert config.num_comm_ctas == num_comm_ctas
    assert config.wait_ahead == (m_shard == 256)


@pytest.mark.parametrize(
    ("shape", "options", "measured_us"),
    [
        ((1024, 4096, 4096), {}, 87.8),
        ((1024, 4096, 4096), {"num_comm_ctas": 0}, 93.8),
        ((1024, 4096, 4096), {"num_comm_ctas": 2}, 142.8),
        ((2048, 8192, 7168), {}, 606.8),
        ((2048, 8192, 7168), {"num_comm_ctas": 8}, 676.3),
        ((4096, 4096, 3072), {}, 292.7),
        ((1024, 4096, 3072), {"tile_n": 192}, 83.3),
        ((1024, 4096, 3072), {"tile_n": 192, "num_comm_ctas": 0}, 79.9),
        ((1024, 4096, 3072), {"tile_n": 128, "max_concurrent_steps": 6}, 98.3),
        ((1024, 8192, 5120), {}, 250.5),
        ((1024, 8192, 5120), {"tile_n": 128, "max_concurrent_steps": 6}, 244.9),
        ((256, 8192, 5120), {"tile_n": 128, "max_concurrent_steps": 6}, 97.6),
    ],
)
def test_the_model_is_near_what_was_measured(shape, options, measured_us):
    m_shard, k, n_shard = shape
    modelled = modelled_us(KernelConfig(**options), m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=2, num_sms=NUM_SMS)
    assert modelled == pytest.approx(measured_us, rel=0.08)


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
