"""scripts/submit.sh with a real job server, in a project of one module."""

import hashlib
import http.server
import json
import shutil
import subprocess
import threading
import time
import zipfile

import pytest

from tests.integration.ray_cluster import inherited_environment
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
        for name in ("submit.sh", "submit_check.py"):
            shutil.copy(SUBMIT.parent / name, root / "scripts" / name)
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


@pytest.fixture(scope="module")
def web_server():
    """A server that knows HTTP, but is no Ray."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def refused(*args, **variables):
    """Exit code and output of submit.sh, without a cluster and without waiting for one."""
    with without_waiting():
        done = run([SUBMIT, *args], {**inherited_environment(), **variables})
    (line,) = done.stderr.splitlines()
    return done.returncode, line


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("127.0.0.1:1", 3, "--address=127.0.0.1:1 doesn't answer: [Errno 111] Connection refused; it must be"),
        ("http://127.0.0.1:1/", 3, "http://127.0.0.1:1/ doesn't answer"),
        ("https://127.0.0.1:1", 3, "https://127.0.0.1:1 doesn't answer"),
        ("http://no-such-host.invalid:8265", 3, "the name no-such-host.invalid is unknown"),
        ("no-such-host.invalid", 3, "the name no-such-host.invalid is unknown"),
        (
            "ray://head:10001",
            2,
            "--address=ray://head:10001 is Ray Client's address; give the job server's: http://head:",
        ),
        ("ftp://head:8265", 2, "--address=ftp://head:8265 must be http://HEAD:8265"),
        ("http://head:port", 2, "--address=http://head:port must be http://HEAD:8265"),
        ("http://head:99999", 2, "--address=http://head:99999 must be http://HEAD:8265"),
        ("head with spaces:8265", 2, "must be http://HEAD:8265"),
        ("", 2, "--address needs a value"),
    ],
)
def test_addresses_that_cannot_work(address, code, message):
    found, line = refused(f"--address={address}")
    assert (found, message in line) == (code, True), line


def test_a_server_that_is_no_ray(web_server):
    code, line = refused("--address", web_server)
    assert (code, "is no job server of a Ray (HTTP 501 for /api/version)" in line) == (3, True), line
    code, line = refused("--address", f"http://{web_server}/some/where/")
    assert (code, f"nothing at the path /some/where (HTTP 501); http://{web_server} is enough" in line) == (2, True), (
        line
    )


@pytest.mark.parametrize("submission_id", ["a/b", "two words", "", "..", "-x", "é", "x" * 129, "a?b", "a\nb"])
def test_submission_ids_that_cannot_work(submission_id):
    code, line = refused("--address=127.0.0.1:1", f"--submission-id={submission_id}")
    assert (code, "must be 1 to 128 letters" in line) == (2, True), line


def test_variables_that_cannot_work(tmp_path):
    assert refused(RAY_ADDRESS="127.0.0.1:1")[0] == 3
    assert "RAY_API_SERVER_ADDRESS=ray://h:1 is" in refused(RAY_API_SERVER_ADDRESS="ray://h:1")[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}
    code, line = refused("--address=127.0.0.1:1", **token)
    assert (code, f"RAY_AUTH_TOKEN_PATH={tmp_path / 'none'} must be a file" in line) == (2, True), line
    code, line = refused("--address=127.0.0.1:1", RAY_AUTH_MODE="token", HOME=str(tmp_path))
    assert (code, "needs the cluster's token" in line) == (2, True), line


def test_a_checkout_that_is_too_large(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("submit.sh", "submit_check.py"):
        shutil.copy(SUBMIT.parent / name, scripts / name)
    for name, megabytes in {"weights/deep/a": 400, "data/b": 200, "benchmarks/not_sent": 900, "ignored/c": 700}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        with (tmp_path / name).open("wb") as file:
            file.truncate(megabytes * 2**20)
    (tmp_path / ".rayignore").write_text("ignored/\n")
    command = [scripts / "submit.sh", "--address", "127.0.0.1:1"]
    done = run(command, inherited_environment())
    assert done.returncode == 2
    assert "has 600 MiB to upload, and Ray takes less than" in done.stderr
    assert "weights (400 MiB), data (200 MiB), scripts (0 MiB)" in done.stderr
    (tmp_path / ".rayignore").write_text("ignored/\nweights/\n")
    assert run(command, inherited_environment()).returncode == 3, "nobody listens there"


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
        "scripts/submit_check.py",
    ]


@pytest.mark.slow
def test_exit_code_is_the_jobs(project):
    assert project.submit("--submission-id", "first", "3").returncode == 3
    again = project.submit("--submission-id", "first", "0")
    assert again.returncode == 3
    assert "already exists" in again.stderr


@pytest.mark.slow
def test_an_address_without_scheme_beside_another_in_the_environment(project):
    env = {**project.cluster.env, "RAY_ADDRESS": "http://127.0.0.1:1"}
    address = project.cluster.dashboard_url.removeprefix("http://")
    done = run([project.root / "scripts/submit.sh", "--job=jobs.echo", f"--address={address}/", "--", "0"], env)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_wrong_token(project):
    env = {**project.cluster.env, "RAY_AUTH_TOKEN": "a" * 64}
    done = run([project.root / "scripts/submit.sh", "--address", project.cluster.dashboard_url], env)
    assert done.returncode == 3
    assert "refuses the token (HTTP 403): set RAY_AUTH_MODE=token" in done.stderr


@pytest.mark.slow
def test_a_cluster_without_a_package(project):
    (project.root / "jobs" / "needy.py").write_text("import no_such_package.part\n")
    done = project.submit("--job", "jobs.needy")
    (project.root / "jobs" / "needy.py").unlink()
    assert done.returncode == 3
    assert "Python has no module no_such_package: submit with --install" in done.stderr.splitlines()[-1]


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
