"""W&B servers that refuse, hang or break, as real ones on this machine."""

import gzip
import http.server
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs.config.schema import WandbMode, WandbSettings
from jobs.errors import InfrastructureError
from jobs.records.row import Case, Row, Spread
from jobs.results.wandb.process import service_pids
from jobs.results.wandb.sink import WandbSink
from tests.jobs.results.wandb.wandb_rows import CHECK
from tests.paths import ROOT

pytestmark = pytest.mark.slow

KEY = "0123456789" * 4
# What the sink may take beyond W&B's own limit, on a busy machine.
MARGIN_S = 8.0
CASE = Case(name="tiny", m_shard=8, k=16, n_shard=8, dtype="float32", num_ranks=2)


def row(time_us: float) -> Row:
    spread = Spread(time_us, time_us, time_us)
    return Row(case=CASE, implementation="ppermute", requested="auto", check=CHECK, in_graph_us=spread)


class Handler(http.server.BaseHTTPRequestHandler):
    """As much of W&B's API as a run needs to start, or none of it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, body.decode()))
        while self.server.frozen.is_set():
            time.sleep(0.05)
        answer = {"errors": [{"message": "user is not logged in"}]} if self.server.status != 200 else self.answer(body)
        text = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST

    def answer(self, body: bytes) -> dict:
        request = json.loads(body) if body else {}
        if self.path.endswith("/file_stream"):
            if sent := request.get("files", {}).get("wandb-history.jsonl"):
                self.server.history[sent["offset"] :] = sent["content"]
        elif self.path == "/graphql":
            name = re.search(r"(?:query|mutation)\s+(\w+)", request["query"]).group(1)
            bucket = self.bucket(request.get("variables", {}).get("name"))
            if name == "UpsertBucket":
                return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
            if name == "RunResumeStatus":
                return {"data": {"model": {"name": "cmkernel", "entity": {"name": "me"}, "bucket": bucket}}}
            if name == "Viewer":
                return {"data": {"viewer": {"id": "dg==", "entity": "me", "username": "me", "teams": {"edges": []}}}}
            return {"errors": [{"message": "not known here"}]}
        return {}

    def bucket(self, name: str) -> dict:
        history = self.server.history
        return {
            "id": "aWQ=",
            "name": name,
            "displayName": "run",
            "config": "{}",
            "project": {"id": "cA==", "name": "cmkernel", "entity": {"id": "ZQ==", "name": "me"}},
            "summaryMetrics": "{}",
            "historyLineCount": len(history),
            "historyTail": json.dumps(history[-1:]),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),
        }

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.frozen = threading.Event()
        self.requests: list[tuple[str, str]] = []
        self.history: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that gave up is what these tests are about."""


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


def start(run_dir: Path, mode: WandbMode, **settings) -> WandbSink:
    settings = WandbSettings(mode=mode, init_timeout_s=2.0, **settings)
    return WandbSink.start(settings, run_dir=run_dir, config={"a": 1}, group=None, tags=[])


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def listener():
    """Accepts connections, as the kernel does for a stopped process, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=["closed port", "frozen", "401", "500"])
def useless_url(request, serve, listener):
    if request.param == "closed port":
        return closed_port(), "connection refused"
    if request.param == "frozen":
        return listener, "giving up|Timed out"
    return serve(int(request.param)).url, "user is not logged in"


def test_auto_falls_back_loudly_and_in_time(run_dir, monkeypatch, caplog, useless_url):
    url, reason = useless_url
    monkeypatch.setenv("WANDB_BASE_URL", url)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        sink = start(run_dir, WandbMode.auto)
    assert time.monotonic() - began < 2.0 + MARGIN_S
    assert sink.mode is WandbMode.offline
    assert re.search(reason, sink.fallback_reason)
    assert f"W&B can't be online and falls back to offline: {sink.fallback_reason}" in caplog.text
    sink.log_row(row(1.0), [])
    sink.finish(exit_code=0, status="ok")
    assert sink.complete
    # Of the run that couldn't start, nothing is left for a later `wandb sync` to find.
    assert list((run_dir / "wandb").glob("*run-*-*")) == [sink.dir]


def test_online_that_was_asked_for_is_an_error(run_dir, monkeypatch, useless_url):
    url, reason = useless_url
    monkeypatch.setenv("WANDB_BASE_URL", url)
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=rf"wandb.mode=online: .*({reason})"):
        start(run_dir, WandbMode.online)
    assert time.monotonic() - began < 2.0 + MARGIN_S
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
    sink = start(run_dir, WandbMode.auto, **settings)
    assert sink.mode is WandbMode.online
    assert sink.url.startswith(f"{server.url}/me/cmkernel/runs/")
    assert sink.browse_lines() == [f"# W&B     : online, {sink.url}"]
    sink.log_row(row(1.25), [])
    deadline = time.monotonic() + 5
    while not server.history:
        assert time.monotonic() < deadline, "a row must be there within 5 s, while the job runs"
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
        "from jobs.results.wandb.process import service_pids\n"
        "from tests.jobs.results.wandb.test_servers import row\n"
        "sink = start(); url = sink.url\n"
        f"for time_us in [1.25][:{uploaded}]: sink.log_row(row(time_us), [])\n"
        "print('logged', flush=True); sys.stdin.readline()\n"
        "(service,) = service_pids(); os.kill(service, signal.SIGKILL); time.sleep(0.5)\n"
        f"for time_us in [1.25, 2.5, 5.0][{uploaded}:]: sink.log_row(row(time_us), [])\n"
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


@pytest.mark.slow
def test_server_that_freezes_in_the_middle_does_not_hold_the_end(run_dir, monkeypatch, serve, caplog):
    server = serve(200)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    sink = start(run_dir, WandbMode.auto, finish_timeout_s=6.0)
    sink.log_row(row(1.25), [])
    server.frozen.set()
    began = time.monotonic()
    sink.log_row(row(2.5), [])
    assert time.monotonic() - began < 3.0, "a row isn't held up"
    (run_dir / "results.jsonl").write_text("{}\n")
    sink.finish(exit_code=0, status="ok")
    assert time.monotonic() - began < 6.0 + MARGIN_S
    assert not sink.complete
    assert "not in the run: TimeoutError: no answer within" in caplog.text
    assert not service_pids()
    # Everything that was logged is on disk, for `wandb sync`.
    assert any(line.endswith(f"wandb sync {sink.dir}") for line in sink.browse_lines())
    wandb = Path(sys.executable).with_name("wandb")
    shown = subprocess.run([wandb, "leet", "inspect", "--json", sink.dir], capture_output=True, text=True)
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    times = [record["history"]["item"]["ppermute/in_graph_us"] for record in records if record["type"] == "history"]
    assert times == [1.25, 2.5]


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
    ended = time.monotonic()
    assert process.wait(timeout=30) == 0
    # Error reporting to a frozen server would take 20 s here.
    assert time.monotonic() - ended < 10.0


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
    began = time.monotonic()
    assert process.wait(timeout=30) == 143
    # `ray job stop` kills after 3 s.
    assert time.monotonic() - began < 3.0
    assert not list((run_dir / "wandb").glob("run-*"))
