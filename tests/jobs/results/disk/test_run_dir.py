import contextlib
import json
import os

import pytest
import yaml

from cmkernel.config import MatmulDimension
from jobs.config.schema import KernelSettings, LayerSettings, ProblemSettings, Settings
from jobs.errors import InfrastructureError, UsageError
from jobs.records.environment import Environment
from jobs.results.disk.recorded_run import read_environment
from jobs.results.disk.run_dir import RunDir
from tests.small_disk import small_disk


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


@pytest.fixture
def full_disk(tmp_path):
    """A real file system without space."""
    with small_disk(tmp_path / "full", "64k") as path:
        with (path / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        yield path


def test_default_is_below_home_and_named_by_submission_id(home):
    assert RunDir.create(None, submission_id="raysubmit_abc").path == home / "cmkernel_runs" / "raysubmit_abc"


def test_default_without_submission_is_named_by_time(home):
    path = RunDir.create(None, submission_id=None).path
    assert path.parent == home / "cmkernel_runs"
    assert path.is_dir()
    assert len(path.name) == len("20261129-210000")


def test_jobs_of_one_second_do_not_share_a_folder(home):
    paths = [RunDir.create(None, submission_id="same").path for _ in range(3)]
    assert [path.name for path in paths] == ["same", "same-2", "same-3"]


def test_submission_id_that_is_no_file_name(home):
    path = RunDir.create(None, submission_id="../../a b/c").path
    assert path.parent == home / "cmkernel_runs"


def test_explicit_folder_is_made_with_its_parents(tmp_path):
    run_dir = RunDir.create(str(tmp_path / "a" / "b"), submission_id=None)
    assert run_dir.path == tmp_path / "a" / "b"
    assert list(run_dir.path.iterdir()) == []
    assert run_dir.journal_path == run_dir.path / "results.jsonl"
    assert run_dir.log_path == run_dir.path / "bench.log"


def test_explicit_folder_is_absolute_and_expanded(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunDir.create("~/x", submission_id=None).path == home / "x"
    assert RunDir.create("y/../z", submission_id=None).path == tmp_path / "z"


def test_relative_folder_of_a_submitted_job_would_vanish(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"run_dir=results must be absolute"):
        RunDir.create("results", submission_id="raysubmit_abc")


def test_empty_folder_and_empty_journal_are_taken(tmp_path):
    (tmp_path / "old").mkdir()
    RunDir.create(str(tmp_path / "old"), submission_id=None)
    (tmp_path / "old" / "results.jsonl").touch()
    RunDir.create(str(tmp_path / "old"), submission_id=None)


def test_results_of_another_job_are_left_alone(tmp_path):
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=rf"run_dir={tmp_path} already holds a results.jsonl"):
        RunDir.create(str(tmp_path), submission_id=None)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_file_in_the_way(tmp_path, name):
    (tmp_path / "file").write_text("")
    path = tmp_path / name
    with pytest.raises(UsageError, match=rf"run_dir={path}: not writable \(a file is in the way\)"):
        RunDir.create(str(path), submission_id=None)


def test_unwritable_folder():
    # Root may write into every folder but /proc and /sys.
    with pytest.raises(UsageError, match=r"run_dir=/proc/sys: not writable \("):
        RunDir.create("/proc/sys", submission_id=None)


def test_home_in_the_way(home):
    (home / "cmkernel_runs").write_text("")
    with pytest.raises(UsageError, match=r"run_dir=.*cmkernel_runs.*not writable \(a file is in the way\)"):
        RunDir.create(None, submission_id=None)


def test_full_disk_is_no_usage_error(full_disk):
    with pytest.raises(InfrastructureError, match=rf"run_dir={full_disk}: No space left on device"):
        RunDir.create(str(full_disk), submission_id=None)


def test_config_is_written_resolved(tmp_path):
    settings = Settings(
        problem=ProblemSettings(name="x", m_shard=[1, 2], layers=[LayerSettings(name="l", k=8, n=16)]),
        kernel=KernelSettings(grid_minor_dim=MatmulDimension.N),
    )
    RunDir.create(str(tmp_path), submission_id=None).write_config(settings)
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["problem"]["m_shard"] == [1, 2]
    assert config["problem"]["layers"] == [{"name": "l", "k": 8, "n": 16, "m_shard": [], "op": "all_gather_matmul"}]
    assert config["kernel"]["grid_minor_dim"] == "N"
    assert config["kernel"]["implementation"] == "auto"
    assert config["wandb"]["mode"] == "auto"


def test_environment_is_written(tmp_path):
    run_dir = RunDir.create(str(tmp_path), submission_id=None)
    environment = Environment(versions={"jax": "1"}, outlier_z=float("inf"))
    run_dir.write_environment(environment)
    data = json.loads((tmp_path / "environment.json").read_text())
    assert (data["versions"], data["outlier_z"]) == ({"jax": "1"}, "inf")
    assert "members" not in data, "no gang has begun"
    assert read_environment(tmp_path) == environment


def test_file_that_can_not_be_written_is_named(tmp_path):
    run_dir = RunDir.create(str(tmp_path), submission_id=None)
    os.mkdir(tmp_path / "environment.json")
    with pytest.raises(InfrastructureError, match=r"environment.json: can't be written"):
        run_dir.write_environment(Environment())
