"""Stamps of the kernel's own code, run on paper: what the timeline says of a call whose every moment is known."""

import random

import numpy as np
import pytest

from cmkernel import stamps
from cmkernel.measured_timeline import measured_timeline

from . import kernel_model
from .test_kernel_model import CONFIGS

SIZES = {"m_shard": 192, "k": 320, "n_shard": 128, "num_sms": 4}
UNWRITTEN = -(2**31)


def stamped_call(config, num_ranks, *, ahead_ns, seed=0, **sizes):
    """(protocol, stamps of each rank, (what, rank, device step) -> its moments in ns) of one call, 1 us an operation.

    ``ahead_ns``: by how much each rank's clock is ahead of the true time.
    """
    recording = kernel_model.record(config, num_ranks=num_ranks, **{**SIZES, **sizes}, stamped=True)
    protocol = recording.protocol
    noted = [np.full(stamps.shape(protocol), UNWRITTEN, np.int32) for _ in range(num_ranks)]
    writers, moments = {}, {}
    now_ns = 0

    def watch(warp, op):
        nonlocal now_ns
        now_ns += 1000
        if op[0] == "stamp":
            # Two warpgroups multiply a tile: the later one stays.
            assert writers.setdefault((warp.rank, op[1:]), warp.role[:-1]) == warp.role[:-1]
            noted[warp.rank][op[1:]] = np.int64(now_ns + ahead_ns[warp.rank]).astype(np.int32)
        elif op[0] == "signal":
            moments.setdefault(("signal", warp.rank), []).append(now_ns)
        elif op[0] == "out":
            moments.setdefault(("out", warp.rank, op[1]), []).append(now_ns)

    kernel_model.explore_randomly(recording, random.Random(seed), watch=watch)
    return protocol, noted, moments


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_timeline_of_a_call(config, num_ranks):
    protocol, noted, moments = stamped_call(config, num_ranks, ahead_ns=[0] * num_ranks)
    timeline = measured_timeline(protocol, noted)
    for rank, steps in enumerate(timeline):
        assert [step.step for step in steps] == list(range(num_ranks))
        assert min(step.multiply.start_us for step in steps) >= 0
        start_ns = min(noted[rank][: protocol.num_compute_ctas, 0, stamps.BEGUN])
        assert steps[0].arrival is None
        assert steps[0].wait_us == 0
        for step in steps:
            # The last result is stored before its stamp, and nothing else of the tile comes between them.
            stored_us = (max(moments["out", rank, (rank + step.step) % num_ranks]) - start_ns) / 1e3
            assert step.multiply.end_us >= stored_us
            if step.arrival:
                assert step.arrival.start_us < step.arrival.end_us
                assert step.wait_us > 0
        sender = (rank + 1) % num_ranks
        last_us = max(step.arrival.end_us for step in steps if step.arrival)
        signalled_us = (max(moments["signal", sender]) - start_ns) / 1e3
        # Chance lets some rank see its pieces much later than another one, which passes for a difference of clocks.
        assert last_us == pytest.approx(signalled_us, rel=0.25)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_clocks_that_differ_and_wrap_change_nothing(num_ranks):
    config = CONFIGS["both ways"]
    (protocol, plain, _), (_, shifted, _) = (
        stamped_call(config, num_ranks, ahead_ns=ahead_ns)
        for ahead_ns in ([0] * num_ranks, [2**31 - 50_000 + 77_000_000 * rank for rank in range(num_ranks)])
    )
    expected = measured_timeline(protocol, plain)
    found = measured_timeline(protocol, shifted)
    for want, have in zip(expected, found, strict=True):
        for a, b in zip(want, have, strict=True):
            assert (b.multiply, b.wait_us) == (a.multiply, a.wait_us)
            if a.arrival:
                assert b.arrival.start_us == pytest.approx(a.arrival.start_us)
                assert b.arrival.end_us == pytest.approx(a.arrival.end_us)


def test_a_cta_without_a_tile_says_nothing():
    config = CONFIGS["communication CTAs, polling warp"]
    # Two output tiles of two ranks' shards, and more compute CTAs than that.
    protocol, noted, _ = stamped_call(config, 2, ahead_ns=[0, 0], m_shard=64, n_shard=64, num_sms=7)
    assert protocol.num_compute_ctas > 2
    for steps in measured_timeline(protocol, noted):
        assert all(0 <= step.multiply.start_us < step.multiply.end_us < 2000 for step in steps)
