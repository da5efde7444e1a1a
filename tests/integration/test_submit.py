"""The job on a cluster: ``ray job submit`` with token authentication, streaming, stop, and the plain address."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.integration.bench_process import QUICK, ROOT, environment, parse_result, run
from tests.integration.ray_cluster import FAKE_KEY

pytestmark = pytest.mark.slow

ROW_MARK = "ppermute"


def submit(ray_head, *arguments):
    """scripts/submit.sh, running."""
    return subprocess.Popen(
        [str(ROOT / "scripts" / "submit.sh"), "--address", ray_head.dashboard_url, *arguments],
        env=environment(**ray_head.env),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )


def result_line(output):
    (line,) = {line for line in output.splitlines() if line.startswith("RESULT ")}
    return json.loads(line.removeprefix("RESULT "))


def test_a_submitted_job_streams_rows_and_succeeds(ray_head, tmp_path):
    process = submit(
        ray_head,
        "--submission-id",
        "bench-1",
        "--",
        *QUICK,
        "problem.m_shard=[32,48,64]",
        f"run_dir={tmp_path / 'run'}",
    )
    journal = tmp_path / "run" / "results.jsonl"
    watchdog = threading.Timer(200, process.kill)
    watchdog.start()
    output, written = "", []
    for line in process.stdout:
        output += line
        if f" {ROW_MARK} " in line and "#" not in line:
            written.append(len(journal.read_text().splitlines()))
    assert process.wait(timeout=60) == 0
    watchdog.cancel()
    result = result_line(output)
    assert (result["status"], result["exit_code"], result["rows"]) == ("ok", 0, 9)
    assert len(journal.read_text().splitlines()) == 9
    assert written[0] < 9, "the first row arrives before the last one is measured"
    record = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert record["git_sha"], "the upload has no .git: submit.sh sends the commit along"


def test_a_stopped_job_keeps_the_finished_cases(ray_head, tmp_path):
    run_dir = tmp_path / "run"
    sizes = ",".join(str(size) for size in range(32, 32 + 8 * 20, 8))
    process = submit(
        ray_head, "--submission-id", "bench-stop", "--", *QUICK, f"problem.m_shard=[{sizes}]", f"run_dir={run_dir}"
    )
    journal = run_dir / "results.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and len(journal.read_text().splitlines()) >= 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    stop = ["-m", "ray.scripts.scripts", "job", "stop", "--address", ray_head.dashboard_url, "bench-stop"]
    subprocess.run(
        [sys.executable, *stop], env=environment(**ray_head.env), check=True, timeout=120, capture_output=True
    )
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 143, output
    result = result_line(output)
    assert (result["status"], result["exit_code"]) == ("stopped", 143)
    assert 3 <= len(journal.read_text().splitlines()) == result["rows"] < 60
    for member in json.loads((run_dir / "environment.json").read_text())["members"]:
        with pytest.raises(ProcessLookupError):
            os.kill(member["pid"], 0)


def test_a_check_that_fails_is_the_exit_code_of_submit(ray_head, tmp_path):
    process = submit(
        ray_head, "--", *QUICK, "problem.m_shard=32", "check.fault=wrong_element", f"run_dir={tmp_path / 'run'}"
    )
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 1, output
    assert result_line(output)["status"] == "check_failed"


def test_the_same_line_with_an_address_runs_on_the_cluster(ray_head, tmp_path):
    """Not submitted: the driver here, the ranks there, by RAY_ADDRESS."""
    home = Path(tmp_path / "home")
    home.mkdir()
    finished = run(*QUICK, "problem.m_shard=32", HOME=str(home), RAY_ADDRESS=ray_head.address, **ray_head.auth_env)
    assert finished.code == 0, finished.stderr
    assert finished.result == parse_result(finished.stdout)
    assert Path(finished.result["run_dir"]).parent == home / "cmkernel_runs"


def files_with(secrets, *folders):
    """Files below ``folders`` that hold one of ``secrets``."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


def test_keys_stay_with_the_driver(ray_head, tmp_path):
    """One key in the environment that Ray was started in, another one in a file; the W&B server can't be reached."""
    run_dir, key_file = tmp_path / "run", tmp_path / "key"
    key_file.write_text("beef" + 36 * "7")
    keys = [FAKE_KEY, key_file.read_text()]
    token = Path(ray_head.auth_env["RAY_AUTH_TOKEN_PATH"]).read_text()
    process = submit(
        ray_head,
        *("--submission-id", "bench-key", "--"),
        *(override for override in QUICK if not override.startswith(("wandb", "results"))),
        *(
            "problem.m_shard=32",
            "timing.baselines=[xla]",
            "wandb=auto",
            f"wandb.api_key_file={key_file}",
            "wandb.init_timeout_s=3",
        ),
        f"run_dir={run_dir}",
    )
    record, deadline = run_dir / "environment.json", time.monotonic() + 120
    while not (record.exists() and (members := json.loads(record.read_text()).get("members"))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert FAKE_KEY.encode() in Path(f"/proc/{ray_head.pid}/environ").read_bytes(), "the driver has it from there"
    for member in members:
        environ = Path(f"/proc/{member['pid']}/environ").read_bytes()
        assert b"RAY_" in environ
        assert not any(key.encode() in environ for key in keys)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "falls back to offline" in output, "W&B has tried the key"
    assert result_line(output)["wandb_dir"]
    assert not any(secret in output for secret in (*keys, token))
    assert (run_dir / "report.html").exists()
    assert files_with([*keys, token], run_dir) == []
    assert files_with([*keys, token], ray_head.temp_dir / "ray") == [], "Ray's logs and the uploads"
    request = urllib.request.Request(
        f"{ray_head.dashboard_url}/api/jobs/", headers={"Authorization": f"Bearer {token}"}
    )
    # Ray shows a job's environment to everyone who can list jobs.
    with urllib.request.urlopen(request, timeout=10) as response:
        listed = response.read()
    assert b"bench-key" in listed
    assert b"WANDB" not in listed.replace(b'"WANDB_API_KEY": ""', b"")
    assert not any(secret.encode() in listed for secret in (*keys, token))
