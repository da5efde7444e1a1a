"""The gangs of a job or of an island of it, one after the other: where one is lost, a fresh one takes up the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmkernel import cost
from jobs.config.schema import Settings
from jobs.driver.benchmark import Benchmark
from jobs.driver.domains import settle_implementation
from jobs.driver.ledger import Ledger
from jobs.driver.soak import Soak, soak_s
from jobs.errors import GangLost
from jobs.gang.cluster import Cluster
from jobs.gang.gang import Gang
from jobs.gang.island import Island
from jobs.gang.neighbours import layout
from jobs.gang.remains import await_gone
from jobs.gang.warm_gang import WarmGang
from jobs.records.member import Member
from jobs.records.row import Case, Row
from jobs.results.analysis.best import Best
from jobs.results.disk.run_dir import RunDir
from jobs.results.terminal import table
from jobs.results.terminal.steps import Step, soak_step

logger = logging.getLogger(__name__)


class Attempts:
    """What these gangs share, and how they follow one another.

    Args:
      cluster: where they run.
      warm: what starts those of a job without islands, connected to that cluster; its gang may be there already.
      settings: of the job.
      cases: all of them; those whose rows are in ``ledger`` are done.
      ledger: gets the rows and the restarts.
      run_dir: where stacks and the environment go.
      environment: what environment.json says.
      about: the part of it that this completes: ``attempt`` and ``members`` of the last gang, ``earlier_attempts``.
      kind: what is done with each case.
      island: whose gangs these are; ``None``: the job's.
    """

    def __init__(
        self,
        cluster: Cluster,
        warm: WarmGang,
        settings: Settings,
        cases: Sequence[Case],
        *,
        ledger: Ledger,
        run_dir: RunDir,
        environment: dict[str, Any],
        about: dict[str, Any],
        kind: type[Benchmark],
        island: Island | None = None,
    ) -> None:
        self._cluster = cluster
        self._warm = warm
        self._settings = settings
        self._cases = cases
        self._kind = kind
        self._ledger = ledger
        self._run_dir = run_dir
        self._environment = environment
        self._about = about
        self._island = island
        self.name = island.name if island else None
        """Of the island."""
        self._restarts = 0
        self._lost: GangLost | None = None

    def run(self) -> None:
        """Measure every case that isn't done.

        Raises:
          GangLost: once more than ``cluster.max_restarts`` allows.
          NoCapacity: the cluster no longer has, or never had, what a gang needs.
          UsageError, RankFailed, InfrastructureError: of the program; a fresh gang would meet the same.
        """
        max_restarts = self._settings.cluster.max_restarts
        while (cases := self._unfinished()) or self._to_soak():
            with self._ledger.lock:
                self._about["attempt"] = self._about.get("attempt", 0) + 1
            try:
                self._measure(cases)
                continue
            except GangLost as error:
                self._lost = error
            self._retire(ended=str(self._lost))
            if self._restarts == max_restarts:
                raise self._lost
            self._restarts += 1
            self._ledger.restarts()
            first_line = str(self._lost).splitlines()[0]
            of_island = f" of island {self.name}" if self.name else ""
            logger.warning("restart %d of %d%s: %s", self._restarts, max_restarts, of_island, first_line)
            self._ledger.print(f"# Restart {self._restarts} of {max_restarts}{of_island}: {first_line}")
            await_gone(self._cluster, self._lost.places, hosts=self._island.hosts if self._island else None)

    def _unfinished(self) -> list[Case]:
        return self._kind.unfinished(self._settings, self._cases, self._ledger.rows(self.name))

    def _to_soak(self) -> list[Case]:
        """Cases to go on with; those that failed their check aren't soaked."""
        if not self._soak_left_s():
            return []
        targets = [row for row in self._ledger.rows(self.name) if not row.is_baseline]
        good = {row.case for row in targets if row.check and not row.failed}
        return [case for case in self._cases if case in good]

    def _soak_left_s(self) -> float:
        left_s = soak_s(self._settings) - sum(point.seconds for point in self._ledger.points(self.name))
        return left_s if left_s >= 1e-6 else 0.0

    def _measure(self, cases: Sequence[Case]) -> None:
        """One gang, from its start to its end."""
        settings, attempt = self._settings, self._about["attempt"]
        with contextlib.ExitStack() as stack:
            gang = stack.enter_context(self._gang(self._stacks_path(attempt)))
            reused = None if self._island else self._warm.reused
            settings, settled = settle_implementation(settings, gang.members)
            self._save(members=[dataclasses.asdict(member) for member in gang.members], gang=reused or "fresh")
            if reused:
                self._ledger.print(f"# Gang     : {reused}")
            self._introduce(gang, [f"# {settled}"] if settled else [])
            self._ledger.expect(self._plan(cases, settings, gang.members[0].device_kind), self.name)
            # What this gang won't have come to, when it ends.
            stack.callback(self._ledger.expect, [], self.name)
            benchmark = self._kind(
                gang, settings, attempt, island=self.name, report=self._begin, announce=self._announce
            )
            for case in cases:
                for rows in benchmark.run(case, self._ledger.rows(self.name)):
                    self._ledger.take(rows, gang.members)
            if to_soak := self._to_soak():
                self._soak(benchmark, settings, to_soak)

    def _gang(self, stacks_path: Path) -> contextlib.AbstractContextManager[Gang]:
        """A fresh one for an island; else that of the point of a multirun before this one, where it can be had."""
        num_ranks = self._cases[0].num_ranks
        if self._island is None:
            return self._warm.gang(num_ranks, stacks_path)
        return Gang.start(
            self._cluster, self._settings.cluster, num_ranks, island=self._island, stacks_path=stacks_path
        )

    def _plan(self, cases: Sequence[Case], settings: Settings, device_kind: str) -> list[Step]:
        """What a gang comes to, if nothing is skipped."""
        plan = [step for case in cases for step in self._kind.steps(case, settings, device_kind)]
        left_s = self._soak_left_s()
        return [*plan, soak_step(left_s)] if left_s else plan

    def _soak(self, benchmark: Benchmark, settings: Settings, cases: Sequence[Case]) -> None:
        earlier = self._ledger.points(self.name)
        Soak(
            benchmark,
            settings,
            earlier_s=sum(point.seconds for point in earlier),
            iterations=lambda case: sum(point.iterations for point in earlier if point.case == case),
            report=lambda text: self._begin(soak_step(), text, None),
            record=self._ledger.take_slice,
        ).run(cases)

    def _begin(self, step: Step, text: str, best: Best | None) -> None:
        self._note_restart()
        self._ledger.begin(step, self._told(text), best, self.name)

    def _announce(self, text: str) -> None:
        self._ledger.announce(self._told(text))

    def _told(self, text: str) -> str:
        return f"{self.name}: {text}" if self.name else text

    def _note_restart(self) -> None:
        """The first step after a loss begins: say what the restart cost."""
        lost, self._lost = self._lost, None
        if lost is None:
            return
        took_s = time.monotonic() - lost.seen_s
        self._ledger.restarted(took_s)
        with self._ledger.lock:
            self._about["earlier_attempts"][-1]["restart_s"] = round(took_s, 1)
        self._save()
        self._announce(f"Attempt {self._about['attempt']} begins {took_s:.1f} s after the loss was found out")

    def _retire(self, *, ended: str) -> None:
        """The members of a gang that is gone stay known, by its attempt."""
        with self._ledger.lock:
            gone = {"attempt": self._about["attempt"], "members": self._about.pop("members", []), "ended": ended}
            self._about.setdefault("earlier_attempts", []).append(gone)
        self._save()

    def _save(self, **changes: Any) -> None:
        """Write environment.json, with these changes of this part of it."""
        with self._ledger.lock:
            self._about.update(changes)
            self._run_dir.write_environment(self._environment)

    def _stacks_path(self, attempt: int) -> Path:
        # An island's name may have a slash.
        of_island = f"{self.name.replace('/', '_')}-" if self.name else ""
        return self._run_dir.path / f"stacks-{of_island}{attempt}.txt"

    def _introduce(self, gang: Gang, more: Sequence[str]) -> None:
        """Machine, versions and all cases; of a later gang the machine is all that may differ."""
        members = [dataclasses.asdict(member) for member in gang.members]
        later = [*table.device_lines(members, self.name), *more]
        self._ledger.introduce([*self._header(gang, members), *more], later, islands=self._island is not None)

    def _header(self, gang: Gang, members: Sequence[dict[str, Any]]) -> list[str]:
        doing, timeout_s = "reading links", self._settings.cluster.step_timeout_s
        links = ", ".join(sorted(set(gang.call("links", timeout_s=timeout_s, doing=doing))))
        device_kind, hosts = gang.members[0].device_kind, layout(gang.members, self._settings.cluster)
        # Over several hosts the model of one NVLink doesn't hold.
        model = cost.device_model(device_kind) if hosts.num_hosts == 1 else None
        expected: list[tuple[Case, cost.ExpectedTime | None]] = []
        for case in self._cases:
            sizes = {"m_shard": case.m_shard, "k": case.k, "n_shard": case.n_shard, "num_ranks": case.num_ranks}
            expected.append((case, cost.expected_time(model, **sizes, dtype=case.dtype) if model else None))
        versions = gang.members[0].versions
        header = table.header_lines(members=members, versions=versions, links=links, cases=expected, island=self.name)
        return [*header, *table.host_lines(hosts, self._cases, device_kind)]


def attempts_of(earlier: dict[str, Any]) -> dict[str, Any]:
    """What an environment.json begins with that follows ``earlier``, the one of the job that is continued."""
    if "attempt" not in earlier:
        return {}
    last = {"attempt": earlier["attempt"], "members": earlier.get("members", []), "ended": "the job ended"}
    known = {attempt["attempt"]: attempt for attempt in [last, *earlier.get("earlier_attempts", ())]}
    return {"attempt": earlier["attempt"], "earlier_attempts": [known[number] for number in sorted(known)]}


def members_of(row: Row, environment: dict[str, Any]) -> tuple[Member, ...]:
    """The ranks of the gang that measured ``row``, as far as ``environment``, an environment.json, knows."""
    for part in environment.get("islands", [environment]):
        for attempt in [part, *part.get("earlier_attempts", ())]:
            if part.get("island") == row.island and attempt.get("attempt") == row.attempt:
                return tuple(Member(**member) for member in attempt.get("members", ()))
    return ()
