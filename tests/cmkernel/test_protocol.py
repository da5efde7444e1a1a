"""The integers of ``mosaic_gpu``: every tile, piece and counter has one owner, and steps come in order."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmkernel import ring
from cmkernel.config import KernelConfig, MatmulDimension
from cmkernel.protocol import make_protocol

configs = st.builds(
    KernelConfig,
    tile_m=st.just(64),
    tile_n=st.sampled_from([128, 256]),
    max_concurrent_steps=st.just(2),
    wg_dimension=st.sampled_from(MatmulDimension),
    tile_k=st.sampled_from([32, 64]),
    grid_tile_width=st.integers(1, 5),
    num_chunks=st.integers(1, 6),
    num_comm_ctas=st.integers(0, 3),
    num_in_tile_chunks=st.integers(0, 3),
    split_last_wave=st.booleans(),
)
protocols = st.builds(
    make_protocol,
    configs,
    num_ranks=st.integers(1, 8),
    m_shard=st.integers(1, 900),
    k=st.integers(1, 900),
    n_shard=st.integers(1, 900),
    num_sms=st.integers(4, 9),
)


def local_tiles(protocol, num_steps):
    """Jobs of each compute CTA, in its order."""
    return [
        [protocol.tile(cta, i) for i in range(protocol.num_local_tiles(cta, num_steps))]
        for cta in range(protocol.num_compute_ctas)
    ]


def local_jobs(protocol):
    return [
        [protocol.job(sender, i) for i in range(protocol.num_local_jobs(sender))]
        for sender in range(protocol.num_senders)
    ]


@given(protocols)
@settings(max_examples=60, deadline=None)
def test_every_output_tile_is_computed_once_and_steps_come_in_order(protocol):
    tiles = local_tiles(protocol, protocol.num_ranks)
    sizes = (protocol.num_ranks, protocol.num_m_tiles, protocol.num_n_tiles)
    num_whole = protocol.num_whole_tiles // protocol.num_compute_ctas
    if protocol.num_split_tiles:
        assert all(len(mine) in (num_whole, num_whole + 1) for mine in tiles)
        # Two CTAs have a half each: the even one the first.
        halves = [tuple(mine.pop()) for mine in tiles if len(mine) > num_whole]
        assert halves[0::2] == halves[1::2]
        assert len(halves) == 2 * protocol.num_split_tiles
        tiles.append(halves[0::2])
    assert sorted(itertools.chain(*tiles)) == list(itertools.product(*map(range, sizes)))
    for mine in tiles:
        steps = [step for step, _, _ in mine]
        assert steps == sorted(steps)


@given(protocols)
@settings(max_examples=60, deadline=None)
def test_the_tiles_of_the_first_steps_come_first(protocol):
    tiles = local_tiles(protocol, protocol.num_ranks)
    for num_steps in range(1, protocol.num_ranks + 1):
        for mine, first in zip(tiles, local_tiles(protocol, num_steps), strict=True):
            assert first == [tile for tile in mine if tile[0] < num_steps]


@given(protocols)
@settings(max_examples=60, deadline=None)
def test_every_piece_is_sent_once_before_the_last_step(protocol):
    sizes = (ring.num_scratch_slots(protocol.num_ranks), protocol.num_m_tiles, protocol.num_chunks)
    pieces = list(itertools.product(*map(range, sizes)))
    assert protocol.num_counters == len(pieces)
    sent = list(itertools.chain(*local_jobs(protocol)))
    if protocol.sends_in_tile:
        for cta, mine in enumerate(local_tiles(protocol, protocol.num_ranks)):
            for i, (step, m_idx, n_idx) in enumerate(mine):
                is_second_half = i >= protocol.num_whole_tiles // protocol.num_compute_ctas and cta % 2 == 1
                if protocol.sends_tile(step, m_idx, n_idx) and not (protocol.num_split_tiles and is_second_half):
                    sent += [(step, m_idx, chunk) for chunk in range(protocol.first_in_tile_chunk, protocol.num_chunks)]
    assert sorted(sent) == pieces


@given(protocols)
@settings(max_examples=60, deadline=None)
def test_every_piece_has_a_counter_of_its_own(protocol):
    sizes = (ring.num_scratch_slots(protocol.num_ranks), protocol.num_m_tiles, protocol.num_chunks)
    counters = [protocol.counter(*piece) for piece in itertools.product(*map(range, sizes))]
    assert counters == list(range(protocol.num_counters))


@given(protocols)
@settings(max_examples=60, deadline=None)
def test_chunks_cover_the_k_steps(protocol):
    covered = [
        k_idx
        for chunk in range(protocol.num_chunks)
        for k_idx in range(chunk * protocol.chunk_k_steps, protocol.chunk_end(chunk))
    ]
    assert covered == list(range(protocol.num_k_steps))


@given(protocols)
@settings(max_examples=60, deadline=None)
def test_the_jobs_of_a_sender_come_in_order_of_steps(protocol):
    """Ranks can't wait for each other in a circle, because a job waits only for one of an earlier step."""
    for jobs in local_jobs(protocol):
        steps = [step for step, _, _ in jobs]
        assert steps == sorted(steps)


def test_traced_integers_give_the_same():
    config = KernelConfig(
        tile_n=128, max_concurrent_steps=3, grid_tile_width=2, num_chunks=3, num_in_tile_chunks=1, split_last_wave=True
    )
    protocol = make_protocol(config, num_ranks=3, m_shard=600, k=640, n_shard=400, num_sms=29)
    assert protocol.num_split_tiles == 10
    compute = [(cta, i) for cta in range(25) for i in range(protocol.num_local_tiles(cta, 3))]
    comm = [(cta, i) for cta in range(8) for i in range(protocol.num_local_jobs(cta))]
    for function, pairs in ((protocol.tile, compute), (protocol.job, comm)):
        traced = jax.jit(jax.vmap(function))(*jnp.array(pairs, jnp.int32).T)
        assert list(zip(*(column.tolist() for column in traced), strict=True)) == [function(*pair) for pair in pairs]


def test_a_cta_must_be_left_to_compute():
    with pytest.raises(ValueError, match="num_comm_ctas=4 must be less than num_sms=4"):
        make_protocol(KernelConfig(), num_ranks=2, m_shard=64, k=64, n_shard=64, num_sms=4)
    assert make_protocol(KernelConfig(), num_ranks=1, m_shard=64, k=64, n_shard=64, num_sms=4).num_compute_ctas == 4
