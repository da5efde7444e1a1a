import gc
import os
import signal

import pytest

from jobs.driver.conclusion import conclude
from jobs.driver.outcome import Outcome
from jobs.signals import stop_on_signals
from tests.jobs.comparison.simulated_runs import row, write_run
from tests.jobs.composed import composed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_is_dropped_stops_the_job(tmp_path):
    """As in a callback of the garbage collector, of which jax and matplotlib have some."""

    def stop(phase, info):
        gc.callbacks.remove(stop)
        os.kill(os.getpid(), signal.SIGTERM)

    measured = row({"call_us": [[[100.0]], [[101.0]]]})
    outcome = Outcome(run_dir=write_run(tmp_path / "run", [measured]), rows=[measured.summary()])
    with stop_on_signals():
        gc.callbacks.append(stop)
        conclude(composed("wandb=disabled", "results.report=true"), outcome)
    assert stop not in gc.callbacks
    assert (outcome.status, outcome.exit_code) == ("stopped", 143)
