"""A config that exists is valid; one that isn't valid says which rule it breaks."""

import itertools

import pytest

from cmkernel.config import (
    CONFIG_TYPES,
    SMEM_LIMIT_BYTES,
    KernelConfig,
    MatmulDimension,
    PpermuteConfig,
    SimpleKernelConfig,
    from_plain,
    smem_bytes,
    to_plain,
    validate_shape,
)

TILED = (KernelConfig, SimpleKernelConfig)
# So small that more of it fits in shared memory than Mosaic takes.
NARROW = {"tile_m": 64, "tile_n": 16, "tile_k": 16, "epi_tile_n": 16, "wg_dimension": MatmulDimension.M}


def test_smem_of_the_tutorial_config_is_what_its_tiles_add_up_to():
    slots = 4 * (128 * 64 + 64 * 256) * 2
    epilogue = 2 * 2 * 64 * 64 * 2
    assert smem_bytes(SimpleKernelConfig()) == slots + epilogue + 2048


def test_the_defaults_of_both_kernels_compute_the_same_tile():
    for config in (KernelConfig(), SimpleKernelConfig()):
        assert (config.cta_tile_m, config.cta_tile_n) == (128, 256)


@pytest.mark.parametrize("config_type", TILED)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile_m": 100}, "tile_m=100 must be a multiple of 64"),
        ({"tile_n": 288}, "tile_n=288 must be a multiple of 64"),
        ({"tile_n": 320}, "tile_n=320 must be .* at most 256"),
        ({"tile_k": 48}, "tile_k=48 must be 16, 32, 64 or 128"),
        ({"max_concurrent_steps": 1}, "max_concurrent_steps=1 must be at least 2 and at most 32"),
        ({**NARROW, "max_concurrent_steps": 33}, "max_concurrent_steps=33 must be at least 2 and at most 32"),
        (
            {**NARROW, "tile_m": 1088, "max_concurrent_steps": 2},
            "tile_m=1088 with wg_dimension=M gives a block 2176 rows; a copy takes at most 2048",
        ),
        ({"epi_tile_m": 96}, "epi_tile_m=96 must be a multiple of 64 that divides tile_m="),
        ({"epi_tile_n": 60}, "epi_tile_n=60 must be a multiple of 16 that divides tile_n="),
        ({"grid_tile_width": 0}, "grid_tile_width=0 must be at least 1"),
        ({"wg_dimension": "M"}, "wg_dimension='M' must be of type MatmulDimension"),
        ({"tile_m": 64.0}, "tile_m=64.0 must be of type int"),
        ({"tile_m": 128, "tile_n": 256, "epi_tile_n": 64}, "needs 256 accumulator registers"),
        ({"max_concurrent_steps": 5}, f"bytes of shared memory a block; the limit is {SMEM_LIMIT_BYTES}"),
    ],
)
def test_an_invalid_config_names_option_value_and_rule(config_type, options, message):
    with pytest.raises(ValueError, match=message):
        config_type(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chunks": 0}, "num_chunks=0 must be at least 1"),
        ({"num_comm_ctas": -1}, "num_comm_ctas=-1 must be at least 0"),
    ],
)
def test_an_invalid_way_of_sending_names_option_value_and_rule(options, message):
    with pytest.raises(ValueError, match=message):
        KernelConfig(**options)


@pytest.mark.parametrize(
    ("options", "num_block_slots"),
    [
        # Pipelines of 48, 96, 128 and 192 KiB, for two sending warps with blocks of 16 KiB.
        ({"tile_n": 64, "max_concurrent_steps": 2}, 2),
        ({"tile_n": 128, "max_concurrent_steps": 3}, 3),
        ({"tile_n": 128, "max_concurrent_steps": 4}, 4),
        ({}, 4),
    ],
)
def test_a_sending_warp_has_the_blocks_that_its_share_of_the_pipeline_holds(options, num_block_slots):
    assert KernelConfig(**options).num_block_slots == num_block_slots


def test_smem_counts_the_pipeline_or_the_blocks_whichever_is_larger():
    epilogue = 2 * 1 * 64 * 64 * 2
    small = {"tile_n": 64, "max_concurrent_steps": 2}
    assert smem_bytes(KernelConfig(**small)) == 2 * 2 * 16 * 1024 + epilogue + 2048
    # In-tile sending has no blocks.
    assert smem_bytes(KernelConfig(**small, num_comm_ctas=0)) == 2 * (128 * 64 + 64 * 64) * 2 + epilogue + 2048
    # Larger pipelines have room for them.
    assert smem_bytes(KernelConfig()) == smem_bytes(KernelConfig(num_comm_ctas=0))


@pytest.mark.parametrize("config_type", TILED)
def test_every_constructible_config_fits_in_shared_memory(config_type):
    built = 0
    for tile_m, tile_n, tile_k, steps, wg in itertools.product(
        (64, 128, 192), (64, 128, 192, 256), (32, 64, 128), (3, 4, 6, 8), MatmulDimension
    ):
        try:
            config = config_type(
                tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, max_concurrent_steps=steps, wg_dimension=wg
            )
        except ValueError:
            continue
        built += 1
        assert smem_bytes(config) <= SMEM_LIMIT_BYTES
        assert config.cta_tile_m * config.cta_tile_n == 2 * tile_m * tile_n
        if config_type is KernelConfig:
            assert 2 <= config.num_block_slots <= 4
            assert 2 * config.num_block_slots * 16 * 1024 <= smem_bytes(config)
    assert built > 50


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"m_shard": 100, "k": 64, "n_shard": 256}, "m_shard=100 must be a multiple of cta_tile_m=128"),
        ({"m_shard": 128, "k": 96, "n_shard": 256}, "k=96 must be a multiple of tile_k=64"),
        ({"m_shard": 128, "k": 64, "n_shard": 128}, "n_shard=128 must be a multiple of cta_tile_n=256"),
    ],
)
def test_the_simple_kernels_tiles_must_divide_the_shape(sizes, message):
    with pytest.raises(ValueError, match=message):
        validate_shape(SimpleKernelConfig(), **sizes)


def test_the_portable_ring_sends_at_least_one_piece():
    with pytest.raises(ValueError, match="num_chunks=0 must be at least 1"):
        PpermuteConfig(num_chunks=0)


@pytest.mark.parametrize("implementation", CONFIG_TYPES)
def test_a_plain_config_becomes_the_same_config_again(implementation):
    config = CONFIG_TYPES[implementation]()
    assert from_plain(implementation, to_plain(config)) == config
    assert from_plain("mosaic_gpu", {"wg_dimension": "N", "tile_n": 128}).wg_dimension is MatmulDimension.N


@pytest.mark.parametrize(
    ("implementation", "options", "message"),
    [
        ("xla", {}, "implementation='xla' takes no config"),
        ("ppermute", {"tile_m": 64}, "tile_m is no option of ppermute"),
        ("ppermute", {"num_chunks": 2.0}, "num_chunks=2.0 must be of type int"),
        ("mosaic_gpu", {"wait_ahead": 1}, "wait_ahead=1 must be of type bool"),
        ("mosaic_gpu", {"wg_dimension": "K"}, "wg_dimension='K' must be M or N"),
        ("mosaic_gpu", {"tile_m": 100}, "tile_m=100 must be a multiple of 64"),
    ],
)
def test_a_plain_config_that_is_none_is_refused(implementation, options, message):
    with pytest.raises(ValueError, match=message):
        from_plain(implementation, options)
