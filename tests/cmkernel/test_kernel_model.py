"""No interleaving of ranks, warps and copies makes ``mosaic_gpu`` read early, overwrite or stop; a planted bug does."""

import dataclasses
import functools
import random

import pytest

from cmkernel import mosaic_gpu_cta, ring
from cmkernel.config import KernelConfig
from tests.parameters import mostly_slow

from . import kernel_model

tiny = functools.partial(KernelConfig, tile_m=64, tile_n=64, max_concurrent_steps=2, num_chunks=2)
CONFIGS = {
    "communication CTA": tiny(num_comm_ctas=1),
    "in-tile": tiny(num_comm_ctas=0),
    "communication CTAs, polling warp": tiny(num_comm_ctas=2, wait_ahead=True, max_concurrent_steps=3),
    "in-tile, polling warp": tiny(num_comm_ctas=0, wait_ahead=True, num_chunks=3),
    "both ways": tiny(num_comm_ctas=1, num_in_tile_chunks=1, tile_n=128, split_last_wave=True),
}
SENDING = {name: CONFIGS[name] for name in ("communication CTA", "in-tile")}


def recorded(config, num_ranks, *, m_shard=192, k=320, n_shard=128, num_sms=None):
    num_sms = num_sms or (4 if config.split_last_wave else 3)  # Of four, some ranks' tiles leave one to split.
    sizes = {"m_shard": m_shard, "k": k, "n_shard": n_shard}
    return kernel_model.record(config, num_ranks=num_ranks, **sizes, num_sms=num_sms)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("num_ranks", mostly_slow(range(2, 9), fast=2))
def test_random_interleavings(config, num_ranks):
    recording = recorded(config, num_ranks)
    for seed, slow in enumerate((0.5, 0.0) if num_ranks < 5 else (0.5,)):
        kernel_model.explore_randomly(recording, random.Random(seed), slow=slow)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("num_ranks", mostly_slow([2, 3, 4, 5, 8], fast=2))
def test_whoever_is_late(config, num_ranks):
    recording = recorded(config, num_ranks)
    for victim in kernel_model.victims(recording).values():
        kernel_model.explore_delaying(recording, random.Random(0), victim)


@pytest.mark.parametrize("name", ["both ways", "in-tile"])
def test_halves_of_tiles_that_are_sent_on(name):
    """Where the last wave has tiles of earlier steps than the last, one of two halves sends."""
    config = dataclasses.replace(CONFIGS[name], tile_n=128, split_last_wave=True)
    recording = recorded(config, 3, m_shard=128, k=256, num_sms=7)
    assert recording.protocol.num_split_tiles > recording.protocol.num_tiles
    assert recording.protocol.sends_in_tile
    kernel_model.explore_randomly(recording, random.Random(0), slow=0.5)
    for victim in kernel_model.victims(recording).values():
        kernel_model.explore_delaying(recording, random.Random(0), victim)


# Planted bugs: each is found by the schedule that delays whom it hurts, whatever the seed.


def plant_missing_wait(monkeypatch):
    """The loads of a received shard don't wait for it."""
    monkeypatch.setattr(mosaic_gpu_cta.Cta, "await_next_piece", lambda self, i, step, m_idx, chunk: None)


def plant_early_signal(monkeypatch):
    """The signal goes out before the copies have landed."""
    signal = mosaic_gpu_cta.Cta.signal

    def early(self, step, m_idx, chunk, num_pending, stamp=None):
        signal(self, step, m_idx, chunk, num_pending + 1)

    monkeypatch.setattr(mosaic_gpu_cta.Cta, "signal", early)


def plant_wrong_slot(monkeypatch):
    """A shard goes to the scratch slot of the one before."""
    monkeypatch.setattr(ring, "write_slot", lambda step: max(step - 1, 0))


BUGS = {
    plant_missing_wait: "copies landing",
    plant_early_signal: "copies landing",
    plant_wrong_slot: "loads",
}


@pytest.mark.parametrize("config", SENDING.values(), ids=SENDING)
@pytest.mark.parametrize(
    ("bug", "num_ranks"),
    [
        pytest.param(
            bug, num_ranks, id=f"{bug.__name__}-{num_ranks}", marks=[pytest.mark.slow] * (num_ranks in (5, 6, 7))
        )
        for bug in BUGS
        # Two ranks have a single scratch slot: none is wrong.
        for num_ranks in range(3 if bug is plant_wrong_slot else 2, 9)
    ],
)
def test_a_planted_bug_is_found(bug, num_ranks, config, monkeypatch):
    bug(monkeypatch)
    recording = recorded(config, num_ranks)
    victim = kernel_model.victims(recording)[BUGS[bug]]
    for seed in range(2):
        with pytest.raises(kernel_model.Violation):
            kernel_model.explore_delaying(recording, random.Random(seed), victim)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_slot_of_shared_memory_released_too_early_is_found(num_ranks, monkeypatch):
    """A sending warp gives a slot back that its copy is still reading."""
    recording = recorded(CONFIGS["in-tile"], num_ranks)
    for warp in recording.warps:
        warp.ops = [op for op in warp.ops if op[0] != "wait_stores" or not op[2]]
    victim = kernel_model.victims(recording)["copies leaving shared memory"]
    with pytest.raises(kernel_model.Violation, match="slot"):
        kernel_model.explore_delaying(recording, random.Random(0), victim)


def test_a_missing_signal_is_a_deadlock():
    recording = recorded(CONFIGS["communication CTA"], 2)
    sender = next(warp for warp in recording.warps if warp.rank == 1 and any(op[0] == "signal" for op in warp.ops))
    sender.ops = [op for op in sender.ops if op[0] != "signal"]
    with pytest.raises(kernel_model.Deadlock):
        kernel_model.explore_randomly(recording, random.Random(0))


# The smallest cases, in every order in which copies complete and signals arrive.


@pytest.mark.parametrize(
    ("form", "k"),
    [("in-tile", 128), ("communication CTA", 64), pytest.param("communication CTA", 128, marks=pytest.mark.slow)],
)
def test_every_order_of_arrival_of_the_smallest_case(form, k):
    config = SENDING[form]
    recording = recorded(config, 2, m_shard=64, k=k, n_shard=64, num_sms=1 + config.num_comm_ctas)
    assert kernel_model.explore_orders_of_arrival(recording, limit=300_000) > 100
