"""No interleaving of ranks, warps and copies makes the reduce-scatter wrong or stop; a planted bug does."""

import functools
import random

import pytest

from cmkernel import mosaic_gpu_scatter_cta, ring
from cmkernel.config import MatmulDimension, ScatterKernelConfig
from cmkernel.mosaic_gpu_scatter_cta import ScatterCta
from tests.parameters import mostly_slow

from . import kernel_model, scatter_kernel_model

tiny = functools.partial(ScatterKernelConfig, tile_m=64, tile_n=64, max_concurrent_steps=2)
CONFIGS = {
    "along M": tiny(),
    "along N, deeper": tiny(wg_dimension=MatmulDimension.N, max_concurrent_steps=3, grid_tile_width=1),
    "wide pieces": tiny(tile_n=128, epi_tile_n=64),
}


def recorded(config, num_ranks, *, m_shard=192, k=192, n=160, num_sms=2):
    return scatter_kernel_model.record(config, num_ranks=num_ranks, m_shard=m_shard, k=k, n=n, num_sms=num_sms)


# With many ranks one config: the others take minutes.
RANDOM = [(num_ranks, name) for num_ranks in (2, 3) for name in CONFIGS]
RANDOM += [pytest.param(num_ranks, "along M", marks=pytest.mark.slow) for num_ranks in range(4, 9)]


@pytest.mark.parametrize(("num_ranks", "name"), RANDOM)
def test_random_interleavings(num_ranks, name):
    recording = recorded(CONFIGS[name], num_ranks, m_shard=192 if num_ranks < 5 else 128)
    for seed, slow in enumerate((0.5, 0.0) if num_ranks < 5 else (0.5,)):
        kernel_model.explore_randomly(recording, random.Random(seed), slow=slow)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("num_ranks", mostly_slow([2, 3], fast=1))
def test_whoever_is_late(config, num_ranks):
    recording = recorded(config, num_ranks)
    for victim in kernel_model.victims(recording).values():
        kernel_model.explore_delaying(recording, random.Random(0), victim)


@pytest.mark.parametrize("num_sms", [1, 3, 7])
def test_any_number_of_ctas(num_sms):
    """With 7 some have tiles of other ranks alone, and some none at all."""
    recording = recorded(CONFIGS["along M"], 2, m_shard=128, k=64, n=96, num_sms=num_sms)
    kernel_model.explore_randomly(recording, random.Random(0), slow=0.5)
    for victim in kernel_model.victims(recording).values():
        kernel_model.explore_delaying(recording, random.Random(0), victim)


# Planted bugs: each is found by the schedule that delays whom it hurts, whatever the seed.


def plant_missing_wait(monkeypatch):
    """Partial sums are loaded before they have arrived."""
    monkeypatch.setattr(ScatterCta, "await_partial", lambda self, slot, m_idx, n_idx: None)


def without(name, *, of, argument=None):
    """Take an operation out of every warp that plays a role."""

    def spoil(recording):
        for warp in recording.warps:
            if warp.role.startswith(of):
                warp.ops = [op for op in warp.ops if op[0] != name or (argument is not None and op[1] != argument)]

    return spoil


def plant_early_signal(recording):
    """The signal goes out before the copies have landed."""
    for warp in recording.warps:
        warp.ops = [("wait_stores", op[1], True) if op[:3] == ("wait_stores", 0, False) else op for op in warp.ops]


def plant_wrong_slot(monkeypatch):
    """Partial sums of all steps go to the slot of the step before."""
    monkeypatch.setattr(
        ScatterCta,
        "scratch_of",
        lambda self, rank: kernel_model.Ref("scratch", (rank + 1) % self.protocol.num_ranks),
    )


def plant_wrong_counter(monkeypatch):
    """Signals of a tile go to the rank before its owner."""
    signal = ScatterCta.signal_rank
    monkeypatch.setattr(
        ScatterCta,
        "signal_rank",
        lambda self, rank, counter: signal(self, (rank - 1) % self.protocol.num_ranks, counter),
    )


def plant_one_buffer(monkeypatch):
    """A tile is staged where the tile before it may not have left."""
    monkeypatch.setattr(ScatterCta, "stage", _stage_in_one_buffer)


def _stage_in_one_buffer(self, acc_ref, i, row, column):
    config = self.config
    buffer_gmem = self.staging_gmem.at[self.index * mosaic_gpu_scatter_cta.NUM_STAGED + i % 2]
    row, column = row % config.cta_tile_m, column % config.cta_tile_n
    # Without the wait for what was staged here before.
    self.store(acc_ref[...], self.out_smem, buffer_gmem, row, column, tile_n=self.columns)


def plant_other_order(monkeypatch):
    """Blocks are multiplied in the order of an all-gather: the own one first."""
    monkeypatch.setattr(ring, "scattered_block", lambda rank, step, num_ranks: (rank + step) % num_ranks)


PATCHES = {
    plant_missing_wait: "copies landing",
    plant_wrong_slot: "loads",
    plant_wrong_counter: "rank 1",
    plant_one_buffer: "memory1",
    plant_other_order: "loads",
}
SPOILS = {
    "early signal": (plant_early_signal, "copies landing"),
    "staging not awaited": (without("wait", of="memory1", argument="staged"), "compute0"),
    "slot not awaited": (without("wait", of="memory0", argument="released"), "compute0"),
    "blocks overwritten": (without("wait_stores", of="memory1"), "copies leaving shared memory"),
    "pieces overwritten": (without("wait_stores", of="compute"), "copies leaving shared memory"),
}
NUM_RANKS = [2, 3, *(pytest.param(num, marks=pytest.mark.slow) for num in range(4, 9))]


def recorded_with_full_buffers(num_ranks):
    """A case whose CTAs stage at least three tiles: more than they have buffers."""
    return recorded(CONFIGS["along M"], num_ranks, m_shard=128, num_sms=1 if num_ranks == 2 else 2)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("bug", PATCHES, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug, num_ranks, monkeypatch):
    bug(monkeypatch)
    recording = recorded_with_full_buffers(num_ranks)
    victim = kernel_model.victims(recording)[PATCHES[bug]]
    for seed in range(2):
        with pytest.raises(kernel_model.Violation):
            kernel_model.explore_delaying(recording, random.Random(seed), victim)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("name", SPOILS)
def test_a_missing_wait_is_found(name, num_ranks):
    spoil, who = SPOILS[name]
    recording = recorded_with_full_buffers(num_ranks)
    spoil(recording)
    victim = kernel_model.victims(recording)[who]
    with pytest.raises(kernel_model.Violation):
        kernel_model.explore_delaying(recording, random.Random(0), victim)


def test_a_missing_signal_is_a_deadlock():
    recording = recorded(CONFIGS["along M"], 2)
    without("signal", of="memory1")(recording)
    with pytest.raises(kernel_model.Deadlock):
        kernel_model.explore_randomly(recording, random.Random(0))


@pytest.mark.slow
def test_every_order_of_arrival_of_the_smallest_case():
    config = tiny(wg_dimension=MatmulDimension.N)
    recording = recorded(config, 2, m_shard=64, k=64, n=64, num_sms=1)
    assert kernel_model.explore_orders_of_arrival(recording, limit=300_000) > 100
