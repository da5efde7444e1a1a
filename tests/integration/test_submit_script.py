"""scripts/submit.sh with a real job server, in a project of one module."""

import hashlib
import json
import shutil
import subprocess
import time
import zipfile

import pytest

from tests.limits import without_waiting
from tests.paths import ROOT

SUBMIT = ROOT / "scripts" / "submit.sh"
JOB = """
import json, os, signal, sys, time

try:
    from pinned import VALUE
except ImportError:
    VALUE = None
files = sorted(str(p.relative_to(".")) for p in __import__("pathlib").Path(".").rglob("*") if p.is_file())
print("FOUND", json.dumps({"args": sys.argv[1:], "files": files, "value": VALUE}), flush=True)


def stop(*_):
    time.sleep(4)  # longer than Ray waits by itself
    print("STOPPED CLEANLY", flush=True)
    sys.exit(143)


if sys.argv[1:] == ["wait"]:
    signal.signal(signal.SIGTERM, stop)
    print("WAITING", flush=True)
    time.sleep(120)
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


def run(command, env, **options):
    return subprocess.run(
        [str(part) for part in command], env=env, capture_output=True, text=True, timeout=240, **options
    )


def printed(done):
    (line,) = {line for line in done.stdout.splitlines() if line.startswith("FOUND ")}
    return json.loads(line.removeprefix("FOUND "))


class Project:
    """A checkout with submit.sh and one job, and the cluster that it submits to."""

    def __init__(self, root, cluster):
        self.root, self.cluster = root, cluster
        for path, text in {
            "jobs/__init__.py": "",
            "jobs/echo.py": JOB,
            "conf/wandb/offline.yaml": "mode: offline\n",
            "tests/test_it.py": "",
            "wandb/run/file": "",
            ".venv/pyvenv.cfg": "",
        }.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (root / "scripts").mkdir()
        shutil.copy(SUBMIT, root / "scripts" / "submit.sh")
        self.write_lock()

    def write_lock(self):
        """A lock of one package, from a wheel that is made here: no registry is needed."""
        wheel = self.root.parent / "pinned-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pinned.py", "VALUE = 17\n")
            archive.writestr("pinned-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pinned\nVersion: 1.0\n")
            archive.writestr(
                "pinned-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr("pinned-1.0.dist-info/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (self.root / "requirements.lock").write_text(
            f"--no-index\n--find-links {self.root.parent}\npinned==1.0 \\\n    --hash=sha256:{digest}\n"
        )

    def submit(self, *args, **options):
        command = [self.root / "scripts" / "submit.sh", "--job", "jobs.echo", "--address", self.cluster.dashboard_url]
        return run([*command, *args], self.cluster.env, **options)

    def ray_job(self, verb, submission_id):
        return run(["ray", "job", verb, "--address", self.cluster.dashboard_url, submission_id], self.cluster.env)


@pytest.fixture(scope="module")
def project(ray_head, tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project") / "checkout", ray_head)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--adress", "x"], "unknown option --adress"),
        (["--address"], "--address needs a value"),
        (["--submission-id", "--install"], "--submission-id needs a value"),
        (["--job", "os"], "--job=os must be a module of jobs/"),
    ],
)
def test_usage_errors(args, message):
    done = run([SUBMIT, *args], None)
    assert done.returncode == 2
    assert message in done.stderr


def test_help():
    done = run([SUBMIT, "--help"], None)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: scripts/submit.sh")


@pytest.mark.slow
def test_arguments_and_files_arrive(project):
    args = ["0", "problem.m_shard=[1,2]", "name=two words", "a='b'|c", "$HOME;*"]
    done = project.submit("--", *args)
    assert done.returncode == 0, done.stderr
    assert printed(done)["args"] == args
    assert printed(done)["value"] is None
    assert printed(done)["files"] == [
        "conf/wandb/offline.yaml",
        "jobs/__init__.py",
        "jobs/echo.py",
        "requirements.lock",
        "scripts/submit.sh",
    ]


@pytest.mark.slow
def test_exit_code_is_the_jobs(project):
    assert project.submit("--submission-id", "first", "3").returncode == 3
    again = project.submit("--submission-id", "first", "0")
    assert again.returncode == 3
    assert "already exists" in again.stderr


@pytest.mark.slow
def test_no_job_server(project):
    with without_waiting():
        done = project.submit("--address", "http://127.0.0.1:1")
    assert done.returncode == 3
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.slow
def test_stopped_job_has_time_to_end(project):
    accepted = project.submit("--no-wait", "--submission-id", "stopped", "wait")
    assert accepted.returncode == 0, accepted.stderr
    deadline = time.monotonic() + 60
    while "WAITING" not in project.ray_job("logs", "stopped").stdout:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert project.ray_job("stop", "stopped").returncode == 0
    assert "STOPPED CLEANLY" in project.ray_job("logs", "stopped").stdout


@pytest.mark.slow
def test_install_takes_the_lock_along(project):
    done = project.submit("--install", "--", "0")
    assert done.returncode == 0, done.stdout
    assert printed(done)["value"] == 17
