"""One job of ``jobs.bench``: from its composed config to its results. The entry point imports this late: it is slow."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from cmkernel import cost
from jobs.benchmark import Benchmark
from jobs.errors import EXIT_CHECK_FAILED
from jobs.gang.cluster import connect, default_num_ranks, submission_id, submitted_git_sha
from jobs.gang.gang import Gang
from jobs.gang.signals import stop_on_signals
from jobs.gang.versions import check_versions
from jobs.measure.plan import expand, resolve_problem
from jobs.preflight import refuse_unsupported
from jobs.records import Case
from jobs.results import table
from jobs.results.environment import environment
from jobs.results.journal import Journal
from jobs.results.outcome import Outcome
from jobs.results.progress import Progress
from jobs.results.run_dir import RunDir
from jobs.results.wandb_sink import WandbSink
from jobs.settings import Settings, to_settings

logger = logging.getLogger(__name__)


def run(config: DictConfig) -> Outcome:
    """One job, all its output but the RESULT line; never raises."""
    outcome = Outcome()
    with outcome.recording():
        settings = to_settings(config)
        # Sizes are checked before anything is touched; the number of ranks may still be unknown.
        expand(resolve_problem(settings.problem, on_gpus=False), settings.cluster.num_ranks or 1)
        run_dir = RunDir.create(_wanted_run_dir(settings), submission_id=_name_of_point(submission_id()))
        outcome.run_dir = run_dir.path
        with _logging_to(run_dir.log_path):
            run_dir.write_config(settings)
            with outcome.recording():
                _measure(settings, run_dir, outcome)
            # Here the gang is gone and its GPUs are free: W&B may take its time.
            with outcome.recording():
                _conclude(outcome)
    return outcome


def _measure(settings: Settings, run_dir: RunDir, outcome: Outcome) -> None:
    """Connect, validate, start W&B, then the gang; measure every case."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(connect(settings.cluster))
        # Again, as ray.init() puts its own handler in the place of ours.
        stack.enter_context(stop_on_signals())
        num_ranks = default_num_ranks(cluster, settings.cluster)
        cases = expand(resolve_problem(settings.problem, on_gpus=cluster.on_gpus), num_ranks)
        refuse_unsupported(settings, cases, cluster)
        about = {**environment(submitted_git_sha()), "versions": check_versions(cluster)}
        outcome.wandb = WandbSink.start(
            settings.wandb,
            run_dir=run_dir.path,
            config={**dataclasses.asdict(settings), "environment": about},
            group=settings.wandb.group or submission_id(),
            tags=[*settings.wandb.tags, f"D={num_ranks}", *sorted({case.dtype for case in cases})],
        )
        gang = stack.enter_context(
            Gang.start(cluster, settings.cluster, num_ranks, stacks_path=run_dir.path / "stacks-1.txt")
        )
        about["members"] = [dataclasses.asdict(member) for member in gang.members]
        run_dir.write_environment(about)
        links = gang.call("links", timeout_s=settings.cluster.step_timeout_s, doing="reading links")
        overrides = " ".join(HydraConfig.get().overrides.task)
        print(f"# Overrides: {overrides or 'none'}", flush=True)
        for line in _header(gang, cases, links):
            print(line, flush=True)
        journal = stack.enter_context(Journal(run_dir.journal_path))
        num_steps = len(cases) * Benchmark.num_steps(settings)
        progress = stack.enter_context(Progress(num_steps, sys.stdout))

        def report(text: str) -> None:
            logger.info("%s", text)
            progress.step(text)

        def announce(text: str) -> None:
            logger.info("%s", text)
            progress.print(f"# {text}")

        benchmark = Benchmark(gang, settings, report=report, announce=announce)
        for case in cases:
            for row in benchmark.run(case):
                journal.append(row)
                outcome.rows.append(row)
                outcome.wandb.log_row(row, gang.members)
                progress.print(table.row_line(row))


def _header(gang: Gang, cases: Sequence[Case], links: Sequence[str]) -> list[str]:
    members = [dataclasses.asdict(member) for member in gang.members]
    model = cost.device_model(gang.members[0].device_kind)
    expected: list[tuple[Case, cost.ExpectedTime | None]] = []
    for case in cases:
        sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard, "num_ranks": case.num_ranks}
        expected.append((case, cost.expected_time(model, **sizes, dtype=case.dtype) if model else None))
    return [
        *table.header_lines(
            members=members,
            versions=gang.members[0].versions,
            links=", ".join(sorted(set(links))),
            cases=expected,
        ),
        *table.column_lines(),
    ]


def _conclude(outcome: Outcome) -> None:
    """The verdict over all rows, and everything handed over to W&B."""
    failed = [row for row in outcome.rows if not row.check.passed]
    if failed:
        named = ", ".join(f"{row.implementation} on {row.case}" for row in failed)
        outcome.end("check_failed", EXIT_CHECK_FAILED, f"{len(failed)} of {len(outcome.rows)} rows are wrong: {named}")
    for line in table.footer_lines(outcome.rows):
        print(line, flush=True)
    if outcome.wandb:
        outcome.wandb.finish(exit_code=outcome.exit_code, status=outcome.status)
        for line in outcome.wandb.browse_lines():
            print(line, flush=True)
    print(f"# Results : {outcome.run_dir}", flush=True)


def _wanted_run_dir(settings: Settings) -> str | None:
    """``run_dir``; below it, a folder for each point of a multirun."""
    point = _point()
    return settings.run_dir if settings.run_dir is None or point is None else str(Path(settings.run_dir) / point)


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
