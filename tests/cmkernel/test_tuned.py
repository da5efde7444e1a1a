"""The table of tuned configs: written and read, and which entry serves which shape."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmkernel.config import KernelConfig, MatmulDimension, PpermuteConfig
from cmkernel.performance_model import heuristic_config, modelled_us
from cmkernel.protocol import make_protocol
from cmkernel.tuned import SHIPPED_PATH, Entry, Shape, Table, choose_config, shipped

H200 = Shape(device_kind="NVIDIA H200", num_ranks=2, m_shard=4096, k=4096, n_shard=14336, dtype="bfloat16")
HEURISTIC = heuristic_config(**H200.sizes, num_sms=132)
WIDE = dataclasses.replace(HEURISTIC, grid_tile_width=16)


def entry(shape=H200, config=WIDE, implementation="mosaic_gpu", **changes):
    rest = {"us": 1300.0, "heuristic_us": 1400.0, "date": "2026-11-30", "jax": "0.11.2"}
    return Entry(shape=shape, implementation=implementation, config=config, **rest | changes)


def choose(shape, *entries, num_sms=132, implementation="mosaic_gpu"):
    return choose_config(implementation, shape, num_sms=num_sms, table=Table(entries))


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "tuned.jsonl"
    small = dataclasses.replace(H200, m_shard=64, dtype="float16")
    portable = entry(dataclasses.replace(H200, device_kind="cpu"), PpermuteConfig(num_chunks=2), "ppermute")
    table = Table().merged([entry(), portable, entry(small)])
    table.write(path)
    assert Table.read(path) == table
    assert [e.shape.m_shard for e in table.entries] == [64, 4096, 4096], "sorted, whatever came first"
    assert len(path.read_text().splitlines()) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["tuned.jsonl"]


def test_merging_replaces_the_entry_of_the_same_shape_alone():
    other = entry(dataclasses.replace(H200, k=8192))
    table = Table((entry(), other)).merged([entry(us=1200.0)])
    assert [e.us for e in table.entries] == [1200.0, 1300.0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "tuned.jsonl:2: no entry"),
        ("{}", "tuned.jsonl:2: no entry of a table .KeyError: 'device_kind'"),
        ("[1, 2]", "tuned.jsonl:2: no entry of a table .TypeError"),
        ('"tile_m": 100', "tuned.jsonl:2: no entry of a table .tile_m=100 must be a multiple of 64"),
        ('"k": "4096"', "tuned.jsonl:2: no entry of a table .k='4096' must be an integer of at least 1"),
        ('"m_shard": 0', "tuned.jsonl:2: no entry of a table .m_shard=0 must be an integer of at least 1"),
        ('"dtype": "float8"', "tuned.jsonl:2: no entry of a table .dtype='float8' must be one of bfloat16, "),
        ('"device_kind": null', "tuned.jsonl:2: no entry of a table .device_kind=None must be a string"),
        ('"us": "fast"', "tuned.jsonl:2: no entry of a table .us='fast' must be a number above 0"),
        ('"heuristic_us": 0', "tuned.jsonl:2: no entry of a table .heuristic_us=0 must be a number above 0"),
        ('"date": null', "tuned.jsonl:2: no entry of a table .date=None must be a string"),
        ('"config": []', "tuned.jsonl:2: no entry of a table .config=\\[\\] must be an object of options"),
    ],
)
def test_a_line_that_is_no_entry_is_named(line, message, tmp_path):
    path = tmp_path / "tuned.jsonl"
    Table((entry(),)).write(path)
    good = path.read_text()
    if line.startswith('"'):
        # An option of the good line with another value.
        name = line.partition(":")[0]
        line = re.sub(rf'{name}: ("[^"]*"|[\d.]+|{{[^}}]*}})', line, good.strip())
    path.write_text(f"{good}{line}\n")
    with pytest.raises(ValueError, match=message):
        Table.read(path)


def test_the_shipped_table_is_one_whose_entries_are_in_order():
    assert shipped() == Table().merged(shipped().entries)
    assert SHIPPED_PATH.exists()
    assert all(entry.us <= entry.heuristic_us for entry in shipped().entries), "else it should have the heuristic's"


def test_an_entry_serves_its_own_shape_in_both_half_precisions():
    assert choose(H200, entry()).config == WIDE
    assert choose(H200, entry()).source == "tuned on 2026-11-30"
    half = dataclasses.replace(H200, dtype="float16")
    assert choose(half, entry()).config == WIDE
    own = dataclasses.replace(WIDE, grid_tile_width=4)
    assert choose(half, entry(), entry(half, own)).config == own, "its own comes first"


@pytest.mark.parametrize(
    "change",
    [{"device_kind": "NVIDIA H100 80GB HBM3"}, {"num_ranks": 4}, {"m_shard": 1024}, {"k": 512}, {"n_shard": 64}],
)
def test_far_shapes_and_other_machines_get_the_heuristic(change):
    shape = dataclasses.replace(H200, **change)
    chosen = choose(shape, entry())
    assert chosen.config == heuristic_config(**shape.sizes, num_sms=132)
    assert chosen.source == "by the heuristic"


def test_the_nearest_entry_serves_a_shape_that_the_heuristic_treats_alike():
    near = dataclasses.replace(H200, m_shard=3072)
    assert heuristic_config(**near.sizes, num_sms=132) == HEURISTIC
    further = dataclasses.replace(H200, m_shard=6144, n_shard=12288)
    chosen = choose(near, entry(further, dataclasses.replace(WIDE, grid_tile_width=32)), entry())
    assert chosen.config == WIDE
    assert chosen.source == "tuned on 2026-11-30 for m_shard=4096 k=4096 n_shard=14336, the nearest"


def test_a_near_entry_is_passed_over_where_the_heuristic_or_the_model_objects():
    near = dataclasses.replace(H200, n_shard=10240)
    assert heuristic_config(**near.sizes, num_sms=132) == HEURISTIC
    slow = dataclasses.replace(HEURISTIC, num_comm_ctas=20)
    assert choose(near, entry(config=slow)).config == HEURISTIC, "modelled to be slower"
    assert choose(H200, entry(config=slow)).config == slow, "but measured on its own shape"
    unlike = dataclasses.replace(H200, m_shard=256, k=8192, n_shard=5120)
    other = dataclasses.replace(unlike, m_shard=512)
    assert heuristic_config(**unlike.sizes, num_sms=132) != heuristic_config(**other.sizes, num_sms=132)
    assert choose(other, entry(unlike)).source == "by the heuristic"


def test_an_entry_by_hand_whose_tiles_have_no_model_serves_its_own_shape_alone():
    tiles = {"tile_m": 128, "tile_n": 64, "wg_dimension": MatmulDimension.N}
    by_hand = entry(config=KernelConfig(**tiles))
    assert choose(H200, by_hand).config == by_hand.config
    near = dataclasses.replace(H200, m_shard=3072)
    assert choose(near, by_hand).source == "by the heuristic"


def test_an_entry_that_leaves_no_sm_to_compute_is_passed_over():
    chosen = choose(H200, entry(), num_sms=4)
    assert chosen.config == heuristic_config(**H200.sizes, num_sms=4)


def test_the_portable_ring_has_entries_too():
    shape = dataclasses.replace(H200, device_kind="cpu", dtype="float32")
    known = entry(shape, PpermuteConfig(num_chunks=4), "ppermute")
    assert choose(shape, known, num_sms=None, implementation="ppermute").config.num_chunks == 4
    assert choose(H200, known, num_sms=None, implementation="ppermute").config == PpermuteConfig()
    near = dataclasses.replace(shape, m_shard=2048)
    assert choose(near, known, num_sms=None, implementation="ppermute").config.num_chunks == 4


SIZES = st.integers(1, 9000)


@given(m_shard=SIZES, k=SIZES, n_shard=SIZES, num_ranks=st.integers(1, 8), num_sms=st.integers(2, 132))
@settings(max_examples=200, deadline=None)
def test_any_shape_gets_a_config_that_the_kernel_takes_and_the_model_doesnt_mind(
    m_shard, k, n_shard, num_ranks, num_sms
):
    entries = [
        entry(dataclasses.replace(H200, m_shard=m, k=k_, n_shard=n, num_ranks=d), dataclasses.replace(WIDE, **options))
        for m in (64, 1024, 4096)
        for k_ in (4096, 8192)
        for n in (3072, 14336)
        for d, options in ((2, {}), (4, {"num_comm_ctas": 20}), (8, {"split_last_wave": False}))
    ]
    shape = dataclasses.replace(H200, m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks)
    config = choose(shape, *entries, num_sms=num_sms).config
    assert isinstance(config, KernelConfig)
    sizes = {**shape.sizes, "num_sms": num_sms}
    assert make_protocol(config, **sizes).num_compute_ctas > 0
    if shape not in [e.shape for e in entries]:
        assert modelled_us(config, **sizes) <= 1.02 * modelled_us(heuristic_config(**sizes), **sizes)
