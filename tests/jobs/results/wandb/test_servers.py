"""W&B servers that refuse, hang or break, as real ones on this machine."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.errors import InfrastructureError
from jobs.results.wandb.service import service_pids
from jobs.results.wandb.sink import WandbSink
from tests.jobs.results.wandb.leet import history
from tests.jobs.results.wandb.wandb_rows import row
from tests.jobs.results.wandb.wandb_server import Server
from tests.paths import ROOT

pytestmark = pytest.mark.slow

KEY = "0123456789" * 4
# A job chooses its run's id.
RUN_ID = "abcd1234"
# Far beyond all limits here, and below what wandb takes without one.
GENEROUS_S = 60.0


@pytest.fixture
def serve():
    servers = []

    def make(status: int) -> Server:
        servers.append(Server(status))
        return servers[-1]

    yield make
    for server in servers:
        server.frozen.clear()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def account(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    # Whatever the machine uses to reach the world, these servers are here.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


def start(run_dir: Path, mode: WandbMode, run_id: str | None = None, **settings) -> WandbSink:
    settings = WandbSettings(mode=mode, **{"init_timeout_s": 1.0, **settings})
    return WandbSink.start(settings, run_dir=run_dir, config={"a": 1}, group=None, tags=[], run_id=run_id)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def listener():
    """Accepts connections, as the kernel does for a stopped process, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=["closed port", "no such host", "frozen", "401", "500"])
def useless_url(request, serve, listener):
    if request.param == "closed port":
        return closed_port(), "connection refused"
    if request.param == "no such host":
        return "http://no-such-host.invalid", "lookup no-such-host.invalid"
    if request.param == "frozen":
        return listener, "giving up|Timed out"
    return serve(int(request.param)).url, rf"(error|HTTP) {request.param}\b.*user is not logged in"


def test_auto_falls_back_loudly_and_in_time(run_dir, monkeypatch, caplog, useless_url):
    url, reason = useless_url
    monkeypatch.setenv("WANDB_BASE_URL", url)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        sink = start(run_dir, WandbMode.auto, RUN_ID)
    assert time.monotonic() - began < GENEROUS_S
    assert sink.mode is WandbMode.offline
    assert sink.fallback_reason.startswith(f"{url}: ")
    assert re.search(reason, sink.fallback_reason)
    assert f"W&B can't be online and falls back to offline: {sink.fallback_reason}" in caplog.text
    sink.log_row(row("ppermute", 1.0), [])
    sink.finish(exit_code=0, status="ok")
    assert sink.complete
    # The run that couldn't start leaves nothing for a later `wandb sync`.
    assert list((run_dir / "wandb").glob("*run-*-*")) == [sink.dir]


def test_online_that_was_asked_for_is_an_error(run_dir, monkeypatch, useless_url):
    url, reason = useless_url
    monkeypatch.setenv("WANDB_BASE_URL", url)
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=rf"wandb.mode=online: {url}: .*({reason})"):
        start(run_dir, WandbMode.online, RUN_ID)
    assert time.monotonic() - began < GENEROUS_S
    assert not service_pids()


@pytest.mark.parametrize("source", ["environment", "file"])
def test_malformed_key(run_dir, tmp_path, monkeypatch, caplog, source):
    key, settings = "not/a/key" * 5, {}
    monkeypatch.setenv("WANDB_API_KEY", key)
    if source == "file":
        monkeypatch.delenv("WANDB_API_KEY")
        (tmp_path / "key").write_text(key)
        settings["api_key_file"] = str(tmp_path / "key")
    monkeypatch.setenv("WANDB_BASE_URL", closed_port())
    with caplog.at_level(logging.WARNING):
        sink = start(run_dir, WandbMode.auto, **settings)
    sink.finish(exit_code=0, status="ok")
    assert sink.mode is WandbMode.offline
    assert "API key" in sink.fallback_reason
    assert key not in caplog.text
    with pytest.raises(InfrastructureError, match=r"wandb.mode=online: .*API key"):
        start(run_dir, WandbMode.online, **settings)


def test_online_without_a_key_does_not_ask_for_one(run_dir, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    with pytest.raises(InfrastructureError, match=r"wandb.mode=online: no API key: run `wandb login`"):
        start(run_dir, WandbMode.online)


@pytest.mark.parametrize("source", ["environment", "file", "netrc"])
def test_online_run_reaches_the_server_and_the_key_no_file(run_dir, tmp_path, monkeypatch, serve, caplog, source):
    server = serve(200)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    settings = {}
    if source != "environment":
        monkeypatch.delenv("WANDB_API_KEY")
    if source == "file":
        (tmp_path / "key").write_text(KEY + "\n")
        settings["api_key_file"] = str(tmp_path / "key")
    if source == "netrc":
        host = server.url.removeprefix("http://")
        (tmp_path / "netrc").write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    sink = start(run_dir, WandbMode.auto, init_timeout_s=30.0, **settings)
    assert sink.mode is WandbMode.online
    assert sink.url.startswith(f"{server.url}/me/cmkernel/runs/")
    assert sink.browse_lines() == [f"# W&B     : online, {sink.url}"]
    sink.log_row(row("ppermute", 1.25), [])
    deadline = time.monotonic() + GENEROUS_S
    while source == "environment" and not server.history:
        assert time.monotonic() < deadline, "a row must be there while the job runs"
        time.sleep(0.1)
    sink.finish(exit_code=0, status="ok")
    assert json.loads(server.history[0])["ppermute/in_graph_us"] == 1.25
    assert not any("otel" in path for path, _ in server.requests)
    for path in run_dir.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    assert KEY not in caplog.text


@pytest.mark.parametrize("uploaded", [0, 1])
def test_online_run_is_made_again_when_its_service_dies(run_dir, monkeypatch, serve, uploaded):
    """In a process of its own, as in a job: what a killed service leaves behind in wandb's client stays there."""
    server = serve(200)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    process = child(
        run_dir,
        "import os\n"
        "from jobs.results.wandb.service import service_pids\n"
        "from tests.jobs.results.wandb.wandb_rows import row\n"
        "sink = start(); url = sink.url\n"
        f"for time_us in [1.25][:{uploaded}]: sink.log_row(row('ppermute', time_us), [])\n"
        "print('logged', flush=True); sys.stdin.readline()\n"
        "(service,) = service_pids(); os.kill(service, signal.SIGKILL); time.sleep(0.5)\n"
        f"for time_us in [1.25, 2.5, 5.0][{uploaded}:]: sink.log_row(row('ppermute', time_us), [])\n"
        "sink.finish(exit_code=143, status='stopped')\n"
        "assert sink.complete; assert sink.url == url\n",
    )
    assert process.stdout.readline() == "logged\n"
    deadline = time.monotonic() + 60
    while uploaded and not server.history and time.monotonic() < deadline:
        time.sleep(0.1)
    process.communicate("go on\n", timeout=120)
    assert process.returncode == 0
    # Each row once, whatever had arrived before.
    found = [json.loads(line) for line in server.history]
    rows = [(line["_step"], line["ppermute/in_graph_us"]) for line in found if "case/name" in line]
    assert rows == [(0, 1.25), (1, 2.5), (2, 5.0)]
    ends = [json.loads(body) for path, body in server.requests if path.endswith("/file_stream")]
    assert [end["exitcode"] for end in ends if end.get("complete")][-1] == 143


def test_server_that_freezes_in_the_middle_does_not_hold_the_end(run_dir, monkeypatch, serve, caplog):
    server = serve(200)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    caplog.set_level(logging.INFO)
    sink = start(run_dir, WandbMode.auto, init_timeout_s=30.0, finish_timeout_s=3.0)
    sink.log_row(row("ppermute", 1.25), [])
    server.frozen.set()
    began = time.monotonic()
    sink.log_row(row("ppermute", 2.5), [])
    assert sink.complete
    assert "was lost" not in caplog.text, "a row isn't held up"
    (run_dir / "results.jsonl").write_text("{}\n")
    sink.finish(exit_code=0, status="ok")
    assert time.monotonic() - began < GENEROUS_S
    assert not sink.complete
    assert "not in the run: TimeoutError: no answer within" in caplog.text
    assert not service_pids()
    # Everything that was logged is on disk, for `wandb sync`.
    assert [item["ppermute/in_graph_us"] for item in history(sink.dir)] == [1.25, 2.5]


@pytest.mark.parametrize("lost", [False, True], ids=["offline", "server lost in mid-run"])
def test_printed_sync_command_uploads_the_run(tmp_path, monkeypatch, serve, lost):
    """In the shell of somebody who has neither set the server's address nor the key, and with spaces in the paths."""
    run_dir, key_file = tmp_path / "a run", tmp_path / "a key"
    run_dir.mkdir()
    key_file.write_text(KEY + "\n")
    server = serve(200)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.delenv("WANDB_API_KEY")
    mode = WandbMode.online if lost else WandbMode.offline
    sink = start(run_dir, mode, init_timeout_s=30.0, finish_timeout_s=3.0, api_key_file=str(key_file))
    if lost:
        server.frozen.set()
    for time_us in (1.25, 2.5):
        sink.log_row(row("ppermute", time_us), [])
    sink.finish(exit_code=0, status="ok")
    server.frozen.clear()
    (command,) = (line.split(" : ")[1] for line in sink.browse_lines() if line.startswith("#   sync"))
    server.requests.clear()
    server.history.clear()
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    synced = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert synced.returncode == 0, synced.stderr
    rows = [json.loads(line) for line in server.history]
    assert [line["ppermute/in_graph_us"] for line in rows if "case/name" in line] == [1.25, 2.5], synced.stderr
    assert any(f"/{sink.run_id}/" in path for path, _ in server.requests)


def child(run_dir: Path, body: str) -> subprocess.Popen:
    """A process that starts the sink while SIGTERM raises JobStopped, as in a job."""
    code = (
        "import signal, sys, time; from pathlib import Path; from jobs.errors import JobStopped\n"
        "from jobs.results.wandb.sink import WandbSink; from jobs.config.schema import WandbMode, WandbSettings\n"
        "def stop(number, frame): raise JobStopped(number)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "def start(**settings): return WandbSink.start(WandbSettings(mode=WandbMode.auto, **settings),\n"
        f"    run_dir=Path({str(run_dir)!r}), config={{}}, group=None, tags=[])\n"
    ) + body
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_process_ends_at_once_after_a_frozen_server(run_dir, monkeypatch, listener):
    monkeypatch.setenv("WANDB_BASE_URL", listener)
    process = child(
        run_dir, "sink = start(init_timeout_s=1.0); sink.finish(exit_code=0, status='ok'); print('end', flush=True)"
    )
    assert process.stdout.readline() == "end\n"
    # Error reports to a frozen server would take 20 s here.
    assert process.wait(timeout=18) == 0


def test_stop_while_the_server_is_waited_for(run_dir, monkeypatch, listener):
    monkeypatch.setenv("WANDB_BASE_URL", listener)
    process = child(
        run_dir,
        "print('begin', flush=True)\ntry: start(init_timeout_s=60.0)\nexcept JobStopped as e: sys.exit(e.exit_code)",
    )
    assert process.stdout.readline() == "begin\n"
    # Until W&B is asking the server.
    while not list((run_dir / "wandb").glob("run-*/run-*.wandb")):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    # Far below init_timeout_s.
    assert process.wait(timeout=20) == 143
    assert not list((run_dir / "wandb").glob("run-*"))
