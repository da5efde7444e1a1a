import logging
import os
import signal

import pytest

from jobs.errors import JobStopped
from jobs.gang.signals import raise_if_stopped, stop_on_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_first_signal_raises(number, code):
    before = signal.getsignal(number)
    with pytest.raises(JobStopped) as stopped, stop_on_signals():
        os.kill(os.getpid(), number)
    assert stopped.value.exit_code == code
    assert signal.getsignal(number) is before


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
    """As ray.init() does."""

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
