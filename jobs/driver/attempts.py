"""Gangs of a job or of one island, one after the other: a fresh gang finishes what a lost one left undone."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jobs.driver.domains import fit_requests
from jobs.driver.header import device_lines, header_lines
from jobs.driver.ledger import Ledger
from jobs.driver.measurement import Measurement
from jobs.driver.plan import Plan
from jobs.driver.ranks import Ranks
from jobs.driver.soak import Soak, soak_s
from jobs.errors import GangLost
from jobs.gang.cluster import Cluster
from jobs.gang.gang import Gang
from jobs.gang.island import Island
from jobs.gang.remains import await_gone
from jobs.gang.warm_gang import WarmGang
from jobs.measure.programs import Request
from jobs.records.case import Case
from jobs.results.analysis.best import Best
from jobs.results.disk.environment_file import EnvironmentFile
from jobs.results.terminal.steps import Step, soak_step

logger = logging.getLogger(__name__)

_MAX_LOSSES = 2


class Attempts:
    """Executes a plan.

    Args:
      plan: plan of the job; cases whose rows are in ``ledger`` are done.
      cluster: cluster that the gangs run on.
      warm: starts the gangs of a job without islands; it may hold a gang from an earlier point of a multirun.
      ledger: gets the rows and the restarts.
      environment: records each gang.
      island: island of these gangs; ``None`` in a job without islands.
    """

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        warm: WarmGang,
        ledger: Ledger,
        environment: EnvironmentFile,
        island: Island | None = None,
    ) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._cluster = cluster
        self._warm = warm
        self._ledger = ledger
        self._environment = environment
        self._island = island
        self.name = island.name if island else None
        """Name of the island; ``None`` in a job without islands."""
        self._attempt = 0
        self._restarts = 0
        self._lost: GangLost | None = None
        self._measuring: Case | None = None
        """Case of the present step; ``None`` in the soak, and before a gang's first step."""
        self._losses: Counter[Case] = Counter()
        """Gangs lost while they measured a case."""

    def run(self) -> None:
        """Measure every case that isn't done.

        Raises:
          GangLost: more gangs were lost than ``cluster.max_restarts`` allows.
          NoCapacity: the cluster doesn't have, or no longer has, the resources for a gang.
          UsageError, RankFailed, InfrastructureError: the program failed; it would fail on a fresh gang too.
        """
        while (cases := self._unfinished()) or self._to_soak():
            self._attempt, self._measuring = self._environment.begin(self.name), None
            try:
                self._measure(cases)
            except GangLost as error:
                self._lost = error
                self._environment.lost(self.name, str(error))
                self._judge(error)
                if self._unfinished() or self._to_soak():
                    self._restart(error)

    def _judge(self, lost: GangLost) -> None:
        """Give up a case that two gangs were lost on: a third one would be no wiser."""
        if (case := self._measuring) is None:
            return
        self._losses[case] += 1
        if self._losses[case] == _MAX_LOSSES:
            self._ledger.give_up(self._of_island(f"{case}: given up, {_MAX_LOSSES} gangs were lost on it: {lost}"))

    def _restart(self, lost: GangLost) -> None:
        """Get ready for the next gang; raise ``lost`` once the restarts are used up."""
        max_restarts = self._settings.cluster.max_restarts
        if self._restarts == max_restarts:
            raise lost
        self._restarts += 1
        self._ledger.restarts()
        first_line = str(lost).splitlines()[0]
        of_island = f" of island {self.name}" if self.name else ""
        logger.warning("restart %d of %d%s: %s", self._restarts, max_restarts, of_island, first_line)
        self._ledger.print(f"# Restart {self._restarts} of {max_restarts}{of_island}: {first_line}")
        await_gone(self._cluster, lost.places, hosts=self._island.hosts if self._island else None)

    def _unfinished(self) -> list[Case]:
        unfinished = self._plan.kind.unfinished(self._settings, self._plan.cases, self._ledger.rows(self.name))
        return [case for case in unfinished if self._losses[case] < _MAX_LOSSES]

    def _to_soak(self) -> list[Case]:
        """Cases to soak: those whose check passed, while soak time is left."""
        if not self._soak_left_s():
            return []
        targets = [row for row in self._ledger.rows(self.name) if not row.is_baseline]
        good = {row.case for row in targets if row.check and not row.failed}
        return [case for case in self._plan.cases if case in good]

    def _soak_left_s(self) -> float:
        left_s = soak_s(self._settings) - sum(point.seconds for point in self._ledger.points(self.name))
        return left_s if left_s >= 1e-6 else 0.0

    def _measure(self, cases: Sequence[Case]) -> None:
        """Run one gang, from its start to its end."""
        with contextlib.ExitStack() as stack:
            gang = stack.enter_context(self._gang(self._stacks_path()))
            reused = None if self._island else self._warm.reused
            self._environment.started(self.name, gang.members, reused or "fresh")
            ranks = Ranks(gang, self._settings.cluster)
            requests, change = fit_requests(self._plan.requests, ranks)
            if reused:
                self._ledger.print(f"# Gang     : {reused}")
            self._introduce(ranks, change)
            self._ledger.expect(self._steps(cases, requests, ranks.device_kind), self.name)
            # On exit, drop the steps that this gang didn't reach.
            stack.callback(self._ledger.expect, [], self.name)
            measurement = Measurement(
                ranks,
                self._settings,
                attempt=self._attempt,
                island=self.name,
                begin=self._begin,
                announce=self._announce,
            )
            run = self._plan.kind.runner(measurement, requests, self._plan.winners_path)
            for case in cases:
                for rows in run(case, self._ledger.rows(self.name)):
                    self._ledger.take(rows, gang.members)
            if to_soak := self._to_soak():
                earlier = self._ledger.points(self.name)
                Soak(measurement, requests[0], earlier, self._ledger.take_slice).run(to_soak)

    def _gang(self, stacks_path: Path) -> contextlib.AbstractContextManager[Gang]:
        """A fresh gang for an island; otherwise the gang of the multirun's previous point, if it can be reused."""
        num_ranks = self._plan.cases[0].num_ranks
        if self._island is None:
            return self._warm.gang(num_ranks, stacks_path)
        return Gang.start(
            self._cluster, self._settings.cluster, num_ranks, island=self._island, stacks_path=stacks_path
        )

    def _steps(self, cases: Sequence[Case], requests: Sequence[Request], device_kind: str) -> list[Step]:
        """All steps of a gang, assuming that none is skipped."""
        steps = [s for case in cases for s in self._plan.kind.steps(case, requests, self._settings, device_kind)]
        left_s = self._soak_left_s()
        return [*steps, soak_step(left_s)] if left_s else steps

    def _introduce(self, ranks: Ranks, change: str | None) -> None:
        """Print machine, versions and cases; for a later gang, only the machine."""
        more = [f"# {change}"] if change else []
        first = header_lines(ranks, self._plan.cases, self.name)
        later = device_lines(ranks, self.name)
        self._ledger.introduce([*first, *more], [*later, *more], islands=self._island is not None)

    def _begin(self, step: Step, text: str, best: Best | None) -> None:
        self._note_restart()
        self._measuring = step.case
        self._ledger.begin(step, self._of_island(text), best, self.name)

    def _announce(self, text: str) -> None:
        self._ledger.announce(self._of_island(text))

    def _of_island(self, text: str) -> str:
        return f"{self.name}: {text}" if self.name else text

    def _note_restart(self) -> None:
        """Report the time that a restart took, at the first step after the loss."""
        lost, self._lost = self._lost, None
        if lost is None:
            return
        took_s = time.monotonic() - lost.seen_s
        self._ledger.restarted(took_s)
        self._environment.restarted(self.name, took_s)
        self._announce(f"Attempt {self._attempt} begins {took_s:.1f} s after the loss was noticed")

    def _stacks_path(self) -> Path:
        # An island's name may contain a slash.
        of_island = f"{self.name.replace('/', '_')}-" if self.name else ""
        return self._plan.run_dir.path / f"stacks-{of_island}{self._attempt}.txt"
