"""Two files of the doctor, compared by the command."""

import copy
import json

import pytest

from jobs import compare
from tests.jobs.run_rows import BENCHMARKS

EXAMINED = BENCHMARKS / "2026-11-30_hosts_and_faults_2xH200" / "doctor.json"


@pytest.fixture
def changed(tmp_path):
    """Write the measured file with changes; ``changed(change)`` returns its path."""

    def write(change):
        data = copy.deepcopy(json.loads(EXAMINED.read_text()))
        change(data)
        path = tmp_path / "doctor.json"
        path.write_text(json.dumps(data))
        return str(path)

    return write


def slower(data):
    data["links"][0]["bytes_per_s"] *= 0.8


def broken(data):
    data["links"][0] |= {"bytes_per_s": None, "error": "other data arrived than were sent"}


def without_a_gpu(data):
    data["hosts"][0]["gpus"].pop()


def worse(data):
    finding = next(finding for finding in data["findings"] if finding["check"] == "clock")
    finding |= {"verdict": "fail", "where": finding["where"] + " (192.0.2.2)"}


def another(data):
    data["findings"].append({"check": "a new one", "where": "vm", "found": "79", "verdict": "fail", "mend": "reboot"})


def without_the_link(data):
    data["links"].clear()


def test_the_same(capsys):
    assert compare.main([str(EXAMINED), str(EXAMINED.parent / "doctor.json"), "--fail-over", "1%"]) == 0
    out = capsys.readouterr().out
    assert "vm rank 0 - 1          289         289  +0.0 %" in out
    assert "# 1 links compared" in out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (slower, "vm rank 0 - 1: 289 GB/s became 231"),
        (broken, "vm rank 0 - 1: 289 GB/s became broken"),
        (without_a_gpu, " of vm is gone"),
        (another, "a new one on vm: n/a became fail"),
        (without_the_link, "link vm rank 0 - 1 is gone"),
        (worse, "clock on vm: ok became fail"),
    ],
)
def test_what_is_worse_is_a_regression(change, said, changed, capsys):
    path = changed(change)
    assert compare.main([str(EXAMINED), path, "--fail-over", "10%"]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "REGRESSION" in line and said in line]
    assert compare.main([str(EXAMINED), path]) == 0, "without --fail-over nothing fails"
    assert "REGRESSION" not in capsys.readouterr().out
    assert compare.main([path, str(EXAMINED), "--fail-over", "10%"]) == 0, "better is no regression"


def test_a_loss_below_the_limit(changed, capsys):
    assert compare.main([str(EXAMINED), changed(slower), "--fail-over", "25%"]) == 0
    assert "-20.0 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([str(EXAMINED), str(BENCHMARKS / "2026-11-30_main_2xH200")], "compared with one other doctor.json"),
        (["--base", str(EXAMINED), str(EXAMINED), "--new", str(EXAMINED)], "compared with one other doctor.json"),
        ([str(EXAMINED), str(EXAMINED), "--markdown"], "--markdown, --spread and --metric are for runs"),
        ([str(EXAMINED), "missing.json"], "NEW=missing.json: can't be read (No such file"),
    ],
)
def test_mistakes(arguments, said, capsys):
    assert compare.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_another_file(tmp_path, capsys):
    path = tmp_path / "environment.json"
    path.write_text("{}")
    assert compare.main([str(EXAMINED), str(path)]) == 2
    assert "no doctor.json of jobs.doctor (KeyError('hosts'))" in capsys.readouterr().err
