"""Plan of a job, made from its settings and the facts of the cluster."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from pathlib import Path

from cmkernel import Table
from jobs.config.choices import World
from jobs.config.problem import expand, resolve_problem
from jobs.config.schema import Settings
from jobs.driver.hosts import nvlink_domains, refuse_unfit_hosts
from jobs.driver.kind import Kind
from jobs.driver.opening import Job
from jobs.driver.preflight import refuse_unsupported
from jobs.errors import UsageError
from jobs.gang.capacity import default_num_ranks
from jobs.gang.cluster import Cluster
from jobs.gang.island import Island, cut
from jobs.gang.submission import submitted_git_sha
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.records.environment import Environment, GangsRecord, here
from jobs.records.row import BASELINE, RowSummary
from jobs.results.disk.recorded_run import read_environment
from jobs.results.disk.run_dir import RunDir


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that a job measures, where and under which names; immutable."""

    settings: Settings
    kind: Kind
    run_dir: RunDir
    cases: tuple[Case, ...]
    requests: tuple[Request, ...]
    """``kernel.implementation``, then the baselines."""
    islands: tuple[Island, ...]
    """Empty if all ranks are one world."""
    winners_path: Path
    """Table that gets the winners of a tuning."""
    environment: Environment
    """Content of ``environment.json`` before the first gang."""
    overrides: tuple[str, ...]


def resolve(job: Job, cluster: Cluster, rows: Sequence[RowSummary]) -> Plan:
    """Plan ``job`` on ``cluster``; ``rows`` are the rows of the job that it resumes.

    Refusals come in this order: capacity and islands, cases, implementations, rows of another job, hosts.

    Raises:
      UsageError: the cluster can't run what the config asks for, or the rows are from another job.
      NoCapacity: the cluster doesn't have enough GPUs or CPUs.
      InfrastructureError: a host isn't fit.
    """
    settings = job.settings
    islands = _islands(settings, cluster, rows)
    num_ranks = islands[0].num_ranks if islands else default_num_ranks(cluster, settings.cluster)
    cases = expand(resolve_problem(settings.problem, on_gpus=cluster.on_gpus), num_ranks)
    if strays := {row.case for row in rows} - set(cases):
        raise UsageError(
            f"resume={settings.resume}: its journal has {min(map(str, strays))}, which isn't a case of problem="
            f"{settings.problem.name} on this cluster"
        )
    refuse_unsupported(settings, cases, cluster)
    job.kind.unfinished(settings, cases, rows)
    versions = refuse_unfit_hosts(cluster)
    return Plan(
        settings=settings,
        kind=job.kind,
        run_dir=job.run_dir,
        cases=cases,
        requests=requests_of(settings, job.table),
        islands=islands,
        winners_path=job.winners_path,
        environment=_environment(job, versions, islands),
        overrides=job.naming.overrides,
    )


def requests_of(settings: Settings, table: Table | None = None) -> tuple[Request, ...]:
    """Requests for ``kernel.implementation`` and then for the baselines; ``table`` has their tuned configs."""
    wanted = settings.kernel.implementation.value
    baselines = [name for name in settings.timing.baselines if name != wanted]
    target = Request(wanted, wanted, settings.kernel.config, table)
    return target, *(Request(BASELINE, name, table=table) for name in baselines)


def name_islands(islands: Sequence[Island]) -> str:
    """Names of the islands in one line; a long list is cut short."""
    rest = len(islands) - 8
    return ", ".join(island.name for island in islands[:8]) + (f" and {rest} more" if rest > 0 else "")


def _islands(settings: Settings, cluster: Cluster, rows: Sequence[RowSummary]) -> tuple[Island, ...]:
    if settings.cluster.world is World.whole:
        return ()
    islands = cut(cluster.nodes, nvlink_domains(cluster), settings.cluster)
    if strays := {str(row.island) for row in rows} - {island.name for island in islands}:
        raise UsageError(
            f"resume={settings.resume}: its journal has rows of island {min(strays)}; here are {name_islands(islands)}"
        )
    return islands


def _environment(job: Job, versions: dict[str, str], islands: Sequence[Island]) -> Environment:
    """Content of ``environment.json`` before the first gang; a resumed job keeps earlier gangs and the W&B run."""
    naming, path = job.naming, job.run_dir.path
    earlier = read_environment(path) if job.settings.resume else Environment()
    known = {gangs.island: gangs.retired("the job ended") for gangs in earlier.gangs}
    names: list[str | None] = [island.name for island in islands]
    return dataclasses.replace(
        here(submitted_git_sha()),
        versions=versions,
        outlier_z=job.settings.cluster.outlier_z,
        wandb_name=earlier.wandb_name or naming.wandb_name(path),
        # An earlier job outside any group stays outside.
        wandb_group=earlier.wandb_group if earlier.wandb_name else naming.group,
        # Chosen before the run exists: a job that is killed and resumed still has only one run.
        wandb_id=earlier.wandb_id or secrets.token_hex(4),
        gangs=tuple(known.get(name, GangsRecord(island=name)) for name in names or [None]),
    )
