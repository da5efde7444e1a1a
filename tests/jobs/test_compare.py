"""The command line of jobs.compare: arguments, output, exit codes."""

import subprocess
import sys

import numpy as np
import pytest

from jobs import compare
from tests.jobs.comparison.simulated_runs import Noise, row, samples, write_run
from tests.paths import ROOT


def write_runs(folder, time_us, count, **options):
    rng = np.random.default_rng(round(time_us))
    times = [samples(rng, [time_us], Noise())[0] for _ in range(count)]
    return [str(write_run(folder / str(i), [row({"in_graph_us": t})], **options)) for i, t in enumerate(times)]


@pytest.fixture
def base(tmp_path):
    return write_runs(tmp_path / "base", 100, 4)


@pytest.fixture
def slow(tmp_path):
    return write_runs(tmp_path / "slow", 150, 4)


def test_two_runs_by_place_and_several_by_option(base, slow, capsys):
    assert compare.main([base[0], slow[0]]) == 0
    assert " 1 + 1  slower" in capsys.readouterr().out
    assert compare.main(["--base", *base, "--new", *slow]) == 0
    assert " 4 + 4  slower" in capsys.readouterr().out


@pytest.mark.parametrize(("fail_over", "code"), [("0%", 1), ("3%", 1), ("80%", 0)])
def test_fail_over_is_the_exit_code(base, slow, fail_over, code, capsys):
    assert compare.main(["--base", *slow, "--new", *base, "--fail-over", fail_over]) == 0, "faster is no regression"
    capsys.readouterr()
    assert compare.main(["--base", *base, "--new", *slow, "--fail-over", fail_over]) == code
    assert ("REGRESSION" in capsys.readouterr().out) == bool(code)


def test_the_same_config_raises_no_alarm(base, tmp_path, capsys):
    again = write_runs(tmp_path / "again", 100.01, 4)
    assert compare.main(["--base", *base, "--new", *again, "--fail-over", "3%"]) == 0
    assert "1 compared: 1 s" in capsys.readouterr().out


def test_markdown_instead_of_the_table(base, slow, capsys):
    assert compare.main(["--base", *base, "--new", *slow, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("### 1 compared: 1 slower\n\n| case |")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name two runs, BASE and NEW, or several a side"),
        (["{base}"], "name two runs"),
        (["{base}", "{slow}", "{slow}"], "name two runs"),
        (["{base}", "--new", "{slow}"], "name two runs"),
        (["--base", "{base}"], "name two runs"),
        (["{base}", "{slow}", "--fail-over", "0.03"], "'0.03' must be a percentage of at least 0, such as 3%"),
        (["{base}", "{slow}", "--fail-over=-3%"], "'-3%' must be a percentage"),
        (["{base}", "{slow}", "--spread", "nan%"], "'nan%' must be a percentage"),
        (["{base}", "{slow}", "--spread", "x%"], "'x%' must be a percentage"),
        (["{base}", "{slow}", "--metric", "time"], "invalid choice: 'time'"),
        (["{base}", "{slow}/nothing"], "NEW={slow}/nothing: no such run directory or journal"),
        (["{base}", "{base}"], "is the same run as"),
        (["{base}", "{slow}", "--metric", "kernel_us"], "no case has a valid kernel_us on both sides"),
    ],
)
def test_wrong_usage_is_exit_code_2(base, slow, arguments, message, capsys):
    paths = {"base": base[0], "slow": slow[0]}
    try:
        code = compare.main([argument.format(**paths) for argument in arguments])
    except SystemExit as error:  # argparse's way
        code = error.code
    assert code == 2
    assert message.format(**paths) in capsys.readouterr().err


def test_sides_without_a_common_case_are_listed_first(tmp_path, capsys):
    one = write_run(tmp_path / "one", [row({"in_graph_us": [[[1.0]], [[1.0]]]})])
    two = write_run(tmp_path / "two", [row({"in_graph_us": [[[1.0]], [[1.0]]]}, m_shard=64)])
    assert compare.main([str(one), str(two)]) == 2
    out = capsys.readouterr().out
    assert "m_shard=1024 k=4096 n_shard=4096 bfloat16 D=2: only in BASE" in out
    assert "m_shard=64 k=4096 n_shard=4096 bfloat16 D=2: only in NEW" in out


def test_a_bug_is_not_taken_for_a_regression(base, slow, monkeypatch, capsys):
    monkeypatch.setattr(compare, "compare", lambda *_, **__: 1 / 0)
    assert compare.main([base[0], slow[0]]) == 3
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_reader_that_leaves_changes_nothing(base, slow):
    command = [sys.executable, "-m", "jobs.compare", "--base", *base, "--new", *slow, "--fail-over", "3%"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == ""


def test_it_needs_neither_jax_nor_ray_nor_hydra():
    code = "import sys, jobs.compare; print(sorted({'jax', 'ray', 'hydra', 'wandb', 'matplotlib'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[]", shown.stderr
