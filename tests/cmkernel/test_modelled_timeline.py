"""The modelled timeline: the protocol's order, and the end that the cost model expects."""

import dataclasses
import itertools

import pytest

from cmkernel.config import KernelConfig, MatmulDimension
from cmkernel.modelled_timeline import modelled_timeline
from cmkernel.performance_model import H200_NUM_SMS, heuristic_config, modelled_us

TUTORIAL = {"m_shard": 1024, "k": 4096, "n_shard": 4096, "num_sms": H200_NUM_SMS}
FEW_ROWS = {"m_shard": 256, "k": 8192, "n_shard": 5120, "num_sms": H200_NUM_SMS}
UNEVEN = {"m_shard": 1000, "k": 4104, "n_shard": 4200, "num_sms": H200_NUM_SMS}
IN_TILE = KernelConfig(num_comm_ctas=0, num_chunks=8)


def end_us(steps):
    return max(step.multiply.end_us for step in steps)


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
@pytest.mark.parametrize("shape", [TUTORIAL, {**TUTORIAL, "m_shard": 4096}, {**TUTORIAL, "k": 8192, "n_shard": 28672}])
def test_whole_waves_end_when_the_cost_model_says(shape, num_ranks):
    sizes = {**shape, "num_ranks": num_ranks}
    config = dataclasses.replace(heuristic_config(**sizes), split_last_wave=False)
    assert end_us(modelled_timeline(config, **sizes)) == pytest.approx(modelled_us(config, **sizes), rel=0.02)


@pytest.mark.parametrize("shape", [TUTORIAL, FEW_ROWS, UNEVEN])
@pytest.mark.parametrize("config", [None, IN_TILE, dataclasses.replace(KernelConfig(), num_in_tile_chunks=1)])
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_step_ends_after_all_of_its_shard_is_here(shape, config, num_ranks):
    sizes = {**shape, "num_ranks": num_ranks}
    steps = modelled_timeline(config or heuristic_config(**sizes), **sizes)
    assert [step.step for step in steps] == list(range(num_ranks))
    assert steps[0].arrival is None
    assert steps[0].multiply.start_us == steps[0].wait_us == 0
    for before, step in itertools.pairwise(steps):
        assert step.arrival.start_us < step.arrival.end_us < step.multiply.end_us
        assert step.multiply.start_us > step.arrival.start_us
        if before.arrival:
            assert step.arrival.start_us > before.arrival.start_us, "a piece is forwarded once it is here"
            assert step.arrival.end_us > before.arrival.end_us


def test_fewer_senders_are_waited_for():
    sizes = {**FEW_ROWS, "num_ranks": 4}
    waits = [
        sum(step.wait_us for step in modelled_timeline(KernelConfig(num_comm_ctas=ctas), **sizes)) for ctas in (8, 2)
    ]
    assert waits[0] < waits[1]


def test_a_wave_of_halves_is_shorter():
    sizes = {**TUTORIAL, "k": 8192, "n_shard": 5120, "num_ranks": 2}
    whole, halves = (end_us(modelled_timeline(KernelConfig(split_last_wave=split), **sizes)) for split in (False, True))
    assert halves == pytest.approx(whole * 2.54 / 3, rel=0.01)


def test_tiles_without_a_modelled_time_are_refused():
    config = KernelConfig(tile_m=192, tile_n=64, wg_dimension=MatmulDimension.N)
    with pytest.raises(ValueError, match=r"tile_m, tile_n, wg_dimension=.*192.* no modelled time"):
        modelled_timeline(config, **TUTORIAL, num_ranks=2)
