import dataclasses
import json

import numpy as np
import pytest

from jobs.records.check import Check
from jobs.records.soak import SoakSlice
from jobs.results.analysis.soaking import Point, lines, soaked, theil_sen
from jobs.results.disk.journal import Journal, iterate_soak
from jobs.results.disk.json_safe import json_safe
from tests.jobs.comparison.simulated_runs import PASSED, row

CASE = row({}).case
MIB = 2**20


def a_slice(number=0, *, time_us=100.0, rss_mib=(500, 500), device_mib=(80, 80), seed=0, count=40, **changes):
    rng = np.random.default_rng(seed + number)
    return SoakSlice(
        case=CASE,
        implementation="mosaic_gpu",
        start_s=60.0 * number,
        seconds=60.0,
        first_iteration=count * number,
        times_us=[None] * 4 + rng.normal(time_us, 1, count - 4).tolist(),
        check=PASSED,
        rss_bytes=[mib * MIB for mib in rss_mib],
        device_bytes=[mib * MIB for mib in device_mib],
        attempt=1,
        **{"wrong": [], **changes},
    )


def result(slices):
    (found,) = soaked([Point.of(one, outlier_z=3.5) for one in slices])
    return found


def test_theil_sen_is_the_slope_whatever_a_few_odd_points_say():
    xs = np.arange(20.0)
    ys = 3 * xs + 7
    ys[[2, 11]] = 500
    assert theil_sen(xs, ys) == pytest.approx(3)
    many = np.arange(5000.0)
    assert theil_sen(many, -2 * many) == pytest.approx(-2)


def test_a_steady_soak():
    found = result([a_slice(n) for n in range(20)])
    assert abs(found.drift) < 0.01
    assert (found.iterations, found.num_wrong, found.first_wrong, found.num_slices) == (800, 0, None, 20)
    assert not found.grows
    assert found.growth_bytes == 0
    text = "\n".join(lines([Point.of(a_slice(n), outlier_z=3.5) for n in range(20)]))
    assert "800 iterations in 1200 s" in text
    assert "0 wrong" in text
    assert "memory flat: +0.0 MiB" in text


def test_drift_is_that_over_the_soak():
    found = result([a_slice(n, time_us=100 + n) for n in range(21)])
    assert found.drift == pytest.approx(20 / 110, rel=0.05)
    assert found.first_us == pytest.approx(102, abs=1)
    assert found.last_us == pytest.approx(118, abs=1)
    # 20 minutes of it.
    assert "drift +18." in found.line()
    assert "(+54." in found.line()


@pytest.mark.parametrize(
    ("memory", "grows"),
    [
        ({"rss_mib": lambda n: (500, 500 + 10 * n)}, True),
        ({"device_mib": lambda n: (80 + 10 * n, 80)}, True),
        ({"rss_mib": lambda n: (500, 500 + 2 * n)}, False),
        ({"rss_mib": lambda n: (500, 200 if n < 3 else 900)}, False),  # the first quarter warms up
        ({"rss_mib": lambda n: (9000, 9000 + 10 * n)}, False),  # 1 %
    ],
)
def test_memory_grows_beyond_64_mib_and_5_percent(memory, grows):
    found = result([a_slice(n, **{name: of(n) for name, of in memory.items()}) for n in range(20)])
    assert found.grows == grows
    assert ("memory GROWS" in found.line()) == grows


def test_cpu_ranks_have_no_device_memory():
    slices = [dataclasses.replace(a_slice(n), device_bytes=[None, None]) for n in range(8)]
    assert not result(slices).grows


def test_too_few_slices_tell_no_trend():
    found = result([a_slice(n) for n in range(3)])
    assert found.drift is None
    assert not found.grows
    assert "3 slices are too few" in found.line()


def test_slow_iterations_stand_out():
    slow = a_slice()
    slow.times_us[10] = 400.0
    found = result([slow, *(a_slice(n) for n in range(1, 4))])
    assert found.num_slow >= 1
    assert found.slowest_ratio == pytest.approx(4, rel=0.05)


def test_the_first_wrong_iteration_is_named():
    bad = Check(**{**dataclasses.asdict(PASSED), "passed": False, "num_wrong": 5, "failed_ranks": (1,)})
    wrong = [a_slice(n, **({"wrong": [n * 40 + 7]} if n > 1 else {})) for n in range(4)]
    found = result([dataclasses.replace(one, check=bad) if one.wrong else one for one in wrong])
    assert (found.num_wrong, found.first_wrong) == (2, 87)
    assert "2 WRONG, first 87" in found.line()


def test_slices_survive_their_journal(tmp_path):
    path = tmp_path / "soak.jsonl"
    infinite = dataclasses.replace(PASSED, relative_error=float("inf"))
    slices = [a_slice(0), dataclasses.replace(a_slice(1, island="h2"), check=infinite)]
    with Journal(path) as journal:
        for one in slices:
            journal.append(one)
    assert list(iterate_soak(path)) == slices
    assert list(iterate_soak(tmp_path / "none")) == []
    line = json.dumps({**json_safe(slices[0]), "version": 2})
    path.write_text(line + "\n")
    with pytest.raises(Exception, match=r"version=2 must be one of \(1,\)"):
        list(iterate_soak(path))
