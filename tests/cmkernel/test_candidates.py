"""Candidates of a tuner: valid, each kernel once, the heuristic's first, then one of each family in turn."""

import dataclasses

import pytest

from cmkernel.candidates import kernel_candidates, ppermute_candidates, scatter_kernel_candidates
from cmkernel.config import PpermuteConfig
from cmkernel.performance_model import heuristic_config, modelled_us
from cmkernel.protocol import make_protocol
from cmkernel.scatter_model import modelled_scatter_us, scatter_heuristic_config

SHAPES = [(1024, 4096, 4096), (4096, 4096, 14336), (256, 8192, 5120), (8, 64, 64), (1000, 4104, 4200)]


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_sms", [2, 16, 132])
def test_candidates_are_valid_and_each_kernel_is_there_once(shape, num_ranks, num_sms):
    sizes = dict(zip(("m_shard", "k", "n_shard"), shape, strict=True)) | {"num_ranks": num_ranks, "num_sms": num_sms}
    found = kernel_candidates(**sizes, slowest=1.15)
    assert found[0] == heuristic_config(**sizes)
    assert found == kernel_candidates(**sizes, slowest=1.15), "every rank and every run tries the same"
    protocols = [make_protocol(config, **sizes) for config in found]
    tiles = [(c.tile_m, c.tile_n, c.tile_k, c.max_concurrent_steps, c.wg_dimension, c.wait_ahead) for c in found]
    assert len(set(zip(protocols, tiles, strict=True))) == len(found)
    limit_us = 1.15 * modelled_us(found[0], **sizes)
    assert all(modelled_us(config, **sizes) <= limit_us for config in found)


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_candidates_of_the_reduce_scatter(shape, num_ranks):
    sizes = dict(zip(("m_shard", "k", "n_shard"), shape, strict=True)) | {"num_ranks": num_ranks, "num_sms": 132}
    found = scatter_kernel_candidates(**sizes, slowest=1.3)
    assert found[0] == scatter_heuristic_config(**sizes)
    assert len(set(found)) == len(found)
    limit_us = 1.3 * modelled_scatter_us(found[0], **sizes)
    assert all(modelled_scatter_us(config, **sizes) <= limit_us for config in found)
    if shape == (4096, 4096, 14336):
        assert {config.grid_tile_width for config in found} >= {2, 4, 8, 16, 32}
        assert len({(config.tile_m, config.tile_n) for config in found}) > 1


def changed(config, reference):
    return {f.name for f in dataclasses.fields(config) if getattr(config, f.name) != getattr(reference, f.name)}


def test_the_first_ones_differ_in_different_things():
    first, *others = kernel_candidates(m_shard=4096, k=4096, n_shard=14336, num_ranks=2, num_sms=132, slowest=1.15)
    options = [changed(config, first) for config in others[:6]]
    assert {"grid_tile_width"} in options
    assert {"num_chunks"} in options
    assert any("wg_dimension" in option for option in options)
    senders = [
        i for i, config in enumerate(others) if changed(config, first) <= {"num_comm_ctas", "num_in_tile_chunks"}
    ]
    assert senders
    assert senders[0] < 9


def test_what_the_shape_makes_the_same_kernel_is_left_out():
    """Two M tiles: a raster group of any width above one holds both."""
    found = kernel_candidates(m_shard=256, k=8192, n_shard=5120, num_ranks=2, num_sms=132, slowest=1.15)
    assert len({config.grid_tile_width for config in found if changed(config, found[0]) <= {"grid_tile_width"}}) == 1


def test_few_that_are_modelled_near_the_heuristic_are_left_with_a_narrow_limit():
    sizes = {"m_shard": 1024, "k": 4096, "n_shard": 3072, "num_ranks": 2, "num_sms": 132}
    wide, narrow = (kernel_candidates(**sizes, slowest=slowest) for slowest in (1.15, 1.0))
    assert set(narrow) < set(wide)
    assert narrow == [config for config in wide if config in narrow], "the order stays"


def test_the_portable_ring_has_no_more_pieces_than_rows():
    assert ppermute_candidates(m_shard=3) == [PpermuteConfig(num_chunks=1), PpermuteConfig(num_chunks=2)]
    assert ppermute_candidates(m_shard=64)[0] == PpermuteConfig()
