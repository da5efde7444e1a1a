import dataclasses
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from jobs.config.choices import WandbMode
from jobs.config.schema import Settings, WandbSettings
from jobs.errors import InfrastructureError, UsageError
from jobs.results.disk.journal import Journal
from jobs.results.wandb import metrics
from jobs.results.wandb import sink as wandb_sink
from jobs.results.wandb.service import end, service_pids
from jobs.results.wandb.sink import WandbSink
from tests.jobs.results.wandb.leet import history, inspect
from tests.jobs.results.wandb.wandb_rows import FULL, MEMBERS, ROWS
from tests.limits import GENEROUS_S
from tests.paths import ROOT

ENDED = {"given_up": 0, "restarts": 0, "restart_s": 0.0}
"""The part of the summary that says how a job without restarts ended."""


@pytest.fixture(autouse=True)
def no_account(tmp_path, monkeypatch):
    """No key and no settings of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run directory, the sink of its finished run, and the user's home, which is otherwise empty."""
    home, run_dir = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("run")
    picture = run_dir / "pictures" / "ranks.png"
    picture.parent.mkdir()
    Figure(figsize=(1, 1)).savefig(picture)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("NETRC", str(home / "netrc"))
        sink = start(run_dir)
        with Journal(run_dir / "results.jsonl") as journal:
            for r in ROWS:
                journal.append(r)
                sink.log_row(r, MEMBERS)
        sink.finish(exit_code=0, status="ok", pictures={picture: "How the samples of each rank spread."})
    assert sink.complete
    return SimpleNamespace(run_dir=run_dir, sink=sink, home=home, picture=picture)


def start(run_dir: Path, mode: WandbMode = WandbMode.offline, **settings) -> WandbSink:
    config = dataclasses.asdict(Settings()) | {"environment": {"path": Path("/x")}}
    settings = WandbSettings(mode=mode, **settings)
    return WandbSink.start(settings, run_dir=run_dir, config=config, group="raysubmit_1", tags=["D=2"])


def test_offline_run_is_found_by_leet_with_rows_config_and_summary(run_dir, capfd):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stdout = sys.stdout
    sink = start(run_dir, name="my run")
    assert sink.mode is WandbMode.offline
    assert sink.dir.is_absolute()
    assert sink.dir.parent == run_dir / "wandb"
    with Journal(run_dir / "results.jsonl") as journal:
        for r in [*ROWS, FULL]:
            journal.append(r)
            sink.log_row(r, MEMBERS)
    sink.finish(exit_code=1, status="check_failed", more=ENDED)

    assert sink.complete
    assert sink.fallback_reason is None
    # W&B took over neither the signals nor the streams, and says nothing.
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert sys.stdout is stdout
    assert capfd.readouterr() == ("", "")
    assert not service_pids()

    records = inspect(sink.dir)
    items = history(sink.dir)
    assert [item["_step"] for item in items] == [0, 1, 2, 3, 4]
    assert [item["case/number"] for item in items] == [1, 1, 2, 1, 1]
    assert items[0]["ppermute/in_graph_us"] == 100.0
    assert items[1]["xla/in_graph_us"] == 150.0
    assert items[2] | {"case/m_shard": 16, "ppermute/in_graph_us": 200.0, "ppermute/speedup_over_xla": 1.5} == items[2]
    assert items[0] | {"case/name": "tiny.a", "case/num_ranks": 2, "case/implementation": "ppermute"} == items[0]
    assert items[0] | {"ppermute/check_passed": 1, "ppermute/num_wrong": 0, "gpu/power_max_w": 690.0} == items[0]
    assert "ppermute/util_pct" not in items[0]
    assert items[3] | {"ppermute/check_passed": 0, "ppermute/num_wrong": 7} == items[3]
    assert "ppermute/in_graph_us" not in items[3]
    documented = [f"mosaic_gpu/{metric.name}" for metric in metrics.OF_IMPLEMENTATION]
    # There are no islands, and no partial sums of another type.
    absent = ("island", "case/partial_dtype")
    documented += [metrics.STEP, *(metric.name for metric in metrics.OF_ROW if metric.name not in absent)]
    assert {name for name in items[4] if not name.startswith("_")} == set(documented), "every one, and no other"
    assert (items[4]["mosaic_gpu/util_pct"], items[4]["mosaic_gpu/overlap_pct"]) == (50.0, 50.0)
    alerts = [record["alert"] for record in records if record["type"] == "alert"]
    assert [(alert["title"], alert["level"]) for alert in alerts] == [("Check failed: ppermute on tiny.a", "ERROR")]
    artifacts = {record["artifact"]["type"]: record["artifact"] for record in records if record["type"] == "artifact"}
    assert artifacts["results"]["manifest"]["contents"][0]["local_path"] == str(run_dir / "results.jsonl")

    defined = {(m.get("name") or m["glob_name"]): m for m in (r["metric"] for r in records if r["type"] == "metric")}
    assert {m["step_metric"] for name, m in defined.items() if name.startswith(("ppermute/", "xla/"))} == {metrics.STEP}
    assert not defined["ppermute/in_graph_us"]["options"].get("hidden")
    assert all(defined[name]["options"]["hidden"] for name in ("ppermute/*", "case/*", "attempt"))

    (found,) = inspect(sink.dir, "--summary")
    assert found["state"] == "failed"
    assert found["exit_code"] == 1
    assert found["project"] == "cmkernel"
    assert found["name"] == "my run"
    assert found["tags"] == ["D=2", "NVIDIA H200", "ppermute", "xla", "mosaic_gpu"]
    assert found["config"]["timing"]["chain_length"] == 16
    assert found["config"]["kernel"]["implementation"] == "auto"
    assert found["config"]["environment"] == {"path": "/x"}
    summary = found["summary"]
    first, second = "tiny_a/8x16x8/float32", "tiny_a/16x16x8/float32"
    of_first = {"best": "mosaic_gpu", "best_us": 90.0, "best_tflops": 12.5, "best_ratio_to_local": 1.25}
    of_first |= {"best_speedup_over_xla": 1.5, "check_passed": 0}
    of_first |= {"mosaic_gpu_in_graph_us": 90.0, "xla_in_graph_us": 150.0}
    assert {name: summary.get(f"{first}/{name}") for name in of_first} == of_first
    assert summary | {f"{second}/best": "ppermute", f"{second}/best_us": 200.0, f"{second}/check_passed": 1} == summary
    of_run = {"status": "check_failed", "exit_code": 1, "rows": 5, "failed_checks": 1, **ENDED}
    assert set(of_run) == set(metrics.SUMMARY_OF_RUN)
    assert summary | of_run == summary
    run = next(record["run"] for record in records if record["type"] == "run")
    assert run["run_group"] == "raysubmit_1"


def test_pictures_and_charts_are_in_the_run(finished):
    sink, picture = finished.sink, finished.picture
    records = inspect(sink.dir)
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert items[-1]["pictures/ranks._type"] == "image-file"
    assert items[-1]["pictures/ranks.caption"] == "How the samples of each rank spread."
    assert (sink.dir / "files" / items[-1]["pictures/ranks.path"]).read_bytes() == picture.read_bytes()
    configs = [record["config"]["update"] for record in records if record["type"] == "config"]
    shown = {name: panel for config in configs for name, panel in config.items() if "visualize" in name}
    names = {name.rpartition(".")[2]: panel["panel_config"]["panelDefId"] for name, panel in shown.items()}
    assert names == {
        "charts/time_against_bound": "wandb/bar/v0",
        "charts/utilisation": "wandb/line/v0",
        "charts/ranks": "wandb/scatter/v0",
    }
    (path,) = sink.dir.glob("files/media/table/charts/time_against_bound_table_*.table.json")
    assert ["tiny_a/16x16x8/float32 ppermute", 200.0] in json.loads(path.read_text())["data"]


def test_per_rank_table_has_each_ranks_median(finished):
    (path,) = finished.sink.dir.glob("files/media/table/per_rank_*.table.json")
    table = json.loads(path.read_text())
    assert len(table["data"]) == 6, "of the rows with a time"
    lines = [dict(zip(table["columns"], data, strict=True)) for data in table["data"][:2]]
    assert [(line["rank"], line["host"], line["in_graph_us"]) for line in lines] == [
        (0, "hostA", 98.0),
        (1, "hostB", 100.0),
    ]
    assert lines[0]["sm_clock_mhz"] is None
    assert (lines[1]["sm_clock_mhz"], lines[1]["throttle_reasons"]) == (1800.0, "sw_power_cap")
    assert lines[0]["call_us"] is None
    # A later `wandb sync` uploads from the run directory: a home may vanish with its container.
    assert list((finished.run_dir / "wandb" / "artifacts" / "staging").iterdir())
    assert not (finished.home / ".local").exists()


def test_rows_of_islands_are_told_apart_and_have_no_summary_of_their_case(run_dir):
    sink = start(run_dir)
    for island in ("h1", "h2"):
        sink.log_row(dataclasses.replace(ROWS[0], island=island), MEMBERS)
    sink.finish(exit_code=0, status="ok", more={"islands": 2})
    steps = [step for step in history(sink.dir) if "island" in step]
    assert [(step["island"], step["case/number"]) for step in steps] == [("h1", 1), ("h2", 1)]
    (found,) = inspect(sink.dir, "--summary")
    assert not any("best" in name for name in found["summary"])
    assert found["summary"]["islands"] == 2
    (path,) = sink.dir.glob("files/media/table/per_rank_*.table.json")
    table = json.loads(path.read_text())
    column = table["columns"].index("island")
    assert [line[column] for line in table["data"]] == ["h1", "h1", "h2", "h2"]


def test_rows_can_be_watched_while_the_job_runs(run_dir):
    sink = start(run_dir)
    sink.log_row(ROWS[0], MEMBERS)
    deadline = time.monotonic() + 60
    while not history(sink.dir):
        assert time.monotonic() < deadline, "a row must be visible"
    (found,) = inspect(sink.dir, "--summary")
    assert found["state"] == "running"
    sink.finish(exit_code=0, status="ok")


def test_browse_lines_are_commands_that_work(finished):
    sink = finished.sink
    lines = sink.browse_lines()
    assert all(line.startswith("#") for line in lines)
    browse, sync = (line.split(" : ")[1] for line in lines[1:])
    assert browse.endswith(f"wandb leet {sink.dir}")
    assert sync.endswith(f"wandb sync {sink.dir}")
    # With the path of the job's own wandb, so both run here.
    dry = subprocess.run(f"{sync} --dry-run", shell=True, capture_output=True, text=True, timeout=30)
    assert "Would sync 1 run(s)" in dry.stdout + dry.stderr
    shown = subprocess.run(browse.replace(" leet ", " leet inspect --summary --json "), shell=True, capture_output=True)
    assert json.loads(shown.stdout)["state"] == "finished"


def test_two_runs_of_one_process(finished, run_dir):
    sink = start(run_dir)
    sink.log_row(ROWS[0], MEMBERS)
    (run_dir / "results.jsonl").write_text("{}\n")
    sink.finish(exit_code=0, status="ok")
    for run, folder, num_rows in ((finished.sink, finished.run_dir, 4), (sink, run_dir, 1)):
        assert len(history(run.dir)) == num_rows
        assert run.dir.parent == folder / "wandb"
        assert (folder / "wandb" / "artifacts").is_dir()


def test_finish_again_does_nothing(finished):
    finished.sink.finish(exit_code=1, status="stopped")
    finished.sink.log_row(ROWS[0], MEMBERS)
    assert inspect(finished.sink.dir, "--summary")[0]["exit_code"] == 0


def test_a_teardown_that_fails_does_not_fail_the_job(run_dir, monkeypatch, caplog):
    """The service is ended all the same, and the log says that it may have lost something."""
    sink = start(run_dir)
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr("wandb.teardown", lambda: calls.append(1) or 1 / 0)
        sink.finish(exit_code=0, status="ok")
    assert len(calls) == 2
    assert not service_pids()
    assert not sink.complete
    assert "its service had to be killed" in caplog.text
    end(5.0)


def test_a_row_that_cannot_be_logged_does_not_fail_the_job(run_dir, caplog):
    sink = start(run_dir)
    sink.log_row(ROWS[0], [None])
    assert not sink.complete
    assert "a row was not logged: AttributeError" in caplog.text
    sink.log_row(ROWS[1], MEMBERS)
    sink.finish(exit_code=0, status="ok")
    assert [item["_step"] for item in history(sink.dir)] == [0]


def test_teardown_that_fails_leaves_nothing_of_a_failed_start(run_dir, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("wandb.teardown", lambda: 1 / 0)
        patch.setattr("wandb.init", lambda **_: (run_dir / "wandb" / "offline-run-1").mkdir(parents=True) or 1 / 0)
        with pytest.raises(InfrastructureError, match=r"wandb.mode=offline: ZeroDivisionError"):
            start(run_dir)
    assert not service_pids()
    assert not list((run_dir / "wandb").glob("*run-*"))
    end(5.0)


def test_auto_goes_on_without_a_run_where_even_offline_fails(run_dir, monkeypatch, caplog):
    monkeypatch.setattr("wandb.init", lambda **_: 1 / 0)
    sink = start(run_dir, WandbMode.auto)
    assert (sink.mode, sink.complete, sink.fallback_reason) == (WandbMode.disabled, False, None)
    assert "it can't be offline either: ZeroDivisionError" in caplog.text
    sink.log_row(ROWS[0], MEMBERS)
    sink.finish(exit_code=0, status="ok")


def test_disabled_does_not_even_import_wandb(run_dir):
    code = (
        "import sys; from pathlib import Path; from jobs.results.wandb.sink import WandbSink\n"
        "from jobs.config.schema import WandbMode, WandbSettings\n"
        f"sink = WandbSink.start(WandbSettings(mode=WandbMode.disabled), run_dir=Path({str(run_dir)!r}), config={{}},\n"
        "                       group=None, tags=[])\n"
        "sink.log_row(None, []); sink.finish(exit_code=0, status='ok')\n"
        "assert sink.dir is None and sink.browse_lines() == [] and sink.mode is WandbMode.disabled\n"
        "assert 'wandb' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert not list(run_dir.iterdir())


def test_auto_without_a_key_is_quietly_offline(run_dir, caplog):
    with caplog.at_level(logging.WARNING):
        sink = start(run_dir, WandbMode.auto)
    sink.finish(exit_code=0, status="ok")
    assert sink.mode is WandbMode.offline
    assert sink.fallback_reason is None
    assert not [record for record in caplog.records if record.name.startswith("jobs")]


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_auto_follows_wandb_mode(run_dir, monkeypatch, mode):
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    sink = start(run_dir, WandbMode.auto)
    sink.finish(exit_code=0, status="ok")
    assert sink.mode.value == mode


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "No such file"), ("", "is empty"), (" \n", "is empty"), ("a b", "has 2 words")]
)
def test_key_file_must_hold_a_key(run_dir, tmp_path, text, reason):
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=rf"wandb.api_key_file={path}: .*{reason}"):
        start(run_dir, WandbMode.auto, api_key_file=str(path))


def test_key_file_of_nobodys_home(run_dir):
    with pytest.raises(UsageError, match=r"wandb.api_key_file=~nobody-such/key: can't be read .*home"):
        start(run_dir, WandbMode.auto, api_key_file="~nobody-such/key")


def test_tag_that_wandb_refuses(run_dir):
    with pytest.raises(UsageError, match=r"wandb.tags: 'xxx.* must have 1 to 64 characters"):
        WandbSink.start(WandbSettings(mode=WandbMode.offline), run_dir=run_dir, config={}, group=None, tags=["x" * 65])


# Found dead when something is logged, or only when the end is waited for.
@pytest.mark.parametrize(("number", "pause_s"), [(signal.SIGTERM, 0.5), (signal.SIGKILL, 0.0)])
def test_run_is_made_again_when_ray_job_stop_kills_the_service(run_dir, number, pause_s):
    sink = start(run_dir)
    for r in ROWS[:2]:
        sink.log_row(r, MEMBERS)
    (service,) = service_pids()
    os.kill(service, number)
    time.sleep(pause_s)
    sink.finish(exit_code=143, status="stopped")
    assert sink.complete
    assert list((run_dir / "wandb").glob("offline-run-*")) == [sink.dir]
    assert len(history(sink.dir)) == 2
    (found,) = inspect(sink.dir, "--summary")
    assert (found["state"], found["exit_code"], found["summary"]["status"]) == ("failed", 143, "stopped")


def test_nothing_is_left_of_a_start_that_is_stopped(run_dir):
    """The thread that waits for W&B's service goes on for a while."""
    code = (
        "import os, signal, sys, threading, time; from pathlib import Path; from jobs.errors import JobStopped\n"
        "from jobs.results.wandb.service import end, service_pids; from jobs.results.wandb.sink import WandbSink\n"
        "from jobs.config.schema import WandbMode, WandbSettings; from jobs.signals import stop_on_signals\n"
        "def stop_when_it_starts():\n"
        "    while not service_pids(): time.sleep(0.001)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=stop_when_it_starts, daemon=True).start()\n"
        "try:\n"
        "    with stop_on_signals():\n"
        "        WandbSink.start(WandbSettings(mode=WandbMode.offline), config={}, group=None, tags=[],\n"
        f"                        run_dir=Path({str(run_dir)!r}))\n"
        "except JobStopped:\n"
        "    while service_pids(): time.sleep(0.1)\n"
        "    time.sleep(2); print(service_pids(), flush=True); os._exit(143)"
    )
    stopped = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=3 * GENEROUS_S
    )
    assert (stopped.returncode, stopped.stdout) == (143, "set()\n"), stopped.stderr
    assert not list((run_dir / "wandb").glob("offline-run-*"))


def test_rows_go_on_after_the_service_died(run_dir):
    sink = start(run_dir)
    sink.log_row(ROWS[0], MEMBERS)
    (service,) = service_pids()
    os.kill(service, signal.SIGKILL)
    time.sleep(0.5)
    for r in ROWS[1:]:
        sink.log_row(r, MEMBERS)
    sink.finish(exit_code=0, status="ok")
    assert [item["_step"] for item in history(sink.dir)] == [0, 1, 2, 3]


def test_service_that_keeps_dying_is_given_up(run_dir, caplog):
    sink = start(run_dir)
    for r in ROWS[:3]:
        for service in service_pids():
            os.kill(service, signal.SIGKILL)
        time.sleep(0.3)
        sink.log_row(r, MEMBERS)
    sink.finish(exit_code=0, status="ok")
    assert not sink.complete
    assert "its service was lost again" in caplog.text


@pytest.mark.slow
def test_frozen_service_does_not_hold_the_job(run_dir, monkeypatch, caplog):
    monkeypatch.setattr(wandb_sink, "END_LIMIT_S", 1.0)
    sink = start(run_dir, finish_timeout_s=1.0)
    sink.log_row(ROWS[0], MEMBERS)
    time.sleep(1.5)
    (service,) = service_pids()
    os.kill(service, signal.SIGSTOP)
    began = time.monotonic()
    sink.log_row(ROWS[1], MEMBERS)
    sink.finish(exit_code=0, status="ok")
    assert time.monotonic() - began < 60.0
    assert not sink.complete
    assert "the run is not finished" in caplog.text
    # It held this job's standard output open.
    deadline = time.monotonic() + 60
    while service in service_pids():
        assert time.monotonic() < deadline
    assert history(sink.dir)[0]["ppermute/in_graph_us"] == 100.0


@pytest.mark.slow
def test_frozen_service_does_not_hold_the_next_row(run_dir, monkeypatch):
    monkeypatch.setattr(wandb_sink, "ROW_LIMIT_S", 1.0)
    monkeypatch.setattr(wandb_sink, "END_LIMIT_S", 1.0)
    sink = start(run_dir)
    sink.log_row(ROWS[0], MEMBERS)
    (service,) = service_pids()
    os.kill(service, signal.SIGSTOP)
    # So many that they don't fit into what lies between the two processes.
    logged = threading.Thread(target=lambda: [sink.log_row(ROWS[1], MEMBERS) for _ in range(300)], daemon=True)
    logged.start()
    logged.join(60)
    assert not logged.is_alive()
    sink.finish(exit_code=0, status="ok")
    assert sink.complete
    assert len([step for step in history(sink.dir) if "case/name" in step]) == 301, "from another service"


def test_killed_driver_leaves_its_rows_and_no_process(run_dir):
    code = (
        "import os, pickle, signal, sys, time; from pathlib import Path\n"
        "from jobs.results.wandb.sink import WandbSink; from jobs.config.schema import WandbMode, WandbSettings\n"
        "from jobs.results.wandb.service import end, service_pids\n"
        f"sink = WandbSink.start(WandbSettings(mode=WandbMode.offline), run_dir=Path({str(run_dir)!r}), config={{}},\n"
        "                       group=None, tags=[])\n"
        "for row in pickle.loads(sys.stdin.buffer.read()): sink.log_row(row, [])\n"
        "print(*service_pids(), flush=True); time.sleep(2); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(ROWS), cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    (directory,) = (run_dir / "wandb").glob("offline-run-*")
    assert len(history(directory)) == 4
    service = int(killed.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{service}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
