"""Runs the job as a user does: its own process, its own Ray, its own run directory."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

# Two small cases for two ranks: enough for everything but the figures.
QUICK = (
    "problem=tiny",
    "cluster.num_ranks=2",
    "timing=quick",
    "timing.bursts=2",
    "timing.iterations=4",
    "timing.chains=2",
    "check.calls=1",
    "wandb=disabled",
    "results.report=false",
    # A busy machine may need more than the default of 8 s.
    "cluster.connect_timeout_s=60",
)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A job that has ended: its exit code and its output."""

    code: int
    stdout: str
    stderr: str

    @property
    def result(self) -> dict:
        """The RESULT line, which must be the last one of standard output."""
        return parse_result(self.stdout)

    def rows(self) -> list[dict]:
        """The journal."""
        return journal(self.result)


def parse_result(stdout: str) -> dict:
    """The RESULT line, which must be the last one."""
    last = stdout.rstrip().splitlines()[-1]
    assert last.startswith("RESULT {"), stdout
    return json.loads(last.removeprefix("RESULT "))


def results(stdout: str) -> list[dict]:
    """All RESULT lines: a multirun prints one for each point and one for the whole."""
    return [json.loads(line.removeprefix("RESULT ")) for line in stdout.splitlines() if line.startswith("RESULT ")]


def journal(result: dict) -> list[dict]:
    """The rows of the job that printed this RESULT line."""
    return [json.loads(line) for line in (Path(result["run_dir"]) / "results.jsonl").read_text().splitlines()]


def environment(**changes: str | None) -> dict[str, str]:
    """A user's shell: this process's environment without what conftest.py, Ray and wandb set."""
    removed = ("JAX_PLATFORMS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
    env = {name: value for name, value in os.environ.items() if name not in removed and "WANDB" not in name}
    env = {name: value for name, value in env.items() if not name.startswith("RAY_")}
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def command(*overrides: str, job: str = "jobs.bench") -> list[str]:
    return [sys.executable, "-m", job, *overrides]


def start(*overrides: str, job: str = "jobs.bench", root: Path = ROOT, **env: str | None) -> subprocess.Popen:
    """The job, running; ``root`` is the checkout that it runs from."""
    return subprocess.Popen(
        command(*overrides, job=job),
        cwd=root,
        env=environment(**env),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def finish(process: subprocess.Popen, *, timeout_s: float) -> Finished:
    """Wait for the job to end. A job that doesn't is killed, and the test fails."""
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"the job hadn't ended after {timeout_s} s:\n{stdout}\n{stderr}") from None
    return Finished(process.returncode, stdout, stderr)


def run(
    *overrides: str, timeout_s: float = 600, job: str = "jobs.bench", root: Path = ROOT, **env: str | None
) -> Finished:
    """The job, from start to end."""
    return finish(start(*overrides, job=job, root=root, **env), timeout_s=timeout_s)
