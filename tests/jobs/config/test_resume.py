import dataclasses
import re

import pytest

from jobs.config.choices import Implementation, WandbMode
from jobs.config.options import leaves
from jobs.config.resume import continued
from jobs.config.rules import recorded_settings
from jobs.config.schema import ClusterSettings, KernelSettings, ProblemSettings, Settings, WandbSettings
from jobs.errors import UsageError
from jobs.records.environment import Environment
from jobs.results.disk.recorded_run import read_environment
from jobs.results.disk.run_dir import RunDir


@pytest.fixture
def stored():
    problem = ProblemSettings(name="tiny", m_shard=[64, 128], k=256, n_shard=256)
    return Settings(problem=problem, cluster=ClusterSettings(num_ranks=2))


def given(stored, **changes):
    return dataclasses.replace(stored, resume="/runs/a", **changes)


def test_without_overrides_everything_is_kept(stored):
    assert continued(stored, Settings(resume="/runs/a"), ["resume=/runs/a"]) == given(stored)


def test_the_same_overrides_again_are_no_conflict(stored):
    overrides = ["problem=tiny", "problem.m_shard=[64,128]", "cluster.num_ranks=2", "resume=/runs/a"]
    assert continued(stored, given(stored), overrides) == given(stored)


OTHER_SIZE = ProblemSettings(name="tiny", m_shard=[8])


@pytest.mark.parametrize(
    ("changes", "override", "option", "value", "before"),
    [
        ({"problem": OTHER_SIZE}, "problem.m_shard=[8]", "problem.m_shard", "[8]", "[64, 128]"),
        ({"problem": ProblemSettings(name="llama3")}, "problem=llama3", "problem.name", "llama3", "tiny"),
        (
            {"kernel": KernelSettings(implementation=Implementation.xla)},
            "kernel=xla",
            "kernel.implementation",
            "xla",
            "auto",
        ),
        ({"cluster": ClusterSettings()}, "cluster.num_ranks=null", "cluster.num_ranks", "null", "2"),
        ({"run_dir": "/runs/b"}, "run_dir=/runs/b", "run_dir", "/runs/b", "null"),
    ],
)
def test_a_conflict_is_named(stored, changes, override, option, value, before):
    with pytest.raises(UsageError) as error:
        continued(stored, given(stored, **changes), ["resume=/runs/a", override])
    assert str(error.value).startswith(f"{option}={value} contradicts {option}={before} of the job in resume=/runs/a")


def test_where_it_runs_may_change(stored):
    changed = given(stored, cluster=ClusterSettings(address="h:1", max_restarts=9, stall_timeout_s=7.0))
    changed.wandb.mode = WandbMode.offline
    overrides = ["cluster.address=h:1", "cluster.max_restarts=9", "cluster.stall_timeout_s=7", "wandb=offline"]
    settings = continued(stored, changed, overrides)
    assert settings.cluster == ClusterSettings(num_ranks=2, address="h:1", max_restarts=9, stall_timeout_s=7.0)
    assert settings.wandb.mode is WandbMode.offline
    assert stored.cluster.address is None


def test_a_choice_keeps_the_options_that_it_leaves_open(stored):
    stored.wandb.project = "of the stopped job"
    changed = given(stored, wandb=WandbSettings(mode=WandbMode.offline))
    wandb = continued(stored, changed, ["resume=/runs/a", "wandb=offline"]).wandb
    assert (wandb.project, wandb.mode) == ("of the stopped job", WandbMode.offline)


def test_what_may_change_is_no_part_of_a_row():
    may_change = {name for name, field, _ in leaves(Settings()) if field.metadata.get("may_change")}
    timeouts = {f"cluster.{name}_timeout_s" for name in ("connect", "placement", "setup", "step", "stall", "heartbeat")}
    wandb = {f"wandb.{name}" for name in ("mode", "api_key_file", "init_timeout_s", "finish_timeout_s")}
    cluster = {"cluster.mode", "cluster.address", "cluster.max_restarts"}
    floors = {f"health.min_{name}" for name in ("tflops", *(f"{link}_gbytes_per_s" for link in ("link", "nic", "tcp")))}
    results = {"results.report", "results.columns", "results.junit"}
    assert may_change == timeouts | wandb | cluster | floors | results | {"resume"}


def test_the_rows_of_the_earlier_job_decide_the_number_of_ranks(stored):
    everything = dataclasses.replace(stored, cluster=ClusterSettings())
    assert continued(everything, given(everything), [], num_ranks=3).cluster.num_ranks == 3


def test_config_comes_back_as_it_was(stored, tmp_path):
    run_dir = RunDir.create(str(tmp_path), submission_id=None)
    run_dir.write_config(stored)
    assert recorded_settings(RunDir.reopen(str(tmp_path), submission_id=None).config_path) == stored


def test_a_recorded_config_may_have_the_old_names_of_options(stored, tmp_path):
    run_dir = RunDir.create(str(tmp_path), submission_id=None)
    stored.cluster.link_gbytes_per_s = 100.0
    run_dir.write_config(stored)
    path = tmp_path / "config.yaml"
    path.write_text(re.sub(r"^  (link|nic)_gbytes_per_s:", r"  \1_gbps:", path.read_text(), flags=re.MULTILINE))
    assert recorded_settings(run_dir.config_path) == stored


def test_unknown_option_of_another_version_is_named(stored, tmp_path):
    run_dir = RunDir.create(str(tmp_path), submission_id=None)
    run_dir.write_config(stored)
    with (tmp_path / "config.yaml").open("a") as file:
        file.write("\nspeed: 11\n")
    with pytest.raises(UsageError, match=r"config.yaml: speed is no option"):
        recorded_settings(run_dir.config_path)


def test_environment_of_a_job_that_never_began(tmp_path):
    assert read_environment(tmp_path) == Environment()


def test_no_run_directory_is_refused(tmp_path):
    with pytest.raises(UsageError, match=rf"resume={tmp_path} must be the run directory of an earlier job"):
        RunDir.reopen(str(tmp_path), submission_id=None)
    with pytest.raises(UsageError, match="resume=runs/a must be absolute"):
        RunDir.reopen("runs/a", submission_id="raysubmit_1")
