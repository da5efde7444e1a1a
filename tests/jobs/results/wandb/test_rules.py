"""Rules and variables of W&B's, by the installed wandb itself."""

import logging
import os
import re
import subprocess
import sys

import pytest

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.errors import UsageError
from jobs.results.wandb.rules import accepted
from jobs.results.wandb.variables import wanted_mode
from tests.paths import ROOT


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


def check(*, is_resumed=False, **options) -> WandbSettings:
    return accepted(WandbSettings(**options), is_resumed=is_resumed)


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        *(("project", f"a{character}b", "cannot contain characters") for character in "/\\#?%:"),
        ("project", "x" * 129, "128 characters"),
        ("project", "", "1 to 128 characters"),
        ("entity", "a/b", "neither spaces nor"),
        ("entity", "a b", "neither spaces nor"),
        ("name", "x" * 129, "1 to 128 characters"),
        ("group", " ", "1 to 128 characters"),
        ("tags", ["ok", ""], "between 1 and 64 characters"),
        ("tags", ["x" * 65], "between 1 and 64 characters"),
    ],
)
def test_option_that_wandb_refuses(option, value, rule):
    with pytest.raises(UsageError, match=rf"^wandb\.{option}={re.escape(str(value))}: .*{rule}"):
        check(**{option: value})
    assert check(mode=WandbMode.disabled, **{option: value})


@pytest.mark.parametrize(
    ("variable", "value", "rule"),
    [
        ("WANDB_BASE_URL", "notaurl", "valid URL"),
        ("WANDB_BASE_URL", "ftp://host", "'http' or 'https'"),
        ("WANDB_BASE_URL", "https://wandb.ai", "not a valid server address"),
        ("WANDB_PROJECT", "a/b", "cannot contain characters"),
        ("WANDB_ENTITY", "a/b", "neither spaces nor"),
        ("WANDB_NAME", "x" * 129, "1 to 128 characters"),
        ("WANDB_TAGS", "a,,b", "1 and 64 characters"),
        ("WANDB_JOB_TYPE", "x" * 65, "at most 64 characters"),
        ("WANDB_HTTP_TIMEOUT", "soon", "valid number"),
        ("WANDB_MODE", "shared", "one of online, offline, disabled"),
    ],
)
def test_variable_that_wandb_refuses(monkeypatch, variable, value, rule):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=rf"^{variable}={value}:? .*{rule}"):
        check()


def test_value_of_a_secret_variable_is_not_shown(monkeypatch):
    monkeypatch.setenv("WANDB_X_EXTRA_HTTP_HEADERS", "secret")
    with pytest.raises(UsageError, match=r"^WANDB_X_EXTRA_HTTP_HEADERS: ") as refused:
        check()
    assert "secret" not in str(refused.value)


def test_variables_stand_for_options_that_are_not_given(monkeypatch):
    given = {"PROJECT": "p", "ENTITY": "e", "NAME": "n", "RUN_GROUP": "g", "TAGS": "a, b"}
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert check() == WandbSettings(project="p", entity="e", name="n", group="g", tags=["a", "b"])
    options = {"project": "cmkernel", "entity": "x", "name": "y", "group": "z", "tags": []}
    assert check(**options) == WandbSettings(**options), "options win"


def test_resumed_job_keeps_its_run(monkeypatch, caplog):
    monkeypatch.setenv("WANDB_PROJECT", "other")
    monkeypatch.setenv("WANDB_TAGS", "a,b")
    assert check(is_resumed=True, project="p", tags=["a", "b"]).project == "p"
    assert [record.getMessage() for record in caplog.records] == [
        "WANDB_PROJECT=other is ignored: a resumed job keeps its W&B run"
    ]


@pytest.mark.parametrize("variable", ["WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR", "WANDB_SERVICE", "WANDB_SWEEP_ID"])
def test_variable_that_a_job_does_not_follow(monkeypatch, caplog, variable):
    monkeypatch.setenv(variable, "must")
    with caplog.at_level(logging.WARNING):
        check()
    assert f"{variable}=must is ignored: " in caplog.text
    assert variable not in os.environ


def test_empty_variable_counts_as_unset(monkeypatch, caplog):
    for name in ("BASE_URL", "PROJECT", "RUN_ID", "TAGS", "MODE"):
        monkeypatch.setenv(f"WANDB_{name}", "")
    assert check() == WandbSettings()
    assert not caplog.records


@pytest.mark.parametrize(("value", "mode"), [("online", "online"), ("dryrun", "offline"), ("disabled", "disabled")])
def test_mode_of_the_variable(monkeypatch, value, mode):
    monkeypatch.setenv("WANDB_MODE", value)
    assert wanted_mode(WandbMode.auto).value == mode
    assert wanted_mode(WandbMode.offline) is WandbMode.offline


@pytest.mark.parametrize("hiding", ["wandb/__init__.py", "wandb.py"])
def test_folder_that_hides_the_package(tmp_path, hiding):
    """``python -m`` puts the working directory first on the import path."""
    path = tmp_path / hiding
    path.parent.mkdir(exist_ok=True)
    code = (
        "from jobs.config.schema import WandbSettings; from jobs.results.wandb.rules import accepted\n"
        "from jobs.errors import UsageError\n"
        "try: accepted(WandbSettings(), is_resumed=False); print('accepted')\n"
        "except UsageError as error: print(error)"
    )

    def start() -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    # W&B itself makes folders of this name.
    assert start() == "accepted\n"
    path.touch()
    assert start().startswith(
        f"{path.parent if path.name == '__init__.py' else path} hides the package wandb: rename it"
    )


def test_key_file_that_cannot_be_read(tmp_path):
    path = str(tmp_path / "key")
    with pytest.raises(UsageError, match=r"wandb.api_key_file=.*: can't be read on the driver's node \(No such file"):
        check(api_key_file=path)
    assert check(api_key_file=path, mode=WandbMode.offline).api_key_file == path, "offline needs no key"
