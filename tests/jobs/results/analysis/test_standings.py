import dataclasses

import numpy as np
import pytest

from jobs.results.analysis.standings import standings
from tests.jobs.comparison.simulated_runs import row


def rows(times_us, *, scatter=0.003, seed=0, implementation="local", m_shard=1024, ranks=2):
    """A row of each island, whose ranks take ``times_us[island][rank]``."""
    rng = np.random.default_rng(seed)
    found = []
    for number, of_island in enumerate(times_us):
        of_island = np.broadcast_to(of_island, ranks)
        samples = [[[float(time * (1 + scatter * rng.normal())) for _ in range(24)]] for time in of_island]
        one = row({"in_graph_us": samples}, implementation=implementation, m_shard=m_shard)
        found.append(dataclasses.replace(one, island=f"h{number}"))
    return found


def test_a_slow_island_is_flagged_and_stands_first():
    found = standings(rows([100, 101, 100, 112, 99]), outlier_z=3.5)
    assert [s.name for s in found.islands if s.is_outlier] == ["h3"]
    assert found.islands[0].name == "h3"
    assert found.islands[0].excess == pytest.approx(0.12, abs=0.01)
    assert {s.name for s in found.ranks[:2]} == {"rank 0 of h3", "rank 1 of h3"}
    text = "\n".join(found.lines())
    assert "# Islands : 5, 1 OUTLIER; slowest first" in text
    assert "#   h3  +11.9 %  OUTLIER: local on article" in text
    assert "OUTLIER: local on article m_shard=1024" in text


def test_a_slow_rank_is_named():
    times = [[100, 100], [100, 101], [100, 130], [101, 100]]
    found = standings(rows(times), outlier_z=3.5)
    assert [s.name for s in found.outliers] == ["h2", "rank 1 of h2"]


def test_a_fast_one_is_no_outlier():
    assert standings(rows([100, 101, 100, 70, 99]), outlier_z=3.5).outliers == []


def test_noise_is_not_flagged_where_all_else_is_alike():
    """Four equal times have a MAD of zero: without the floor any difference would be an outlier."""
    assert standings(rows([100, 100, 100, 100, 102], scatter=0), outlier_z=3.5).outliers == []
    assert standings(rows([100, 100, 100, 100, 106], scatter=0), outlier_z=3.5).outliers != []
    assert standings(rows([100, 100, 100, 100, 106], scatter=0.05), outlier_z=3.5).outliers == [], "of the samples"


def test_an_island_whose_own_samples_scatter_is_none():
    """Its median is 50 % off, but of three samples that another run might not repeat."""
    samples = [[48, 49, 50], [47, 48, 49], [48, 76, 135]]
    found = [
        dataclasses.replace(row({"in_graph_us": [[of_island]]}), island=f"h{number}")
        for number, of_island in enumerate(samples)
    ]
    assert standings(found, outlier_z=3.5).outliers == []
    samples[2] = [70, 76, 80]
    found[2] = dataclasses.replace(row({"in_graph_us": [[samples[2]]]}), island="h2")
    assert [s.name for s in standings(found, outlier_z=3.5).outliers] == ["h2", "rank 0 of h2"]


def test_the_threshold_is_the_configs():
    slow = rows([100, 102, 98, 115, 100])
    assert standings(slow, outlier_z=3.5).outliers
    assert not standings(slow, outlier_z=20).outliers


def test_false_alarms_are_rare():
    """Eight islands of 1 % scatter between them, 200 times."""
    rng = np.random.default_rng(1)
    alarms = sum(bool(standings(rows(rng.normal(100, 1, 8), seed=i), outlier_z=3.5).outliers) for i in range(200))
    assert alarms <= 20


def test_an_outlier_on_one_case_is_one():
    many = [row for m in range(8) for row in rows([100] * 5, m_shard=64 + m, seed=m)]
    found = standings([*many, *rows([100, 100, 150, 100, 100], m_shard=512)], outlier_z=3.5)
    assert {s.name for s in found.islands if s.is_outlier} == {"h2"}
    assert found.islands[0].worst.case.m_shard == 512


def test_two_islands_are_too_few():
    found = standings(rows([100, 200]), outlier_z=3.5)
    assert found.islands == ()
    assert not found.outliers
    assert "# Islands : 2, too few to tell a slow one from a fast one (3 needed)" in found.lines()


def test_condensed_rows_give_the_same():
    full = rows([100, 101, 100, 112, 99])
    found, condensed = (standings(r, outlier_z=3.5) for r in (full, [row.summary() for row in full]))
    assert [s.name for s in found.outliers] == [s.name for s in condensed.outliers]
    for one, other in zip(found.islands, condensed.islands, strict=True):
        assert (one.name, one.worst.time_us) == (other.name, other.worst.time_us)
        assert one.worst.z == pytest.approx(other.worst.z)


def test_rows_without_a_time_are_left_out():
    good = rows([100, 101, 100])
    failed = dataclasses.replace(good[0], check=None, reason="no", in_graph_us=None, samples_us={}, island="h9")
    assert len(standings([*good, failed], outlier_z=3.5).islands) == 3
