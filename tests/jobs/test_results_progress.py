import io
import os
import pty
import re
import threading
import time

import pytest

from jobs.results import progress
from jobs.results.progress import Progress

LONG_LINE = "  row " + "x" * 150


def test_log_gets_one_plain_line_every_few_seconds(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.2)
    stream = io.StringIO()
    with Progress(6, stream) as shown:
        shown.step("inputs")
        shown.step("too soon")
        shown.print(LONG_LINE)
        time.sleep(0.25)
        shown.step("timing 70b_qkv ppermute")
        shown.step("too soon again")
    assert stream.getvalue().splitlines() == ["# 1/6 inputs", LONG_LINE, "# 3/6 timing 70b_qkv ppermute"]


def test_lines_of_a_log_are_written_at_once(tmp_path):
    path = tmp_path / "log"
    with path.open("w") as stream, Progress(1, stream) as shown:
        shown.step("inputs")
        shown.print("  row")
        assert path.read_text() == "# 1/1 inputs\n  row\n"


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
    with Progress(4, stream) as shown:
        shown.step("inputs")
        shown.print(LONG_LINE)
        shown.print("  [red]no markup[/red] 1.25")
        shown.step("[tiny] timing ppermute")
        time.sleep(1.2)
    sent = text()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent)
    # Whole, however narrow the terminal is.
    assert LONG_LINE in plain
    assert "  [red]no markup[/red] 1.25" in plain
    assert "[tiny] timing ppermute" in plain
    assert "1/4" in plain
    assert "━" in plain
    assert "#" not in plain


def test_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream, text = terminal
    with Progress(4, stream) as shown:
        shown.step("inputs")
        shown.print("  row")
    assert text().splitlines() == ["# 1/4 inputs", "  row"]


def test_bar_is_gone_after_an_error(terminal):
    stream, text = terminal

    def fail():
        with Progress(4, stream) as shown:
            shown.step("inputs")
            raise RuntimeError("gang lost")

    with pytest.raises(RuntimeError, match="gang lost"):
        fail()
    # The cursor was hidden for the bar, and is back.
    sent = text()
    assert sent.rfind("\x1b[?25h") > sent.rfind("\x1b[?25l") >= 0
