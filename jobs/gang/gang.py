"""The gang: one actor per rank. All are started, called and ended together."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from jobs.config.schema import ClusterSettings
from jobs.errors import JobError
from jobs.gang import failures
from jobs.gang.answers import Answer, Answers
from jobs.gang.capacity import await_capacity
from jobs.gang.closing import Closing, finishes_within
from jobs.gang.cluster import Cluster
from jobs.gang.failures import RankFailed
from jobs.gang.heartbeats import Heartbeats
from jobs.gang.island import Island
from jobs.gang.last_words import last_words
from jobs.gang.messages import NOWHERE, Failure, Place, Report, Setup
from jobs.gang.names import refuse_unusable_names
from jobs.gang.neighbours import refuse_shared_gpus, refuse_unhealthy_gpus, ring_order
from jobs.gang.placement import Placement
from jobs.gang.probe import Probe, save_stacks
from jobs.gang.rank import CONTROL, Rank
from jobs.gang.shape import plan
from jobs.gang.watchdog import Watchdog
from jobs.records.member import Member

__all__ = ["SESSION", "Gang", "RankFailed"]

logger = logging.getLogger(__name__)

SESSION = "jobs.measure.session:Session"
# Time to wait, after a first exception, for the death of another rank that would explain it.
GRACE_S = 3.0
CLOSE_TIMEOUT_S = 10.0


class Gang(Closing):
    """Ranks that are set up; a context manager that ends them."""

    def __init__(
        self, cluster: Cluster, placement: Placement, stall_timeout_s: float, stacks_path: Path | None
    ) -> None:
        self._cluster = cluster
        self._placement = placement
        self._stall_timeout_s = stall_timeout_s
        self.stacks_path = stacks_path
        """File for the stacks of a gang that hangs; ``None`` logs them."""
        self._actors: list[Any] = []
        self.places: list[Place] = []
        """Place of each rank; ``NOWHERE`` until it has answered."""
        self._probe = Probe(())
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
        """Reserve resources, start the actors, order them by host and GPU, and join them through jax.distributed.

        Args:
          cluster: the cluster to start on.
          settings: time limits, GPUs per host, and XLA's share of GPU memory.
          num_ranks: ranks to start, one actor each.
          island: the nodes to use; ``None`` takes any that have room.
          session: ``module:Class`` whose methods ``call`` calls; it must be importable on every node.
          stacks_path: file for the stacks of a gang that hangs; ``None`` logs them.

        Raises:
          UsageError: ``num_ranks`` is no multiple of ``cluster.gpus_per_host``.
          NoCapacity: the resources are missing or taken for longer than ``cluster.placement_timeout_s``.
          GangLost: a rank died.
          InfrastructureError: a rank isn't ready in time, two ranks share a GPU, a GPU is broken or in use by
            another process, or a host's name resolves to an address that the ranks can't use.
          RankFailed: the session can't be built.
        """
        limit_s = settings.placement_timeout_s
        fit = island.shape if island else functools.partial(plan, settings=settings, num_ranks=num_ranks)
        shape = await_capacity(cluster, limit_s, fit)
        placement = Placement.reserve(cluster.nodes, shape, timeout_s=limit_s)
        gang = cls(cluster, placement, settings.stall_timeout_s or math.inf, stacks_path)
        try:
            gang._start_actors(settings)
            refuse_unusable_names(gang.places, cluster.nodes, on_gpus=shape.on_gpus)
            gang._set_up(settings, session)
        except BaseException:
            gang.close()
            raise
        return gang

    def call(self, method: str, *args: Any, timeout_s: float, doing: str) -> list[Any]:
        """Call ``method(*args)`` on every rank's session at once and return the results by rank.

        Args:
          method: name of the session's method.
          *args: arguments, the same for every rank.
          timeout_s: seconds until all ranks must have answered.
          doing: the step's name in errors, such as ``timing xla``.

        Raises:
          JobError: a session raised it, or cmkernel refused its arguments (``UsageError``).
          GangLost: a rank died, or no rank made progress for ``cluster.stall_timeout_s``.
          InfrastructureError: a rank made progress but didn't answer in time.
          RankFailed: a session raised anything else.
        """
        refs = {rank: actor.call.remote(method, *args) for rank, actor in enumerate(self._actors)}
        return self._gather(Answers(refs), timeout_s, doing, Watchdog(self._stall_timeout_s))

    def answers(self) -> bool:
        """Return whether every rank is alive and responsive; for use between two calls."""
        dead, silent = self._probe.survey()
        return not dead and not silent

    def close(self) -> None:
        """Kill all ranks, whatever they are doing, and release the resources; takes 10 s at most."""
        if self._closed:
            return
        self._closed = True
        if not finishes_within(CLOSE_TIMEOUT_S, self._kill, "close-gang"):
            logger.warning(
                "the gang's resources aren't released within %g s (Ray releases them with the job)", CLOSE_TIMEOUT_S
            )

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
                # Workers of a local Ray inherit the driver's environment; ranks must not see the key.
                runtime_env={"env_vars": {"WANDB_API_KEY": ""}},
            ).remote()
            for strategy in self._placement.strategies()
        ]
        self._actors, self._probe = actors, Probe(actors)
        self.places = [NOWHERE] * len(actors)
        refs = {index: actor.place.remote() for index, actor in enumerate(actors)}
        places: list[Place] = self._gather(Answers(refs), settings.setup_timeout_s, "starting")
        # Ray has placed the actors by now: order them so that neighbours in the ring are neighbours in the machine.
        order = sorted(range(len(actors)), key=lambda index: ring_order(places[index]))
        self._actors, self.places = [actors[i] for i in order], [places[i] for i in order]
        self._probe = Probe(self._actors)

    def _set_up(self, settings: ClusterSettings, session: str) -> None:
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
        """Wait for all values and return them by rank; raise the error that explains the first missing one."""
        try:
            return self._await_all(answers, timeout_s, doing, watchdog)
        except JobError:
            # The error may name the output of a rank.
            self._cluster.keep_logs()
            raise

    def _await_all(self, answers: Answers, timeout_s: float, doing: str, watchdog: Watchdog | None) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        values: dict[int, Any] = {}
        while answers.unfinished:
            answer = answers.next(min([deadline, *self._checks(answers, watchdog, doing)]))
            if answer is None:
                if time.monotonic() < deadline:
                    continue
                reports = self._probe.reports()
                stacks = self._save(reports)
                raise failures.timeout_error(self.places, answers.unfinished, reports, timeout_s, doing, stacks)
            if answer.error is not None or isinstance(answer.value, Failure):
                raise self._cause(answer, answers, doing)
            values[answer.key] = answer.value
            if watchdog:
                watchdog.answered()
        return [values[rank] for rank in sorted(values)]

    def _checks(self, answers: Answers, watchdog: Watchdog | None, doing: str) -> list[float]:
        """Raise if a rank is gone or all are stuck; return when to check again (``time.monotonic()``)."""
        due_s = []
        if self._heartbeats:
            death, silent = self._heartbeats.check()
            if death:
                raise self._cause(death, answers, doing)
            if silent:
                reports = self._probe.reports(but=silent)
                limit_s, stacks = self._heartbeats.limit_s, self._save(reports)
                raise failures.silence_error(self.places, silent, reports, limit_s, doing, stacks)
            due_s.append(self._heartbeats.due_s)
        if watchdog:
            asked_s = time.monotonic()
            if asked_s >= watchdog.due_s and watchdog.is_stuck(reports := self._probe.reports(), asked_s):
                raise failures.hang_error(self.places, reports, watchdog.limit_s, doing, self._save(reports))
            due_s.append(watchdog.due_s)
        return due_s

    def _cause(self, first: Answer, answers: Answers, doing: str) -> JobError:
        """Error to report: the death of a rank takes precedence over the exceptions it causes in its peers."""
        answer: Answer | None = first
        deadline = time.monotonic() + GRACE_S
        while answer is not None:
            if failures.is_death(answer):
                dead, silent = self._probe.survey(but={answer.key})
                words = last_words(self.places[answer.key]) if self.places[answer.key].pid else ""
                return failures.death_error(self.places, answer, dead, silent, doing, words)
            if isinstance(answer.value, Failure) and (final := failures.final_error(answer.value)):
                return final
            answer = answers.next(deadline)
        dead, silent = self._probe.survey(but={first.key})
        return failures.session_error(self.places, first, sorted(dead + silent), doing)

    def _save(self, reports: Mapping[int, Report]) -> str:
        return save_stacks(self.places, reports, self.stacks_path)

    def _kill(self) -> None:
        for actor in self._actors:
            try:
                ray.kill(actor, no_restart=True)
            except Exception as error:
                logger.warning("an actor can't be killed (Ray ends it with the job): %s", error)
        self._placement.remove()
