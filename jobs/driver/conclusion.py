"""Conclusion of a job once its gang is gone: judgement, report, the end of its W&B run."""

from __future__ import annotations

import logging
from pathlib import Path

from jobs.config.choices import WandbMode
from jobs.config.schema import Settings
from jobs.driver.judgement import judge
from jobs.driver.outcome import Outcome
from jobs.errors import JobStopped
from jobs.results.disk.journal import JOURNAL_NAME
from jobs.results.disk.junit import given_up, of_row, whole, write_junit
from jobs.results.wandb.metrics import Scalar
from jobs.signals import raise_if_stopped, settle_signals

logger = logging.getLogger(__name__)

# The report reads all samples at once; larger journals would need too much of the driver's memory.
MAX_REPORTED_MIB = 256


def conclude(settings: Settings, outcome: Outcome) -> None:
    """Judge all rows, write the report and hand everything to W&B. Signals are ignored after that."""
    more: dict[str, Scalar] = {}
    with outcome.recording():
        more = judge(outcome, settings)
    # A job that is asked to stop has no time left.
    pictures: dict[Path, str] = {}
    if settings.results.report and outcome.rows and outcome.status != JobStopped.status:
        with outcome.recording():
            pictures = _report(outcome)
            # Drawing runs callbacks and finalizers, which drop the exception of a signal.
            raise_if_stopped()
    if settings.results.junit:
        with outcome.recording():
            lost = map(given_up, outcome.given_up)
            cases = [*map(of_row, outcome.rows), *lost, whole(outcome.status, outcome.exit_code, outcome.error)]
            write_junit(Path(settings.results.junit), "cmkernel", cases)
    if outcome.wandb is None or outcome.wandb.mode is not WandbMode.online:
        # The rest takes a moment. An online upload may take longer, so a signal can still stop it.
        settle_signals()
    if outcome.wandb:
        outcome.wandb.finish(exit_code=outcome.exit_code, status=outcome.status, more=more, pictures=pictures)
        settle_signals()
        for line in outcome.wandb.browse_lines():
            print(line, flush=True)
    print(f"# Results : {outcome.run_dir}", flush=True)


def _report(outcome: Outcome) -> dict[Path, str]:
    """Write report.html; return the PNG files of its pictures with their captions.

    Any error is logged and doesn't change how the job ends.
    """
    assert outcome.run_dir
    try:
        size_mib = (outcome.run_dir / JOURNAL_NAME).stat().st_size / 2**20
        if size_mib > MAX_REPORTED_MIB:
            command = f"python -m jobs.report {outcome.run_dir}"
            print(f"# Report  : {size_mib:.0f} MiB of rows are left to {command}", flush=True)
            return {}
        # Imported late: only the report needs matplotlib.
        from jobs.results.disk.recorded_run import read_run
        from jobs.results.report import write_report

        report = write_report([read_run(outcome.run_dir)], outcome.run_dir)
        print(f"# Report  : {report.page}", flush=True)
        return {picture.png: picture.caption for picture in report.drawn.pictures}
    except Exception:
        logger.exception("no report: python -m jobs.report %s makes one", outcome.run_dir)
        return {}
