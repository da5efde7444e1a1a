import io
import os
import pty
import re
import threading
import time

import pytest

from jobs.records.case import Case
from jobs.results.analysis.best import Best
from jobs.results.terminal import progress
from jobs.results.terminal.progress import Progress
from jobs.results.terminal.steps import Step, soak_step

LONG_LINE = "  row " + "x" * 150
CASE = Case(name="70b_qkv", m_shard=8, k=16, n_shard=8, dtype="float32", num_ranks=2)
BEST = Best("ppermute", 12.5, 1.25)


def plan(*names: str, expected_s: float = 60.0) -> list[Step]:
    return [Step(CASE, name, None, expected_s) for name in names]


def test_log_gets_one_plain_line_every_few_seconds(monkeypatch):
    clock, stream = 100.0, io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    steps = plan("inputs", "check", "warm-up", "burst 1", "burst 2", "burst 3")
    with Progress(stream) as shown:
        shown.expect(steps)
        shown.begin(steps[0], "inputs")
        clock += 2
        shown.begin(steps[1], "too soon")
        shown.print(LONG_LINE)
        clock += progress.PLAIN_INTERVAL_S - 2
        shown.begin(steps[3], "70b_qkv: ppermute: burst 1", BEST)
        shown.begin(steps[4], "too soon again", BEST)
    assert stream.getvalue().splitlines() == [
        "# 1/6 inputs; about 6 min left",
        LONG_LINE,
        # Two steps of 60 s took 5 s, so the other three will take 7.5 s.
        "# 4/6 70b_qkv: ppermute: burst 1; about 8 s left; best ppermute 12.5 us, 1.25x local",
    ]


def test_messages_of_a_log_stay_on_one_line():
    stream = io.StringIO()
    steps = plan("inputs")
    with Progress(stream) as shown:
        shown.expect(steps)
        shown.begin(steps[0], f"{CASE}: " + "ppermute_two_level: " * 2, BEST)
        shown.note("# Restart 1 of 3: " + "rank 1 of host-7 died " * 10)
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("; about 60 s left")
    assert lines[1] == f"#   {BEST}"
    assert lines[2:] == ["# Restart 1 of 3: " + "rank 1 of host-7 died " * 10]


def test_no_word_is_broken_on_a_terminal_of_80_columns(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream, text = terminal
    steps = plan("inputs", "check")
    with Progress(stream) as shown:
        shown.expect(steps)
        shown.begin(steps[0], f"{CASE}: ppermute_two_level: inputs of the case are drawn", BEST)
        assert shown.width == 80
        shown.note("# a reason " + "wide_word_of_a_reason " * 8)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text()).replace("\r", "\n")
    words = {word for line in plain.splitlines() for word in line.split()}
    assert {"ppermute_two_level:", "1.25x", "wide_word_of_a_reason"} <= words
    assert all(len(line.rstrip()) <= 80 for line in plain.splitlines())


def test_time_left_counts_what_was_skipped_as_gone(monkeypatch):
    clock = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    steps = plan("inputs", "check", "warm-up", "burst", expected_s=10.0)
    with Progress(io.StringIO()) as shown:
        shown.expect(steps)
        assert shown.left_s == 40
        shown.begin(steps[0], "inputs")
        clock += 5
        assert shown.left_s == 35
        clock += 15
        shown.begin(steps[1], "check")
        assert shown.left_s == 60, "twice as long as expected"
        clock += 20
        shown.begin(steps[3], "burst")
        assert shown.left_s == 20
        clock += 5
        shown.begin(steps[2], "one that nobody expects here")
        assert shown.left_s == 15


def test_steps_of_islands_add_up_and_the_slowest_decides(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    clock, stream = 100.0, io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    steps = plan("inputs", "check", expected_s=10.0)
    with Progress(stream) as shown:
        assert shown.left_s is None
        for island in ("h1", "h2"):
            shown.expect(steps, island)
            shown.begin(steps[0], f"{island}: inputs", None, island)
        clock += 5
        shown.begin(steps[1], "h1: check", None, "h1")
        assert shown.left_s == 15, "that of h2, which is in its first step still"
        shown.expect([], "h2")
        assert shown.left_s == 5, "its gang is lost, and h1 took half of what was expected"
        shown.expect(steps, "h2")
        shown.begin(steps[0], "h2: inputs again", None, "h2")
    assert stream.getvalue().splitlines() == [
        "# 1/2 h1: inputs; about 20 s left",
        "# 2/4 h2: inputs; about 20 s left",
        "# 3/4 h1: check; about 15 s left",
        "# 4/5 h2: inputs again; about 20 s left",
    ]


def test_a_soak_takes_just_as_long_as_it_shall(monkeypatch):
    clock = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    steps = [*plan("inputs", "check", expected_s=10.0), soak_step(60.0)]
    with Progress(io.StringIO()) as shown:
        shown.expect(steps)
        shown.begin(steps[0], "inputs")
        clock += 20
        shown.begin(steps[1], "check")
        assert shown.left_s == 80, "the case takes twice as long as expected, the soak doesn't"
        clock += 30
        shown.begin(soak_step(), "soak, slice 1")
        clock += 25
        shown.begin(soak_step(), "soak, slice 2")
        assert shown.left_s == 35


def test_lines_of_a_log_are_written_at_once(tmp_path):
    path = tmp_path / "log"
    steps = plan("inputs", expected_s=2.0)
    with path.open("w") as stream, Progress(stream) as shown:
        shown.expect(steps)
        shown.begin(steps[0], "inputs")
        shown.print("  row")
        assert path.read_text() == "# 1/1 inputs; about 2 s left\n  row\n"


@pytest.fixture
def terminal(monkeypatch):
    """A real pseudo-terminal: its writable end, and a function for what it was sent."""
    monkeypatch.setenv("TERM", "xterm-256color")
    reader, writer = pty.openpty()
    received = bytearray()

    def collect():
        while True:
            try:
                data = os.read(reader, 65536)
            except OSError:
                return
            if not data:
                return
            received.extend(data)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    stream = os.fdopen(writer, "w")

    def text() -> str:
        stream.close()
        thread.join(5)
        return received.decode()

    yield stream, text
    os.close(reader)


def test_terminal_gets_a_bar_and_whole_lines(terminal):
    stream, text = terminal
    steps = plan("inputs", "check", "warm-up", "burst")
    with Progress(stream) as shown:
        shown.expect(steps)
        shown.begin(steps[0], "inputs")
        shown.print(LONG_LINE)
        shown.print("  [red]no markup[/red] 1.25")
        shown.begin(steps[1], "[tiny] timing ppermute", BEST)
        time.sleep(1.2)
    sent = text()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent)
    # Whole, however narrow the terminal is.
    assert LONG_LINE in plain
    assert "  [red]no markup[/red] 1.25" in plain
    assert "[tiny] timing ppermute; best ppermute 12.5 us, 1.25x local" in plain
    assert re.search(r"about \d+ (s|min) left", plain)
    assert "1/4" in plain
    assert "━" in plain
    assert "#" not in plain


def test_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream, text = terminal
    steps = plan("inputs", "check")
    with Progress(stream) as shown:
        shown.expect(steps)
        shown.begin(steps[0], "inputs")
        shown.print("  row")
    assert text().splitlines() == ["# 1/2 inputs; about 2 min left", "  row"]


def test_bar_is_gone_after_an_error(terminal):
    stream, text = terminal

    def fail():
        steps = plan("inputs", "check")
        with Progress(stream) as shown:
            shown.expect(steps)
            shown.begin(steps[0], "inputs")
            raise RuntimeError("gang lost")

    with pytest.raises(RuntimeError, match="gang lost"):
        fail()
    # The cursor was hidden for the bar, and is back.
    sent = text()
    assert sent.rfind("\x1b[?25h") > sent.rfind("\x1b[?25l") >= 0
