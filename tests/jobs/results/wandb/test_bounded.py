import sys
import threading

import pytest

from jobs.results.wandb.bounded import call_within


def test_result_and_exception_come_through():
    assert call_within(5.0, lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        call_within(5.0, lambda: 1 // 0)


def test_what_hangs_is_left_behind():
    release = threading.Event()
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        call_within(0.1, release.wait)
    release.set()


def test_no_time_left_is_a_timeout():
    release = threading.Event()
    with pytest.raises(TimeoutError):
        call_within(-1.0, release.wait)
    release.set()


def test_exit_in_a_library_is_an_error_here():
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        call_within(5.0, lambda: sys.exit(3))
