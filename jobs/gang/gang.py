"""The gang: one actor a rank, started together, called together, ended together."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import ray

from jobs.config.schema import ClusterSettings
from jobs.errors import JobError
from jobs.gang import failures
from jobs.gang.answers import Answer, Answers
from jobs.gang.capacity import await_capacity
from jobs.gang.cluster import Cluster
from jobs.gang.failures import RankFailed
from jobs.gang.heartbeats import Heartbeats
from jobs.gang.island import Island
from jobs.gang.messages import NOWHERE, Failure, Place, Report, Setup
from jobs.gang.neighbours import refuse_loopback, refuse_shared_gpus, refuse_unhealthy_gpus, ring_order
from jobs.gang.placement import Placement
from jobs.gang.rank import CONTROL, Rank
from jobs.gang.shape import plan
from jobs.gang.watchdog import Watchdog, describe_state
from jobs.records.member import Member

__all__ = ["SESSION", "Gang", "RankFailed"]

logger = logging.getLogger(__name__)

SESSION = "jobs.measure.session:Session"
# After a first exception, how long to wait for the death of another rank that would explain it.
GRACE_S = 3.0
# What a rank that is alive needs at most to answer on its control group.
PING_TIMEOUT_S = 2.0
REPORT_TIMEOUT_S = 4.0
CLOSE_TIMEOUT_S = 10.0


class Gang:
    """Ranks that are set up; a context manager that ends them."""

    def __init__(self, placement: Placement, stall_timeout_s: float, stacks_path: Path | None) -> None:
        self._placement = placement
        self._stall_timeout_s = stall_timeout_s
        self.stacks_path = stacks_path
        """File for the stacks of a gang that hangs; ``None``: they are logged."""
        self._actors: list[Any] = []
        self.places: list[Place] = []
        """Where the ranks run, as far as they have answered."""
        self._heartbeats: Heartbeats | None = None
        self._closed = False
        self.members: tuple[Member, ...] = ()

    @classmethod
    def start(
        cls,
        cluster: Cluster,
        settings: ClusterSettings,
        num_ranks: int,
        *,
        island: Island | None = None,
        session: str = SESSION,
        stacks_path: Path | None = None,
    ) -> Gang:
        """Reserve, start the actors, order them by host and GPU, join them by jax.distributed.

        Args:
          cluster: where.
          settings: time limits, GPUs per host, and XLA's share of GPU memory.
          num_ranks: one for each actor.
          island: where exactly; ``None``: wherever there is room.
          session: ``module:Class`` of what ``call`` calls, importable on every node.
          stacks_path: file for the stacks of a gang that hangs; ``None``: they are logged.

        Raises:
          UsageError: ``num_ranks`` and ``cluster.gpus_per_host`` don't fit.
          NoCapacity: the cluster lacks the resources, or others have them, for longer than ``placement_timeout_s``.
          GangLost: a rank died.
          InfrastructureError: a rank didn't get ready in time, two ranks have one GPU, a GPU is broken or
            somebody else's, or a host gives its peers a loopback address.
          RankFailed: the session could not be built.
        """
        limit_s = settings.placement_timeout_s
        fit = island.shape if island else functools.partial(plan, settings=settings, num_ranks=num_ranks)
        shape = await_capacity(cluster, limit_s, fit)
        placement = Placement.reserve(cluster.nodes, shape, timeout_s=limit_s)
        gang = cls(placement, settings.stall_timeout_s or math.inf, stacks_path)
        try:
            gang._start_actors(settings)
            gang._set_up(settings, session)
        except BaseException:
            gang.close()
            raise
        return gang

    def call(self, method: str, *args: Any, timeout_s: float, doing: str) -> list[Any]:
        """Call ``method(*args)`` of every rank's session at once; the results, by rank.

        Args:
          method: name of the session's method.
          *args: the same for every rank.
          timeout_s: limit in seconds for all of them.
          doing: what the error says that the gang was doing.

        Raises:
          JobError: what a session raised as one; ``UsageError`` for a refusal by cmkernel.
          GangLost: a rank died, or no rank got anywhere for ``cluster.stall_timeout_s``.
          InfrastructureError: a rank didn't answer in time, although it got further.
          RankFailed: a session raised anything else.
        """
        refs = {rank: actor.call.remote(method, *args) for rank, actor in enumerate(self._actors)}
        return self._gather(Answers(refs), timeout_s, doing, Watchdog(self._stall_timeout_s))

    def answers(self) -> bool:
        """Whether every rank is there, between two calls."""
        dead, silent = self._survey(set(range(len(self._actors))))
        return not dead and not silent

    def close(self) -> None:
        """End all ranks, whatever they are doing, and give the resources back; takes 10 s at most."""
        if self._closed:
            return
        self._closed = True
        # In a thread: with the cluster gone, Ray's calls may not come back.
        thread = threading.Thread(target=self._kill, name="close-gang", daemon=True)
        thread.start()
        thread.join(CLOSE_TIMEOUT_S)
        if thread.is_alive():
            logger.warning("the gang's resources could not be given back within %g s", CLOSE_TIMEOUT_S)

    def __enter__(self) -> Gang:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start_actors(self, settings: ClusterSettings) -> None:
        on_gpus = self._placement.shape.on_gpus
        actor_class = ray.remote(concurrency_groups={CONTROL: 2})(Rank)  # type: ignore[call-overload]
        actors = [
            actor_class.options(
                num_cpus=0 if on_gpus else 1,
                num_gpus=1 if on_gpus else 0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=strategy,
                # A local Ray's workers inherit the driver's environment; the key stays with the driver.
                runtime_env={"env_vars": {"WANDB_API_KEY": ""}},
            ).remote()
            for strategy in self._placement.strategies()
        ]
        self._actors = actors
        self.places = [NOWHERE] * len(actors)
        refs = {index: actor.place.remote() for index, actor in enumerate(actors)}
        places: list[Place] = self._gather(Answers(refs), settings.setup_timeout_s, "starting")
        # Only now is known where each actor is: neighbours in the ring shall be neighbours in the machine.
        order = sorted(range(len(actors)), key=lambda index: ring_order(places[index]))
        self._actors, self.places = [actors[i] for i in order], [places[i] for i in order]

    def _set_up(self, settings: ClusterSettings, session: str) -> None:
        if not self._placement.shape.on_gpus:
            refuse_loopback(self.places)
        refuse_unhealthy_gpus(self.places)
        doing, timeout_s = "setting up jax.distributed", settings.setup_timeout_s
        (coordinator,) = self._gather(Answers({0: self._actors[0].coordinator_address.remote()}), timeout_s, doing)
        setup = Setup(
            rank=0,
            num_ranks=len(self._actors),
            coordinator=coordinator,
            timeout_s=timeout_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            gpu_memory_fraction=settings.gpu_memory_fraction,
            session=session,
        )
        refs = {r: actor.setup.remote(dataclasses.replace(setup, rank=r)) for r, actor in enumerate(self._actors)}
        self.members = tuple(self._gather(Answers(refs), timeout_s, doing))
        refuse_shared_gpus(self.members)
        self._heartbeats = Heartbeats(self._actors, settings.heartbeat_timeout_s)

    def _gather(self, answers: Answers, timeout_s: float, doing: str, watchdog: Watchdog | None = None) -> list[Any]:
        """Values by rank, or the error that explains the first one that is missing."""
        deadline = time.monotonic() + timeout_s
        values: dict[int, Any] = {}
        while answers.unfinished:
            answer = answers.next(min([deadline, *self._checks(answers, watchdog, doing)]))
            if answer is None:
                if time.monotonic() < deadline:
                    continue
                reports = self._reports()
                stacks = self._save(reports)
                raise failures.timeout_error(self.places, answers.unfinished, reports, timeout_s, doing, stacks)
            if answer.error is not None or isinstance(answer.value, Failure):
                raise self._cause(answer, answers, doing)
            values[answer.key] = answer.value
            if watchdog:
                watchdog.answered()
        return [values[rank] for rank in sorted(values)]

    def _checks(self, answers: Answers, watchdog: Watchdog | None, doing: str) -> list[float]:
        """Raise where a rank is gone or all are stuck; when to check again (``time.monotonic()``)."""
        due_s = []
        if self._heartbeats:
            death, silent = self._heartbeats.check()
            if death:
                raise self._cause(death, answers, doing)
            if silent:
                reports = self._reports(set(range(len(self._actors))) - set(silent))
                limit_s, stacks = self._heartbeats.limit_s, self._save(reports)
                raise failures.silence_error(self.places, silent, reports, limit_s, doing, stacks)
            due_s.append(self._heartbeats.due_s)
        if watchdog:
            asked_s = time.monotonic()
            if asked_s >= watchdog.due_s and watchdog.is_stuck(reports := self._reports(), asked_s):
                raise failures.hang_error(self.places, reports, watchdog.limit_s, doing, self._save(reports))
            due_s.append(watchdog.due_s)
        return due_s

    def _cause(self, first: Answer, answers: Answers, doing: str) -> JobError:
        """The error to report: a rank that died, rather than what its peers saw of that."""
        answer: Answer | None = first
        deadline = time.monotonic() + GRACE_S
        while answer is not None:
            if failures.is_death(answer):
                dead, silent = self._survey(set(range(len(self._actors))) - {answer.key})
                return failures.death_error(self.places, answer, dead, silent, doing)
            if isinstance(answer.value, Failure) and (final := failures.final_error(answer.value)):
                return final
            answer = answers.next(deadline)
        dead, silent = self._survey(set(range(len(self._actors))) - {first.key})
        return failures.session_error(self.places, first, sorted(dead + silent), doing)

    def _survey(self, ranks: set[int]) -> tuple[list[int], list[int]]:
        """Which of ``ranks`` are dead, and which don't answer."""
        answers = Answers({rank: self._actors[rank].ping.remote() for rank in ranks})
        dead, deadline = [], time.monotonic() + PING_TIMEOUT_S
        while (answer := answers.next(deadline)) is not None:
            if answer.error is not None:
                dead.append(answer.key)
        return sorted(dead), sorted(answers.unfinished)

    def _reports(self, ranks: Iterable[int] | None = None) -> dict[int, Report]:
        """Of those of ``ranks``, by default of all, that give one."""
        asked = range(len(self._actors)) if ranks is None else ranks
        answers = Answers({rank: self._actors[rank].report.remote() for rank in asked})
        reports, deadline = {}, time.monotonic() + REPORT_TIMEOUT_S
        while (answer := answers.next(deadline)) is not None:
            if answer.error is None:
                reports[answer.key] = answer.value
        return reports

    def _save(self, reports: Mapping[int, Report]) -> str:
        """Where the stacks are to be found."""
        sections = []
        for rank in range(len(self._actors)):
            report = reports.get(rank)
            text = f"{describe_state(report)}\n{report.stacks}" if report else "no answer"
            sections.append(f"=== {failures.name_rank(self.places, rank)} ===\n{text}\n")
        text = "\n".join(sections)
        if self.stacks_path is not None:
            try:
                self.stacks_path.write_text(text)
                return str(self.stacks_path)
            except OSError as error:
                logger.error("%s: %s", self.stacks_path, error)
        logger.error("stacks of the ranks:\n%s", text)
        return "in the log"

    def _kill(self) -> None:
        for actor in self._actors:
            try:
                ray.kill(actor, no_restart=True)
            except Exception as error:
                logger.warning("an actor could not be killed (Ray ends it with the job): %s", error)
        self._placement.remove()
