"""Signals that arrive while rows are being taken."""

import io
import os
import signal
from types import SimpleNamespace

import pytest

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.driver.ledger import Ledger
from jobs.driver.outcome import Outcome
from jobs.errors import JobStopped
from jobs.results.disk.journal import Journal, read
from jobs.results.terminal.progress import Progress
from jobs.results.wandb.sink import WandbSink
from jobs.signals import stop_on_signals
from tests.jobs.comparison.simulated_runs import row
from tests.jobs.results.wandb.leet import inspect


class StoppedJournal(Journal):
    """Send a signal as soon as the first row is on the disk."""

    def append(self, row):
        super().append(row)
        os.kill(os.getpid(), signal.SIGTERM)


def test_rows_measured_together_are_in_journal_run_table_and_outcome_before_the_job_stops(tmp_path):
    outcome, stream = Outcome(), io.StringIO()
    settings = WandbSettings(mode=WandbMode.offline)
    outcome.wandb = WandbSink.start(settings, run_dir=tmp_path, config={}, group=None, tags=[])
    members = [SimpleNamespace(rank=rank, host="h", device_kind="cpu") for rank in range(2)]
    with StoppedJournal(tmp_path / "results.jsonl") as journal, Progress(stream) as progress:
        ledger = Ledger(journal, outcome, progress)
        with pytest.raises(JobStopped), stop_on_signals():
            ledger.take([row({"kernel_us": [[[time_us]], [[time_us]]]}) for time_us in (100.0, 200.0)], members)
    wandb_dir = outcome.wandb.dir
    outcome.wandb.finish(exit_code=143, status="stopped")
    assert len(read(tmp_path / "results.jsonl")) == len(outcome.rows) == 2
    assert len([line for line in stream.getvalue().splitlines() if line.strip()]) == 2
    steps = [record["history"]["item"] for record in inspect(wandb_dir) if record["type"] == "history"]
    assert len([step for step in steps if "mosaic_gpu/kernel_us" in step]) == 2
