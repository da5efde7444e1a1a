"""What a job does once its gang is gone: verdict, report, the end of its W&B run."""

from __future__ import annotations

import logging
from pathlib import Path

from jobs.config.choices import WandbMode
from jobs.config.schema import Settings
from jobs.driver.outcome import Outcome
from jobs.driver.verdict import judge
from jobs.errors import JobStopped
from jobs.results.disk.journal import JOURNAL_NAME
from jobs.results.wandb.metrics import Scalar
from jobs.signals import settle_signals

logger = logging.getLogger(__name__)

# The report reads all samples at once, and the driver of many islands shall not need the memory for them.
MAX_REPORTED_MIB = 256


def conclude(settings: Settings, outcome: Outcome) -> None:
    """The verdict over all rows, the report, and everything handed over to W&B; signals are too late from then on."""
    more: dict[str, Scalar] = {}
    with outcome.recording():
        more = judge(outcome, settings)
    # A job that was told to stop has no time left.
    pictures: dict[Path, str] = {}
    if settings.results.report and outcome.rows and outcome.status != JobStopped.status:
        with outcome.recording():
            pictures = _report(outcome)
    if outcome.wandb is None or outcome.wandb.mode is not WandbMode.online:
        # What follows takes a moment; an upload takes longer, and may be stopped.
        settle_signals()
    if outcome.wandb:
        outcome.wandb.finish(exit_code=outcome.exit_code, status=outcome.status, more=more, pictures=pictures)
        settle_signals()
        for line in outcome.wandb.browse_lines():
            print(line, flush=True)
    print(f"# Results : {outcome.run_dir}", flush=True)


def _report(outcome: Outcome) -> dict[Path, str]:
    """Pictures and report.html; whatever goes wrong with them is logged, and the job ends as it would have.

    The pictures as PNG files, with their captions.
    """
    assert outcome.run_dir
    try:
        size_mib = (outcome.run_dir / JOURNAL_NAME).stat().st_size / 2**20
        if size_mib > MAX_REPORTED_MIB:
            command = f"python -m jobs.report {outcome.run_dir}"
            print(f"# Report  : {size_mib:.0f} MiB of rows are left to {command}", flush=True)
            return {}
        # Late: matplotlib is for this alone, and nothing else may depend on it.
        from jobs.results.disk.recorded_run import read_run
        from jobs.results.report import write_report

        report = write_report([read_run(outcome.run_dir)], outcome.run_dir)
        print(f"# Report  : {report.page}", flush=True)
        return {picture.png: picture.caption for picture in report.drawn.pictures}
    except Exception:
        logger.exception("no report: python -m jobs.report %s makes one", outcome.run_dir)
        return {}
