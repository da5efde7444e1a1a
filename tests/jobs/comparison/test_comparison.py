"""Matching, what is said beside the table, table and Markdown: on run directories as jobs leave them."""

import copy
import dataclasses
import os

import numpy as np
import pytest

from jobs.comparison.cells import TITLES
from jobs.comparison.comparison import compare
from jobs.comparison.loading import load_side, refuse_repeated
from jobs.comparison.markdown import markdown
from jobs.comparison.statistics import Verdict
from jobs.comparison.table import text
from jobs.errors import UsageError
from jobs.records.row import FORMAT_VERSION, Telemetry
from tests.jobs.comparison.simulated_runs import ENVIRONMENT, PASSED, Noise, row, samples, without_time, write_run

FAILED = dataclasses.replace(PASSED, passed=False, num_wrong=3, failed_ranks=(1,))


def measured(time_us, **options):
    """A row with this headline, give or take the noise."""
    rng = np.random.default_rng(round(time_us * 1000))
    return row({"in_graph_us": samples(rng, [time_us], Noise(), ranks=2)[0]}, **options)


def side(tmp_path, name, *runs, **options):
    paths = [write_run(tmp_path / f"{name}{i}", rows, **options) for i, rows in enumerate(runs)]
    return load_side(name, [str(path) for path in paths])


def compared(tmp_path, base, new, **options):
    """Compare lists of runs, each a list of rows."""
    return compare(
        side(tmp_path, "base", *base),
        side(tmp_path, "new", *new),
        metric=options.pop("metric", "in_graph_us"),
        **options,
    )


def test_cases_are_matched_by_sizes_dtype_ranks_and_implementation(tmp_path):
    base = [measured(100), measured(200, m_shard=2048), measured(50, implementation="xla")]
    new = [measured(50.1, implementation="xla", name="other"), measured(200.1, m_shard=4096), measured(300)]
    found = compared(tmp_path, [base], [new])
    assert [(r.case_name, r.key.m_shard, r.key.implementation) for r in found.rows] == [
        ("article", 1024, "mosaic_gpu"),
        ("article", 1024, "xla"),
    ]
    assert [r.verdict for r in found.rows] == [Verdict.slower, Verdict.too_few_runs]
    assert found.rows[0].change.relative == pytest.approx(2, rel=0.1)
    assert found.left_out == [
        "mosaic_gpu on m_shard=2048 k=4096 n_shard=4096 bfloat16 D=2: only in BASE",
        "mosaic_gpu on m_shard=4096 k=4096 n_shard=4096 bfloat16 D=2: only in NEW",
    ]
    assert found.title == "2 compared: 1 slower, 1 too few runs"


def test_what_auto_took_is_compared_where_it_took_something_else(tmp_path):
    def run(*rows):
        return [dataclasses.replace(rows[0], requested="auto"), *rows[1:]]

    xla, other = measured(160, implementation="xla"), measured(300, m_shard=2048)
    base = [run(measured(100 + n / 10), xla, other) for n in range(3)]
    # `auto` falls back to `xla`, for example because a library that the kernel needs is gone.
    new = [run(measured(160 + n / 10, implementation="xla"), other) for n in range(3)]
    found = compared(tmp_path, base, new, fail_over=0.03)
    slower = [(r.key.implementation, r.verdict is Verdict.slower) for r in found.rows]
    assert slower == [("auto", True), ("xla", False), ("mosaic_gpu", False)]
    key = "auto on m_shard=1024 k=4096 n_shard=4096 bfloat16 D=2"
    (regression,) = found.regressions
    assert regression.startswith(f"{key} is 6")
    assert f"{key}: implementation mosaic_gpu -> xla" in found.warnings
    assert [row.key.implementation for row in compared(tmp_path / "same", base, base).rows] == [
        *("mosaic_gpu", "xla", "mosaic_gpu"),
    ]


def test_candidates_of_a_tuner_are_said_and_never_compared(tmp_path):
    tried = [measured(100), measured(130), without_time(measured(90), check=FAILED)]
    tuned = [dataclasses.replace(one, requested="tune:1/1") for one in tried]
    other = measured(70, implementation="xla")
    found = compared(tmp_path, [[measured(100), other]], [[*tuned, other]])
    assert [r.key.implementation for r in found.rows] == ["xla"]
    (line,) = found.left_out
    assert "mosaic_gpu on m_shard=1024 k=4096 n_shard=4096 bfloat16 D=2: candidates of jobs.tune" in line
    assert not found.regressions


def test_a_row_without_a_valid_time_is_said_and_never_compared(tmp_path):
    wrong = without_time(measured(100), check=FAILED)
    not_run = without_time(measured(50, implementation="jax_ring"), reason="no tile divides m_shard")
    slow = measured(70, implementation="xla")
    base = [[measured(100), not_run, slow], [measured(101), not_run, slow]]
    new = [[wrong, measured(60, implementation="jax_ring"), slow], [measured(99), slow]]
    found = compared(tmp_path, base, new)
    by_implementation = {r.key.implementation: r for r in found.rows}
    assert set(by_implementation) == {"mosaic_gpu", "xla"}
    assert (by_implementation["mosaic_gpu"].num_base, by_implementation["mosaic_gpu"].num_new) == (2, 1)
    case = "on m_shard=1024 k=4096 n_shard=4096 bfloat16 D=2"
    assert found.left_out == [
        f"jax_ring {case}: not run: no tile divides m_shard (BASE, all runs)",
        f"mosaic_gpu {case}: check failed on rank 1 (NEW, {tmp_path / 'new0'})",
    ]


def test_another_metric_is_compared_only_where_it_was_measured(tmp_path):
    profiled = row({"in_graph_us": [[[100.0]], [[99.0]]], "kernel_us": [[[80.0]], [[81.0]]]})
    found = compared(tmp_path, [[profiled, measured(50, implementation="xla")]], [[profiled]], metric="kernel_us")
    assert [(r.key.implementation, r.change.base_us) for r in found.rows] == [("mosaic_gpu", pytest.approx(81))]
    assert any("xla" in line and "kernel_us not measured" in line for line in found.left_out)


def test_layers_of_one_size_count_as_more_bursts_of_one_run(tmp_path):
    rows = [row({"in_graph_us": [[[100.0]], [[90.0]]]}, name=name) for name in ("q", "k")]
    found = compared(tmp_path, [rows], [rows])
    assert [(r.num_base, r.num_new) for r in found.rows] == [(1, 1)]


def test_a_regression_is_beyond_the_threshold_and_outside_the_noise(tmp_path):
    base = [[measured(100 + i / 10), measured(200 + i / 10, m_shard=2048)] for i in range(4)]
    new = [[measured(110 + i / 10), measured(201 + i / 10, m_shard=2048)] for i in range(4)]
    for fail_over, expected in ((None, 0), (0.03, 1), (0.2, 0)):
        found = compared(tmp_path / str(fail_over), base, new, fail_over=fail_over)
        assert found.rows[0].verdict is Verdict.slower
        assert len(found.regressions) == expected
    noisy = [[row({"in_graph_us": [[[t]], [[t]]]})] for t in (80.0, 100.0, 120.0)]
    worse = [[row({"in_graph_us": [[[t]], [[t]]]})] for t in (90.0, 110.0, 130.0)]
    assert compared(tmp_path / "noisy", noisy, worse, fail_over=0.03).regressions == []


def test_a_case_that_turned_wrong_is_a_regression_too(tmp_path):
    wrong = without_time(measured(100), check=FAILED)
    found = compared(tmp_path / "turned", [[measured(100)]], [[wrong]], fail_over=0.03)
    assert len(found.regressions) == 1
    assert "check fails in NEW alone" in found.regressions[0]
    assert compared(tmp_path / "before", [[wrong]], [[wrong]], fail_over=0.03).regressions == []
    assert compared(tmp_path / "without", [[measured(100)]], [[wrong]]).regressions == []


def test_what_ran_and_runs_no_more_is_a_regression_too(tmp_path):
    other, gone = measured(200), without_time(measured(100, implementation="jax_ring"), reason="jax has no such kernel")
    base = [[other, measured(100, implementation="jax_ring")]]
    found = compared(tmp_path / "gone", base, [[other, gone]], fail_over=0.03)
    assert [line.partition(": ")[2] for line in found.regressions] == ["it couldn't run in NEW"]
    assert found.regressions[0].startswith("jax_ring on m_shard=1024 ")
    assert compared(tmp_path / "never", [[other, gone]], [[other, gone]], fail_over=0.03).regressions == []
    assert compared(tmp_path / "new", [[other]], [[other, gone]], fail_over=0.03).regressions == []
    wrong = without_time(gone, check=FAILED)
    assert compared(tmp_path / "wrong", [[other, gone]], [[other, wrong]], fail_over=0.03).regressions == []
    assert compared(tmp_path / "left_out", base, [[other]], fail_over=0.03).regressions == []


def test_devices_versions_timing_tiles_and_clocks_that_differ_are_said(tmp_path):
    environment = copy.deepcopy(ENVIRONMENT)
    environment["versions"]["jax"] = "0.11.3"
    environment["members"][1]["device_kind"] = "NVIDIA H100"
    cool, hot = (
        Telemetry(
            rank=0,
            num_samples=9,
            sm_clock_mhz=clock,
            sm_clock_min_mhz=clock,
            power_w=600,
            power_max_w=700,
            temperature_c=60,
            throttle_reasons=(),
        )
        for clock in (1755.0, 1500.0)
    )
    base = side(tmp_path, "base", [measured(100, config={"tile_n": 128, "tile_m": 64}, telemetry=(cool,))])
    options = {"environment": environment, "chain_length": 4}
    new = side(tmp_path, "new", [measured(101, config={"tile_n": 256, "tile_m": 64}, telemetry=(hot,))], **options)
    assert compare(base, new, metric="in_graph_us").warnings == [
        "device differs: BASE NVIDIA H200, NEW NVIDIA H100 and NVIDIA H200",
        "jax differs: BASE 0.11.2, NEW 0.11.2 and 0.11.3",
        "timing.chain_length differs: BASE 16, NEW 4",
        "the slowest rank's SM clock differs: BASE 1755 MHz, NEW 1500 MHz (medians over rows)",
        "mosaic_gpu on m_shard=1024 k=4096 n_shard=4096 bfloat16 D=2: tile_n 128 -> 256",
    ]
    assert compare(base, base, metric="in_graph_us").warnings == []


def test_an_earlier_gang_of_a_job_on_other_devices_is_seen(tmp_path):
    earlier = {"attempt": 1, "members": [{"device_kind": "NVIDIA H100"}], "ended": "rank 1 died"}
    restarted = {**ENVIRONMENT, "attempt": 2, "earlier_attempts": [earlier]}
    (run,) = side(tmp_path, "base", [measured(100)], environment=restarted)
    assert run.device_kinds == {"NVIDIA H200", "NVIDIA H100"}


def test_islands_are_compared_one_by_one_and_their_devices_are_known(tmp_path):
    islands = [{"island": name, "attempt": 1, "members": ENVIRONMENT["members"]} for name in ("h1", "h2")]
    environment = {"versions": ENVIRONMENT["versions"], "islands": islands}
    base = [measured(100, island="h1"), measured(101, island="h2")]
    new = [measured(100.5, island="h1"), measured(300, island="h2")]
    found = compare(
        side(tmp_path, "base", base, environment=environment),
        side(tmp_path, "new", new, environment=environment),
        metric="in_graph_us",
    )
    assert [(r.case_name, r.verdict) for r in found.rows] == [
        ("h1: article", Verdict.too_few_runs),
        ("h2: article", Verdict.slower),
    ]
    (run,) = side(tmp_path, "other", base, environment=environment)
    assert run.device_kinds == {"NVIDIA H200"}


def test_few_runs_on_gpus_are_judged_by_an_assumed_scatter_and_it_is_said(tmp_path):
    found = compared(tmp_path / "gpu", [[measured(100)]], [[measured(150)]])
    assert [r.verdict for r in found.rows] == [Verdict.slower]
    assert any("fewer than 3 runs" in line and "3 % is assumed" in line for line in found.explanation)
    given = compared(tmp_path / "given", [[measured(100)]], [[measured(150)]], spread=0.5)
    assert [r.verdict for r in given.rows] == [Verdict.too_few_runs]
    assert any("50 % is assumed" in line for line in given.explanation)
    many = compared(tmp_path / "many", [[measured(100 + i)] for i in range(3)], [[measured(150 + i)] for i in range(3)])
    assert not any("assumed" in line for line in many.explanation)


@pytest.mark.parametrize("environment", [None, {"versions": {}, "members": [{"device_kind": "cpu"}]}])
def test_of_few_runs_on_cpus_or_unknown_devices_nothing_is_assumed(tmp_path, environment):
    options = {"environment": environment}
    base, new = (side(tmp_path, name, [measured(t)], **options) for name, t in (("base", 100), ("new", 900)))
    found = compare(base, new, metric="in_graph_us", fail_over=0.03)
    assert [r.verdict for r in found.rows] == [Verdict.too_few_runs]
    assert found.regressions == []
    assert any("no verdict is possible" in line for line in found.explanation)
    assert any("no environment.json" in line for line in found.warnings) == (environment is None)


def test_a_journal_alone_is_a_run(tmp_path):
    folder = write_run(tmp_path / "run", [measured(100)])
    (folder / "results.jsonl").rename(tmp_path / "base.jsonl")
    (run,) = load_side("BASE", [str(tmp_path / "base.jsonl")])
    assert (len(run.rows), run.facts) == (1, {})
    other = write_run(tmp_path / "other", [measured(100)])
    (named,) = load_side("BASE", [str(other / "results.jsonl")])
    assert named.device_kinds == {"NVIDIA H200"}


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path):
    for number in (10, 9):
        write_run(tmp_path / str(number), [measured(100)])
    assert [run.path.name for run in load_side("BASE", [str(tmp_path)])] == ["9", "10"]


def test_a_run_counts_once(tmp_path):
    runs = side(tmp_path, "base", [measured(100)])
    os.symlink(runs[0].path, tmp_path / "again")
    again = load_side("NEW", [str(tmp_path / "again" / "results.jsonl")])
    with pytest.raises(UsageError, match="is the same run as"):
        refuse_repeated(runs, again)


def test_what_is_no_run_is_refused(tmp_path):
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    empty = write_run(tmp_path / "empty", [])
    broken = write_run(tmp_path / "broken", [measured(100)])
    (broken / "environment.json").write_text('{"versions": 3}')
    unreadable = write_run(tmp_path / "unreadable", [measured(100)])
    (unreadable / "config.yaml").write_text("timing: [}")
    old = write_run(tmp_path / "old", [measured(100)])
    lines = (old / "results.jsonl").read_text()
    (old / "results.jsonl").write_text(lines + lines.replace(f'"version": {FORMAT_VERSION}', '"version": 0'))
    for path, message in [
        (tmp_path / "nowhere", "no such run directory or journal"),
        (nothing, "BASE=.*/nothing holds neither a results.jsonl nor folders with one"),
        (empty, "holds no row"),
        (broken, "environment.json: not written by a job"),
        (unreadable, "its config.yaml isn't one of jobs.bench"),
        (old, "old/results.jsonl:2: not a row .*version=0 must be"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_side("BASE", [str(path)])


@pytest.fixture
def found(tmp_path):
    """A comparison with one line of everything."""
    base = [[measured(100 + i / 10), measured(200 + i / 10, m_shard=2048), measured(5, m_shard=8)] for i in range(3)]
    new = [[measured(130 + i / 10), measured(200.3 + i / 10, m_shard=2048)] for i in range(3)]
    new[0].append(without_time(measured(9, implementation="jax_ring"), reason="a | b\nand *c*"))
    return compared(tmp_path, base, new, fail_over=0.05)


def test_the_table_on_a_terminal(found, tmp_path):
    lines = text(found, colour=False).splitlines()
    rows = [line for line in lines if line and not line.startswith("#")]
    assert rows[0].split() == " ".join(TITLES).split()
    assert "+29." in rows[1] or "+30." in rows[1]
    assert rows[1].endswith("3 + 3  slower")
    assert rows[2].endswith("same")
    assert len(rows) == 3
    assert any(line.startswith("# BASE: 3 runs, commit 0123456789ab") for line in lines)
    assert "# 2 compared: 1 slower, 1 same" in lines
    assert any(line.startswith("# REGRESSION: mosaic_gpu on m_shard=1024") for line in lines)
    assert sum(line.startswith("# Not compared: ") for line in lines) == 3
    assert "\x1b[" not in "".join(lines)
    assert "\x1b[1;31m" in text(found, colour=True)


def test_the_markdown_for_a_pull_request(found):
    blocks = markdown(found).split("\n\n")
    assert blocks[0] == "### 2 compared: 1 slower, 1 same"
    assert blocks[1].startswith("- **Regression**: mosaic\\_gpu on m\\_shard=1024")
    (table,) = [block.splitlines() for block in blocks if block.startswith("|")]
    assert len(table) == 4
    assert len({line.count(" | ") for line in table}) == 1, "as many columns in each line"
    assert table[2].endswith("| **slower** |")
    assert table[3].endswith("| same |")
    (hidden,) = [block for block in blocks if "jax\\_ring" in block and "not run" in block]
    assert "a \\| b and \\*c\\*" in hidden
