"""Files for contributors: pre-commit, CI and the issue template agree with the scripts."""

import os
import re
import shlex
import subprocess

import pytest
import yaml

from tests.paths import ROOT


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


def linters():
    """Commands that scripts/test.sh lints with, as words."""
    lines = re.findall(r"^check (.*)$", (ROOT / "scripts/test.sh").read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]


def hook_command(hook):
    """A hook's command as words, less the folder of the environment."""
    words = shlex.split(hook["entry"])
    if words[:2] == ["bash", "-c"]:
        words = shlex.split(words[2])
    folder, name = os.path.split(words[0])
    assert folder == ".venv/bin", f"{hook['id']} must run the locked version"
    return [name, *words[1:]]


def test_the_hooks_are_the_linters_of_the_test_script():
    (local,) = load(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert [hook_command(hook) for hook in local["hooks"]] == linters()
    assert len(linters()) == 5
    for hook in local["hooks"]:
        assert (hook["language"], hook["pass_filenames"]) == ("system", False)


def test_the_workflow_calls_the_script_of_ci():
    (job,) = load(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert all(step["uses"].startswith("actions/") for step in job["steps"] if "uses" in step)
    (python,) = [step["with"]["python-version"] for step in job["steps"] if "with" in step]
    assert python == (ROOT / ".python-version").read_text().strip()


def test_the_issue_template_asks_for_what_a_bug_needs():
    form = load(".github/ISSUE_TEMPLATE/bug.yml")
    assert {"name", "description", "body"} <= set(form)
    required = {field["id"] for field in form["body"] if field.get("validations", {}).get("required")}
    assert required == {"command", "result", "expected", "doctor"}
    labels = {field["attributes"]["label"] for field in form["body"]}
    assert labels >= {"RESULT line", "doctor.json"}


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_test_script_says_what_it_runs(option):
    done = subprocess.run(["scripts/test.sh", option], cwd=ROOT, check=True, capture_output=True, text=True)
    assert {"--all", "-m gpu", "--install-system-packages"} <= set(re.findall(r"--?[a-z-]+(?: gpu)?", done.stdout))
