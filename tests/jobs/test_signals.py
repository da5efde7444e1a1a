import logging
import os
import signal
import threading

import pytest

from jobs.errors import JobStopped
from jobs.signals import raise_if_stopped, settle_signals, signals_held, stop_on_signals, take_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_first_signal_raises(number, code):
    before = signal.getsignal(number)
    with pytest.raises(JobStopped) as stopped, stop_on_signals():
        os.kill(os.getpid(), number)
    assert stopped.value.exit_code == code
    assert signal.getsignal(number) is before


def test_under_nohup_a_hangup_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def run(body):
    with stop_on_signals():
        body()


def test_later_signals_leave_the_cleanup_alone(caplog):
    done = []

    def body():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)

    with caplog.at_level(logging.WARNING), pytest.raises(JobStopped):
        run(body)
    assert done
    assert "already stopping" in caplog.text


def test_nested_after_somebody_took_the_handler():
    """Installs a handler as ray.init() does."""

    def body():
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("not ours"))
        run(lambda: None)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(JobStopped):
        run(body)


def test_second_job_of_a_process_starts_afresh():
    def body():
        raise_if_stopped()
        os.kill(os.getpid(), signal.SIGTERM)

    for _ in range(2):
        with pytest.raises(JobStopped):
            run(body)
        raise_if_stopped()


def test_exception_that_was_made_of_it():
    """Ray's C++ code makes a SystemError of it."""

    def body():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except JobStopped as error:
            raise SystemError("returned a result with an exception set") from error

    with pytest.raises(JobStopped):
        run(body)


def test_exception_that_got_lost():
    def body():
        with pytest.raises(JobStopped):
            os.kill(os.getpid(), signal.SIGTERM)
        raise_if_stopped()

    with pytest.raises(JobStopped):
        run(body)


def test_held_until_the_outermost_block_ends():
    done = []

    def body():
        with signals_held():
            with signals_held():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        pytest.fail("the signal was lost")

    with pytest.raises(JobStopped):
        run(body)
    assert done == ["inner", "outer"]


def test_too_late_for_one_job_and_the_end_of_the_next():
    def points():
        run(lambda: (settle_signals(), os.kill(os.getpid(), signal.SIGTERM)))
        run(lambda: pytest.fail("the signal was lost"))

    with pytest.raises(JobStopped):
        run(points)


def test_signals_that_are_taken_stop_what_begins_later():
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    take_signals()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(JobStopped):
            run(lambda: pytest.fail("the signal was lost"))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def test_held_in_a_cleanup():
    done = []

    def body():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            with signals_held():
                done.append("as a whole")
            done.append("and what follows")

    with pytest.raises(JobStopped):
        run(body)
    assert done == ["as a whole", "and what follows"]


def test_another_thread_does_not_hold_the_signals_of_the_main_one():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with signals_held():
            inside.set()
            leave.wait()

    def body():
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the signal was held")

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        with pytest.raises(JobStopped):
            run(body)
    finally:
        leave.set()
        thread.join()
