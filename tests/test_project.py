"""Rules of the whole project: imports, locks, config groups, the wheel, the README's commands."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from jobs.config import rules
from jobs.config import schema as settings
from jobs.config.problem import config_dir
from tests.paths import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-cuda13.lock")
GROUP_CHOICES = sorted(f"{path.parent.name}={path.stem}" for path in (ROOT / "conf").glob("*/*.yaml"))


def sources():
    return sorted(path for package in ("cmkernel", "jobs") for path in (ROOT / package).rglob("*.py"))


def private_jax_lines(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = any(f"{alias.name}.".startswith("jax._src.") for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                found = any(f"{module}.{alias.name}.".startswith("jax._src.") for alias in names)
            case ast.Attribute(value=ast.Name(id="jax"), attr="_src"):
                found = True
            case _:
                found = False
        if found:
            yield node.lineno


@pytest.mark.parametrize(
    "code",
    [
        "import jax._src",
        "import jax._src.core as c",
        "from jax import _src",
        "from jax._src import core",
        "jax._src.x()",
    ],
)
def test_private_jax_is_found(code):
    assert list(private_jax_lines(ast.parse(code))) == [1]


def test_no_private_jax():
    lines = {path.relative_to(ROOT): list(private_jax_lines(ast.parse(path.read_text()))) for path in sources()}
    assert {path: found for path, found in lines.items() if found} == {}


def read_lock(name):
    """Versions by canonical name; fails on any line that is no pin, hash or note."""
    pins, num_hashes = {}, {}
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        if pin := re.fullmatch(r"([a-z0-9][a-z0-9._-]*)==([^\s;]+) \\", line):
            package = canonicalize_name(pin[1])
            assert package not in pins, f"{name}:{number}: {package} is there twice"
            pins[package], num_hashes[package] = pin[2], 0
        elif re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line):
            num_hashes[package] += 1
        else:
            assert re.fullmatch(r" *# [^/]*(scripts/lock\.sh [^/]*)?", line), f"{name}:{number}: {line}"
    assert pins
    assert [package for package, count in num_hashes.items() if count == 0] == []
    return pins


def test_locks_pin_each_package_once():
    packages = [package for name in LOCKS for package in read_lock(name)]
    assert len(packages) == len(set(packages))


@pytest.mark.parametrize(
    ("requirements", "locks"),
    [
        (PYPROJECT["project"]["dependencies"], LOCKS[:1]),
        (PYPROJECT["project"]["optional-dependencies"]["jobs"], LOCKS[:1]),
        (PYPROJECT["dependency-groups"]["dev"], LOCKS[:2]),
        (PYPROJECT["project"]["optional-dependencies"]["cuda13"], (LOCKS[0], LOCKS[2])),
        (PYPROJECT["tool"]["uv"]["constraint-dependencies"], (LOCKS[0], LOCKS[2])),
    ],
    ids=["base", "jobs", "dev", "cuda13", "constraints"],
)
def test_locks_satisfy_pyproject(requirements, locks):
    pins = {package: version for name in locks for package, version in read_lock(name).items()}
    for requirement in map(Requirement, requirements):
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} isn't in {locks}: run scripts/lock.sh"
        assert requirement.specifier.contains(version), f"{requirement}, but locked is {version}: run scripts/lock.sh"


@pytest.mark.parametrize("choice", GROUP_CHOICES)
def test_config_groups_fit_the_schema(choice):
    settings.register()
    with initialize_config_dir(str(config_dir()), version_base=None):
        config = compose("config", overrides=[choice])
    assert isinstance(rules.to_settings(config), settings.Settings)


def test_wheel_has_the_config_and_needs_jax_alone(tmp_path):
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = set(archive.namelist())
    assert names >= {path.relative_to(ROOT).as_posix() for path in sources()}
    assert names >= {f"jobs/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert names >= {"jobs/results/report/page.html", "jobs/results/report/sort.js", "cmkernel/tuned.jsonl"}
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"cmkernel", "jobs"}
    (metadata,) = site.glob("*.dist-info/METADATA")
    needed = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE)
    assert [Requirement(line).name for line in needed if "extra ==" not in line] == ["jax"]

    where = "from jobs.config import problem; print(problem.config_dir())"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", where], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert Path(done.stdout.strip()) == site / "jobs" / "conf"


def test_scripts_of_the_readme_exist():
    scripts = set(re.findall(r"scripts/\w+\.sh", (ROOT / "README.md").read_text()))
    assert scripts >= {"scripts/bench.sh", "scripts/test.sh"}
    assert [script for script in scripts if not os.access(ROOT / script, os.X_OK)] == []


def run_sample(document: str, checks: str, num_devices: int) -> str:
    """Run a document's Python program on so many CPU devices, then ``checks``; returns what it prints."""
    (sample,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}"}
    command = [sys.executable, "-c", f"{sample}\n{checks}"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout


def test_the_model_of_the_readme_runs_as_printed():
    checks = "assert y.shape == (2048, 4096) and (y == 1024).all(); assert (d_a == 4096).all() and (d_b == 2048).all()"
    run_sample("README.md", checks, 4)


def test_the_layer_of_the_library_page_learns_the_same_on_one_device_and_on_four():
    losses = [list(map(float, run_sample("docs/library.md", "", number).split())) for number in (1, 4)]
    for before, after in losses:
        assert after < before
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
