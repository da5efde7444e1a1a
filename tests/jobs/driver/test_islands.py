"""Threads of islands, with real signals; tests/integration/test_islands.py has real gangs."""

import os
import signal
import threading
import time

import pytest

from jobs.driver.islands import Islands
from jobs.driver.outcome import Outcome
from jobs.errors import InfrastructureError, JobStopped
from jobs.signals import raise_if_stopped, stop_on_signals


class Attempts:
    """Stands in for an island's gangs: ``run`` does ``what``, and notes that it has cleaned up."""

    def __init__(self, name, what):
        self.name, self._what, self.is_gone = name, what, False

    def run(self):
        try:
            self._what()
        finally:
            time.sleep(0.3)
            self.is_gone = True


def measure_for_ever():
    while True:
        raise_if_stopped()
        time.sleep(0.01)


def lose():
    raise InfrastructureError("rank 0 is gone")


@pytest.mark.parametrize("after_s", [0.05, 0.5, 0.75])
def test_a_signal_ends_the_job_when_every_gang_is_gone(after_s):
    attempts = [Attempts(f"h{number}", measure_for_ever) for number in range(8)]
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(JobStopped), stop_on_signals():
        Islands(attempts, Outcome()).run()
    assert all(one.is_gone for one in attempts)


def test_an_island_that_ends_badly_is_named_and_the_others_finish():
    outcome = Outcome()
    finished = [Attempts("h0", lambda: time.sleep(0.2)), Attempts("h1", lose), Attempts("h2", lambda: None)]
    Islands(finished, outcome).run()
    assert all(one.is_gone for one in finished)
    assert (outcome.status, outcome.exit_code) == ("infrastructure_error", 3)
    assert outcome.error == "island h1: rank 0 is gone"


def test_a_bug_in_an_island_is_the_jobs_end():
    outcome = Outcome()
    Islands([Attempts("h0", lambda: 1 / 0), Attempts("h1", lambda: None)], outcome).run()
    assert outcome.exit_code == 3
    assert outcome.error == "island h0: ZeroDivisionError: division by zero"
