"""One job of ``jobs.bench`` or ``jobs.tune``: from its composed config to its results.

The entry points import this late: it is slow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from jobs.attempts import Attempts, attempts_of, members_by_attempt
from jobs.benchmark import Benchmark
from jobs.errors import EXIT_CHECK_FAILED, JobStopped, UsageError
from jobs.gang.capacity import default_num_ranks
from jobs.gang.cluster import Cluster, submission_id, submitted_git_sha
from jobs.gang.signals import stop_on_signals
from jobs.gang.warm_gang import WarmGang
from jobs.hosts import refuse_unfit_hosts
from jobs.measure import torch_fused
from jobs.measure.plan import expand, resolve_problem
from jobs.preflight import refuse_unsupported
from jobs.records import Case, Row
from jobs.results import table
from jobs.results.environment import environment, short_sha
from jobs.results.journal import Journal, read
from jobs.results.outcome import Outcome
from jobs.results.resume import continued
from jobs.results.run_dir import RunDir
from jobs.results.wandb_sink import WandbSink
from jobs.rules import to_settings
from jobs.settings import Settings

logger = logging.getLogger(__name__)


def run(config: DictConfig, warm: WarmGang, kind: type[Benchmark] = Benchmark) -> Outcome:
    """One job, all its output but the RESULT line; never raises.

    ``warm`` is what the points of a multirun share, ``kind`` what the job does with each case.
    """
    outcome = Outcome()
    with outcome.recording():
        settings = to_settings(config)
        if settings.resume is None:
            # Sizes are checked before anything is touched; the number of ranks may still be unknown.
            expand(resolve_problem(settings.problem, on_gpus=False), settings.cluster.num_ranks or 1)
            run_dir = RunDir.create(_wanted_run_dir(settings), submission_id=_name_of_point(submission_id()))
        else:
            run_dir = RunDir.reopen(settings.resume, submission_id=submission_id())
            settings = continued(run_dir.read_config(), settings, HydraConfig.get().overrides.task)
        settings = kind.settle(settings, run_dir.path)
        # From here on no other job can have this folder.
        with Journal(run_dir.journal_path) as journal, _logging_to(run_dir.log_path):
            outcome.run_dir = run_dir.path
            if settings.resume is None:
                run_dir.write_config(settings)
            else:
                outcome.rows += read(run_dir.journal_path)
            with outcome.recording():
                _measure(settings, kind, run_dir, journal, outcome, warm)
            # Here the gang is gone and its GPUs are free: W&B may take its time.
            with outcome.recording():
                _conclude(settings, outcome)
    return outcome


def _measure(
    settings: Settings, kind: type[Benchmark], run_dir: RunDir, journal: Journal, outcome: Outcome, warm: WarmGang
) -> None:
    """Connect, validate, start W&B, then gangs until every case is measured."""
    with contextlib.ExitStack() as stack:
        # torch sets NCCL's options for good.
        others = (torch_fused.NAME in settings.timing.baselines, str(HydraConfig.get().job.env_set))
        cluster = stack.enter_context(warm.connected(settings.cluster, *others, point=_point()))
        # Again, as ray.init() puts its own handler in the place of ours.
        stack.enter_context(stop_on_signals())
        cases = _cases(settings, cluster, outcome.rows)
        refuse_unsupported(settings, cases, cluster)
        # Rows of another kind of job are refused, before W&B's run of them is touched.
        kind.unfinished(settings, cases, outcome.rows)
        earlier = run_dir.read_environment() if settings.resume else {}
        about = {**environment(submitted_git_sha()), "versions": refuse_unfit_hosts(cluster), **attempts_of(earlier)}
        # A resumed job continues the W&B run under the name that it has, in its group.
        about |= {
            "wandb_name": earlier.get("wandb_name", _name(run_dir)),
            "wandb_group": earlier.get("wandb_group", submission_id() or _multirun()),
        }
        outcome.wandb = WandbSink.start(
            settings.wandb,
            run_dir=run_dir.path,
            config={**dataclasses.asdict(settings), "environment": about},
            name=about["wandb_name"],
            group=settings.wandb.group or about["wandb_group"],
            tags=[
                *settings.wandb.tags,
                f"D={cases[0].num_ranks}",
                *sorted({case.dtype for case in cases}),
                *([f"git={short_sha(about['git_sha'])}"] if about["git_sha"] else []),
            ],
            run_id=earlier.get("wandb_id"),
        )
        about["wandb_id"] = outcome.wandb.run_id
        run_dir.write_environment(about)
        members = members_by_attempt(earlier)
        outcome.wandb.replay([(row, members.get(row.attempt, ())) for row in outcome.rows])
        overrides = " ".join(HydraConfig.get().overrides.task)
        print(f"# Overrides: {overrides or 'none'}", flush=True)
        if settings.resume:
            print(f"# Resumed  : {settings.resume}, {len(outcome.rows)} rows are there", flush=True)
        attempts = Attempts(
            cluster, warm, settings, cases, kind=kind, journal=journal, run_dir=run_dir, outcome=outcome, about=about
        )
        attempts.run()


def _cases(settings: Settings, cluster: Cluster, rows: Sequence[Row]) -> tuple[Case, ...]:
    """All cases of the job; the ``rows`` of a resumed one decide the number of ranks."""
    if rows:
        settings = dataclasses.replace(settings)
        settings.cluster = dataclasses.replace(settings.cluster, num_ranks=rows[0].case.num_ranks)
    num_ranks = default_num_ranks(cluster, settings.cluster)
    cases = expand(resolve_problem(settings.problem, on_gpus=cluster.on_gpus), num_ranks)
    if stray := {row.case for row in rows} - set(cases):
        raise UsageError(
            f"resume={settings.resume}: its journal has {min(map(str, stray))}, which is no case of problem="
            f"{settings.problem.name} on this cluster"
        )
    return cases


def _conclude(settings: Settings, outcome: Outcome) -> None:
    """The verdict over all rows, and everything handed over to W&B."""
    failed = [row for row in outcome.rows if row.failed]
    if failed:
        named = ", ".join(f"{row.implementation} on {row.case}" for row in failed)
        outcome.end("check_failed", EXIT_CHECK_FAILED, f"{len(failed)} of {len(outcome.rows)} rows are wrong: {named}")
    for line in table.footer_lines(outcome.rows):
        print(line, flush=True)
    # A job that was told to stop has no time left.
    pictures: dict[Path, str] = {}
    if settings.results.report and outcome.rows and outcome.status != JobStopped.status:
        with outcome.recording():
            pictures = _report(outcome)
    if outcome.wandb:
        restarts = {"restarts": outcome.restarts, "restart_s": round(outcome.restart_s, 1)}
        outcome.wandb.finish(exit_code=outcome.exit_code, status=outcome.status, more=restarts, pictures=pictures)
        for line in outcome.wandb.browse_lines():
            print(line, flush=True)
    print(f"# Results : {outcome.run_dir}", flush=True)


def _report(outcome: Outcome) -> dict[Path, str]:
    """Pictures and report.html; whatever goes wrong with them is logged, and the job ends as it would have.

    The pictures as PNG files, with their captions.
    """
    assert outcome.run_dir
    try:
        # Late: matplotlib is for this alone, and nothing else may depend on it.
        from jobs.results.recorded_run import read_run
        from jobs.results.report import write_report

        report = write_report([read_run(outcome.run_dir)], outcome.run_dir)
        print(f"# Report  : {report.page}", flush=True)
        return {picture.png: picture.caption for picture in report.drawn.pictures}
    except Exception:
        logger.exception("no report: python -m jobs.report %s makes one", outcome.run_dir)
        return {}


def _wanted_run_dir(settings: Settings) -> str | None:
    """``run_dir``; below it, a folder for each point of a multirun."""
    point = _point()
    return settings.run_dir if settings.run_dir is None or point is None else str(Path(settings.run_dir) / point)


def _multirun() -> str | None:
    """Name that all points of a multirun share; ``None`` outside one."""
    return None if _point() is None else Path(HydraConfig.get().sweep.dir).name


def _name(run_dir: RunDir) -> str:
    """Of the W&B run: that of the run directory, which for a point may be no more than its number."""
    name, point = run_dir.path.name, _point()
    return name if point is None else f"{submission_id() or _multirun()}-{point}"


def _name_of_point(submission: str | None) -> str | None:
    point = _point()
    return submission if submission is None or point is None else f"{submission}-{point}"


def _point() -> str | None:
    """Number of this job in a multirun; ``None`` outside one."""
    job = HydraConfig.get().job
    return None if OmegaConf.is_missing(job, "num") else str(job.num)


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Everything goes to the run directory's log; warnings also to standard error."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
