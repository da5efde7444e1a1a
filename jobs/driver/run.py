"""One job of ``jobs.bench`` or ``jobs.tune``: resolve its config into a plan, execute the plan, conclude.

The entry points import this late: it is slow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from jobs.driver.attempts import Attempts
from jobs.driver.conclusion import conclude
from jobs.driver.islands import Islands
from jobs.driver.kind import Kind
from jobs.driver.ledger import Ledger
from jobs.driver.naming import Naming
from jobs.driver.opening import Job, open_job
from jobs.driver.outcome import Outcome
from jobs.driver.plan import Plan, name_islands, resolve
from jobs.driver.soak import soak_s
from jobs.gang.cluster import Cluster
from jobs.gang.warm_gang import WarmGang
from jobs.measure import torch_fused
from jobs.records.environment import short_sha
from jobs.records.op import Op
from jobs.results.analysis.soaking import Point
from jobs.results.disk.environment_file import EnvironmentFile
from jobs.results.disk.journal import Journal, iterate, iterate_soak
from jobs.results.terminal.columns import View
from jobs.results.terminal.progress import Progress
from jobs.results.wandb.sink import WandbSink
from jobs.signals import signals_held


def run(config: DictConfig, warm: WarmGang, outcome: Outcome, kind: Kind) -> None:
    """Run one job and print its output; the caller prints the RESULT line from ``outcome``.

    Args:
      config: composed config.
      warm: gang that the points of a multirun share.
      outcome: records the job's results and its end.
      kind: benchmark or tuning.

    Raises:
      JobError, JobStopped: the job ended before it reached its cluster; later errors are in ``outcome``.
    """
    with contextlib.ExitStack() as stack:
        # Signals wait, so that the RESULT line of a job that is stopped meanwhile names its folder and counts all rows.
        with signals_held():
            job = open_job(config, kind, Naming.of_job())
            # From here on no other job can have this folder.
            journal = stack.enter_context(Journal(job.run_dir.journal_path))
            stack.enter_context(_logging_to(job.run_dir.log_path))
            _begin(job, outcome)
        with outcome.recording():
            # Both set NCCL's options for the life of a process: only points that agree in them share a gang.
            others = (torch_fused.NAME in job.settings.timing.baselines, job.naming.env_set)
            with warm.connected(job.settings.cluster, *others, point=job.naming.point) as cluster:
                plan = resolve(job, cluster, outcome.rows)
                _execute(plan, cluster, warm, journal, outcome)
        # The gang is gone and its GPUs are free, so W&B may take its time.
        with outcome.recording():
            conclude(job.settings, outcome)


def _begin(job: Job, outcome: Outcome) -> None:
    """Write the config of a new job, or read the rows of the job to resume."""
    outcome.run_dir = job.run_dir.path
    if job.settings.resume is None:
        job.run_dir.write_config(job.settings)
        return
    outcome.rows += (row.summary() for row in iterate(job.run_dir.journal_path))
    outlier_z = job.settings.cluster.outlier_z
    outcome.soak += (Point.of(one, outlier_z=outlier_z) for one in iterate_soak(job.run_dir.soak_path))


def _execute(plan: Plan, cluster: Cluster, warm: WarmGang, journal: Journal, outcome: Outcome) -> None:
    """Start W&B, then gangs until every case is measured."""
    environment = EnvironmentFile(plan.run_dir, plan.environment)
    outcome.wandb = _start_wandb(plan)
    outcome.wandb.replay([(row, plan.environment.members_of(row)) for row in outcome.rows])
    print(f"# Overrides: {' '.join(plan.overrides) or 'none'}", flush=True)
    if plan.settings.resume:
        print(f"# Resumed  : {plan.settings.resume}, {len(outcome.rows)} rows are done", flush=True)
    with contextlib.ExitStack() as stack:
        soak_journal = stack.enter_context(Journal(plan.run_dir.soak_path)) if soak_s(plan.settings) else None
        progress = stack.enter_context(Progress(sys.stdout))
        outlier_z = plan.settings.cluster.outlier_z
        results, kernel = plan.settings.results, plan.settings.kernel
        has_ops = any(case.op is not Op.all_gather_matmul for case in plan.cases)
        view = View(results.columns, progress.width, has_ops=has_ops, options=tuple(kernel.config))
        ledger = Ledger(journal, outcome, progress, soak_journal=soak_journal, outlier_z=outlier_z, view=view)
        common = (plan, cluster, warm, ledger, environment)
        if not plan.islands:
            Attempts(*common).run()
            return
        names = name_islands(plan.islands)
        print(
            f"# Islands  : {len(plan.islands)} of {plan.islands[0].num_ranks} ranks, all at once: {names}", flush=True
        )
        Islands([Attempts(*common, island) for island in plan.islands], outcome).run()
        if outcome.error is not None:
            # The next point of a multirun must not meet the remains of a failed island.
            warm.close()


def _start_wandb(plan: Plan) -> WandbSink:
    """Start the job's W&B run, or continue the run of the job that it resumes."""
    settings, environment = plan.settings.wandb, plan.environment
    commit = [f"git={short_sha(environment.git_sha)}"] if environment.git_sha else []
    dtypes = sorted({case.dtype for case in plan.cases})
    return WandbSink.start(
        settings,
        run_dir=plan.run_dir.path,
        config={**dataclasses.asdict(plan.settings), "environment": environment.to_json()},
        name=environment.wandb_name,
        group=settings.group or environment.wandb_group,
        tags=[*(settings.tags or ()), f"D={plan.cases[0].num_ranks}", *dtypes, *commit],
        run_id=environment.wandb_id,
    )


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Log everything to the run directory; warnings also go to standard error."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
