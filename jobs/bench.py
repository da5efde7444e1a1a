"""``python -m jobs.bench``: measure the ring all-gather matmul over a gang of ranks, beside its baselines."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from cmkernel import cost
from jobs.benchmark import Benchmark
from jobs.errors import EXIT_CHECK_FAILED, EXIT_INFRASTRUCTURE, EXIT_OK, EXIT_USAGE, JobError, JobStopped
from jobs.gang.cluster import connect, default_num_ranks, submission_id
from jobs.gang.gang import Gang
from jobs.gang.signals import stop_on_signals
from jobs.gang.versions import check_versions
from jobs.measure.plan import config_dir, expand, resolve_problem
from jobs.preflight import refuse_unsupported
from jobs.records import Case, Row
from jobs.results import table
from jobs.results.environment import environment
from jobs.results.journal import Journal
from jobs.results.progress import Progress
from jobs.results.result_line import result_line
from jobs.results.run_dir import RunDir
from jobs.results.wandb_sink import WandbSink
from jobs.settings import Settings, register, to_settings

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Outcome:
    """How a job ended and what it left behind."""

    status: str = "ok"
    exit_code: int = EXIT_OK
    error: str | None = None
    run_dir: Path | None = None
    wandb: WandbSink | None = None
    rows: list[Row] = dataclasses.field(default_factory=list)

    def end(self, status: str, exit_code: int, error: object) -> None:
        """Record why the job ends early; the first reason stays, whatever goes wrong while cleaning up."""
        logger.error("%s: %s", status, error)
        if self.status == "ok":
            self.status, self.exit_code, self.error = status, exit_code, str(error)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Turn an exception into the job's status and exit code."""
        try:
            yield
        except (JobError, JobStopped) as error:
            self.end(error.status, error.exit_code, error)
        except Exception as error:
            logger.exception("a bug, or an error that nobody foresaw")
            self.end("internal_error", EXIT_INFRASTRUCTURE, f"{type(error).__name__}: {error}")

    def line(self) -> str:
        """The RESULT line."""
        return result_line(
            status=self.status,
            exit_code=self.exit_code,
            run_dir=str(self.run_dir) if self.run_dir else None,
            rows=len(self.rows),
            wandb_dir=str(self.wandb.dir) if self.wandb and self.wandb.dir else None,
            error=self.error,
        )


def run(config: DictConfig) -> Outcome:
    """One job from its composed config to its printed RESULT line; never raises."""
    outcome = Outcome()
    with stop_on_signals(), outcome.recording():
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
    print(outcome.line(), flush=True)
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
        about = {**environment(), "versions": check_versions(cluster)}
        outcome.wandb = WandbSink.start(
            settings.wandb,
            run_dir=run_dir.path,
            config={**dataclasses.asdict(settings), "environment": about},
            group=settings.wandb.group or submission_id(),
            tags=[*settings.wandb.tags, f"D={num_ranks}", *sorted({case.dtype for case in cases})],
        )
        gang = stack.enter_context(Gang.start(cluster, settings.cluster, num_ranks, stacks_dir=run_dir.path))
        about["members"] = [dataclasses.asdict(member) for member in gang.members]
        run_dir.write_environment(about)
        links = gang.call("links", timeout_s=settings.cluster.step_timeout_s, doing="reading links")
        for line in _header(gang, cases, links):
            print(line, flush=True)
        journal = stack.enter_context(Journal(run_dir.journal_path))
        num_steps = len(cases) * Benchmark.num_steps(settings)
        progress = stack.enter_context(Progress(num_steps, sys.stdout))

        def report(text: str) -> None:
            logger.info("%s", text)
            progress.step(text)

        benchmark = Benchmark(gang, settings, report=report)
        for case in cases:
            for row in benchmark.run(case):
                journal.append(row)
                outcome.rows.append(row)
                outcome.wandb.log_row(row, gang.members)
                progress.print(table.row_line(row))


def _header(gang: Gang, cases: Sequence[Case], links: Sequence[str]) -> list[str]:
    members = [dataclasses.asdict(member) for member in gang.members]
    model = cost.device_model(gang.members[0].device_kind)
    bounds: list[tuple[Case, float | None]] = []
    for case in cases:
        sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard, "num_ranks": case.num_ranks}
        bounds.append((case, cost.expected_time(model, **sizes, dtype=case.dtype).article_bound_us if model else None))
    return [
        *table.header_lines(
            members=members,
            versions=gang.members[0].versions,
            links=", ".join(sorted(set(links))),
            cases=bounds,
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


def main() -> int:
    """Exit code of the job, the worst one of a multirun."""
    logging.basicConfig(level=logging.INFO, handlers=[_stderr_handler()])
    register()
    outcomes: list[Outcome] = []

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    def task(config: DictConfig) -> None:
        stopped = outcomes and outcomes[-1].status == JobStopped.status
        if not stopped:
            outcomes.append(run(config))

    try:
        task()
    except SystemExit as error:
        # Hydra printed what is wrong; it leaves with 1 for a bad override, where this project's code is 2.
        if error.code and not outcomes:
            outcome = Outcome(status="usage_error", exit_code=EXIT_USAGE, error="the config could not be composed")
            print(outcome.line(), flush=True)
            return outcome.exit_code
        if error.code:
            return EXIT_INFRASTRUCTURE
    return max((outcome.exit_code for outcome in outcomes), default=EXIT_OK)


def _stderr_handler() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    return handler


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads of Ray or W&B that outlive their close must not hold the job, or change its exit code.
    os._exit(code)
