"""One job of ``jobs.bench`` or ``jobs.tune``: from its composed config to its results.

The entry points import this late: it is slow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from jobs.config.problem import expand, resolve_problem
from jobs.config.resume import continued
from jobs.config.rules import to_settings
from jobs.config.schema import Settings, World, kernel_config
from jobs.driver.attempts import Attempts, attempts_of, members_of
from jobs.driver.benchmark import Benchmark
from jobs.driver.conclusion import conclude
from jobs.driver.hosts import nvlink_domains, refuse_unfit_hosts
from jobs.driver.islands import Islands
from jobs.driver.ledger import Ledger
from jobs.driver.outcome import Outcome
from jobs.driver.preflight import refuse_unsupported
from jobs.driver.soak import soak_s
from jobs.errors import UsageError
from jobs.gang.capacity import default_num_ranks
from jobs.gang.cluster import Cluster, submission_id, submitted_git_sha
from jobs.gang.island import Island, cut
from jobs.gang.warm_gang import WarmGang
from jobs.measure import torch_fused
from jobs.records.environment import environment, short_sha
from jobs.records.row import Case, Row
from jobs.results.analysis.soaking import Point
from jobs.results.disk.journal import Journal, iterate, iterate_soak
from jobs.results.disk.run_dir import RunDir
from jobs.results.terminal.columns import View
from jobs.results.terminal.progress import Progress
from jobs.results.wandb.sink import WandbSink
from jobs.signals import signals_held


def run(config: DictConfig, warm: WarmGang, outcome: Outcome, kind: type[Benchmark] = Benchmark) -> None:
    """One job, all its output but the RESULT line, which ``outcome`` makes.

    ``warm`` is what the points of a multirun share, ``kind`` what the job does with each case.

    Raises:
      JobError, JobStopped: before the job began to measure; what ends it later is in ``outcome``.
    """
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
        _open(settings, run_dir, outcome)
        with outcome.recording():
            _measure(settings, kind, run_dir, journal, outcome, warm)
        # Here the gang is gone and its GPUs are free: W&B may take its time.
        with outcome.recording():
            conclude(settings, outcome)


def _open(settings: Settings, run_dir: RunDir, outcome: Outcome) -> None:
    """Write the config of a job that begins, or read the rows of the one that is continued."""
    # As a whole: the RESULT line of a job that is stopped meanwhile counts all rows.
    with signals_held():
        outcome.run_dir = run_dir.path
        if settings.resume is None:
            run_dir.write_config(settings)
            return
        outcome.rows += (row.condensed() for row in iterate(run_dir.journal_path))
        slices, outlier_z = iterate_soak(run_dir.soak_path), settings.cluster.outlier_z
        outcome.soak += (Point.of(found, outlier_z=outlier_z) for found in slices)


def _measure(
    settings: Settings, kind: type[Benchmark], run_dir: RunDir, journal: Journal, outcome: Outcome, warm: WarmGang
) -> None:
    """Connect, validate, start W&B, then gangs until every case is measured."""
    with contextlib.ExitStack() as stack:
        # torch sets NCCL's options for good.
        others = (torch_fused.NAME in settings.timing.baselines, str(HydraConfig.get().job.env_set))
        cluster = stack.enter_context(warm.connected(settings.cluster, *others, point=_point()))
        settings = _with_ranks(settings, outcome.rows)
        islands = _islands(settings, cluster, outcome.rows)
        cases = _cases(settings, cluster, islands, outcome.rows)
        refuse_unsupported(settings, cases, cluster)
        # Rows of another kind of job are refused, before W&B's run of them is touched.
        kind.unfinished(settings, cases, outcome.rows)
        earlier = run_dir.read_environment() if settings.resume else {}
        about = {
            **environment(submitted_git_sha()),
            "versions": refuse_unfit_hosts(cluster),
            "outlier_z": settings.cluster.outlier_z,
            # A resumed job continues the W&B run under the name that it has, in its group.
            "wandb_name": earlier.get("wandb_name", _name(run_dir)),
            "wandb_group": earlier.get("wandb_group", submission_id() or _multirun()),
            # Before the run is there: whoever is killed meanwhile has but one.
            "wandb_id": earlier.get("wandb_id") or secrets.token_hex(4),
            **_attempts(earlier, islands),
        }
        run_dir.write_environment(about)
        outcome.wandb = _start_wandb(settings, run_dir, about, cases)
        outcome.wandb.replay([(row, members_of(row, earlier)) for row in outcome.rows])
        overrides = " ".join(HydraConfig.get().overrides.task)
        print(f"# Overrides: {overrides or 'none'}", flush=True)
        if settings.resume:
            print(f"# Resumed  : {settings.resume}, {len(outcome.rows)} rows are there", flush=True)
        soak_journal = stack.enter_context(Journal(run_dir.soak_path)) if soak_s(settings) else None
        progress = stack.enter_context(Progress(sys.stdout))
        ledger = Ledger(
            journal,
            outcome,
            progress,
            soak_journal=soak_journal,
            outlier_z=settings.cluster.outlier_z,
            view=View(settings.results.columns, progress.width, tuple(kernel_config(settings.kernel))),
        )
        common: dict[str, Any] = {"ledger": ledger, "run_dir": run_dir, "environment": about, "kind": kind}
        if not islands:
            Attempts(cluster, warm, settings, cases, **common, about=about).run()
            return
        print(
            f"# Islands  : {len(islands)} of {islands[0].num_ranks} ranks, all at once: {_named(islands)}", flush=True
        )
        Islands(
            [
                Attempts(cluster, warm, settings, cases, **common, about=part, island=island)
                for island, part in zip(islands, about["islands"], strict=True)
            ],
            outcome,
        ).run()
        if outcome.error is not None:
            # Nor does the next point of a multirun meet what an island's error may have left behind.
            warm.close()


def _start_wandb(settings: Settings, run_dir: RunDir, about: dict[str, Any], cases: Sequence[Case]) -> WandbSink:
    """The job's W&B run, or that of the job that it resumes; ``about`` is environment.json so far."""
    dtypes = sorted({case.dtype for case in cases})
    commit = [f"git={short_sha(about['git_sha'])}"] if about["git_sha"] else []
    return WandbSink.start(
        settings.wandb,
        run_dir=run_dir.path,
        config={**dataclasses.asdict(settings), "environment": about},
        name=about["wandb_name"],
        group=settings.wandb.group or about["wandb_group"],
        tags=[*settings.wandb.tags, f"D={cases[0].num_ranks}", *dtypes, *commit],
        run_id=about["wandb_id"],
    )


def _with_ranks(settings: Settings, rows: Sequence[Row]) -> Settings:
    """The ``rows`` of a resumed job decide the number of ranks."""
    if not rows:
        return settings
    cluster = dataclasses.replace(settings.cluster, num_ranks=rows[0].case.num_ranks)
    return dataclasses.replace(settings, cluster=cluster)


def _islands(settings: Settings, cluster: Cluster, rows: Sequence[Row]) -> tuple[Island, ...]:
    """Those of the job; none where all ranks are one world."""
    if settings.cluster.world is World.whole:
        return ()
    islands = cut(cluster.nodes, nvlink_domains(cluster), settings.cluster)
    if strays := {str(row.island) for row in rows} - {island.name for island in islands}:
        raise UsageError(
            f"resume={settings.resume}: its journal has rows of island {min(strays)}; here are {_named(islands)}"
        )
    return islands


def _named(islands: Sequence[Island]) -> str:
    rest = len(islands) - 8
    return ", ".join(island.name for island in islands[:8]) + (f" and {rest} more" if rest > 0 else "")


def _attempts(earlier: dict[str, Any], islands: Sequence[Island]) -> dict[str, Any]:
    """What environment.json begins with: the attempts so far, of each island where there are some."""
    if not islands:
        return attempts_of(earlier)
    known = {part["island"]: part for part in earlier.get("islands", ())}
    return {"islands": [{"island": island.name, **attempts_of(known.get(island.name, {}))} for island in islands]}


def _cases(settings: Settings, cluster: Cluster, islands: Sequence[Island], rows: Sequence[Row]) -> tuple[Case, ...]:
    """All cases of the job: each island's, where there are some."""
    num_ranks = islands[0].num_ranks if islands else default_num_ranks(cluster, settings.cluster)
    cases = expand(resolve_problem(settings.problem, on_gpus=cluster.on_gpus), num_ranks)
    if stray := {row.case for row in rows} - set(cases):
        raise UsageError(
            f"resume={settings.resume}: its journal has {min(map(str, stray))}, which is no case of problem="
            f"{settings.problem.name} on this cluster"
        )
    return cases


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
