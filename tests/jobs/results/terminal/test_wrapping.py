import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.results.terminal.wrapping import LOG_WIDTH, width_of, wrapped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_its_own_width_and_a_log_the_same_everywhere(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    assert width_of(Terminal()) == 80
    assert width_of(io.StringIO()) == LOG_WIDTH == 120


@given(
    words=st.lists(st.text("ab-/=", min_size=1, max_size=30), min_size=1),
    mark=st.sampled_from(["", "# ", "#   "]),
    width=st.integers(40, 130),
)
def test_words_stay_whole_and_in_order_within_the_width(words, mark, width):
    lines = wrapped([mark + " ".join(words)], width)
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith(mark.strip()) for line in lines)
    assert " ".join(line.removeprefix(mark.strip()).strip() for line in lines).split() == words


def test_a_word_wider_than_the_terminal_stays_whole():
    path = "/" + "a" * 100
    assert path in " ".join(wrapped([f"# Results : {path}"], 40))


@pytest.mark.parametrize("line", ["", "#", "#   Rank  0 on host", "  row"])
def test_short_lines_stay_as_they_are(line):
    assert wrapped([line], 40) == [line]
