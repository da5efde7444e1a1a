"""One job's gangs, one after the other: where one is lost, a fresh one takes up the cases that are left."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from cmkernel import cost
from jobs.benchmark import Benchmark
from jobs.domains import settle_implementation
from jobs.errors import GangLost
from jobs.gang.cluster import Cluster
from jobs.gang.gang import Gang
from jobs.gang.member import Member
from jobs.gang.neighbours import layout
from jobs.gang.remains import await_gone
from jobs.gang.warm_gang import WarmGang
from jobs.records import Case
from jobs.results import table
from jobs.results.best import Best
from jobs.results.journal import Journal
from jobs.results.outcome import Outcome
from jobs.results.progress import Progress
from jobs.results.run_dir import RunDir
from jobs.results.steps import Step
from jobs.settings import Settings

logger = logging.getLogger(__name__)


class Attempts:
    """What all gangs of a job share, and how they follow one another.

    Args:
      cluster: where they run.
      warm: what starts them, connected to that cluster; its gang may be there already.
      settings: of the job.
      cases: all of them; those whose rows are in ``outcome`` are done.
      journal: of the run directory, open.
      run_dir: where stacks and the environment go.
      outcome: gets the rows and the restarts; its W&B run has been started.
      kind: what is done with each case.
      about: what environment.json says, which this completes: ``attempt`` and ``members`` of the last gang,
        ``earlier_attempts``.
    """

    def __init__(
        self,
        cluster: Cluster,
        warm: WarmGang,
        settings: Settings,
        cases: Sequence[Case],
        *,
        kind: type[Benchmark],
        journal: Journal,
        run_dir: RunDir,
        outcome: Outcome,
        about: dict[str, Any],
    ) -> None:
        self._cluster = cluster
        self._warm = warm
        self._settings = settings
        self._cases = cases
        self._kind = kind
        self._journal = journal
        self._run_dir = run_dir
        self._outcome = outcome
        self._about = about
        self._lost: GangLost | None = None

    def run(self) -> None:
        """Measure every case that isn't done.

        Raises:
          GangLost: once more than ``cluster.max_restarts`` allows.
          NoCapacity: the cluster no longer has, or never had, what a gang needs.
          UsageError, RankFailed, InfrastructureError: of the program; a fresh gang would meet the same.
        """
        max_restarts = self._settings.cluster.max_restarts
        while cases := self._unfinished():
            self._about["attempt"] = self._about.get("attempt", 0) + 1
            try:
                self._measure(cases)
                continue
            except GangLost as error:
                self._lost = error
            self._retire(ended=str(self._lost))
            if self._outcome.restarts == max_restarts:
                raise self._lost
            self._outcome.restarts += 1
            first_line = str(self._lost).splitlines()[0]
            logger.warning("restart %d of %d: %s", self._outcome.restarts, max_restarts, first_line)
            print(f"# Restart {self._outcome.restarts} of {max_restarts}: {first_line}", flush=True)
            await_gone(self._cluster, self._lost.places)

    def _unfinished(self) -> list[Case]:
        return self._kind.unfinished(self._settings, self._cases, self._outcome.rows)

    def _measure(self, cases: Sequence[Case]) -> None:
        """One gang, from its start to its end."""
        outcome, settings, attempt = self._outcome, self._settings, self._about["attempt"]
        assert outcome.wandb is not None
        with contextlib.ExitStack() as stack:
            stacks_path = self._run_dir.path / f"stacks-{attempt}.txt"
            gang = stack.enter_context(self._warm.gang(cases[0].num_ranks, stacks_path))
            settings, settled = settle_implementation(settings, gang.members)
            self._about["members"] = [dataclasses.asdict(member) for member in gang.members]
            self._about["gang"] = self._warm.reused or "fresh"
            self._run_dir.write_environment(self._about)
            if self._warm.reused:
                print(f"# Gang     : {self._warm.reused}", flush=True)
            for line in [*self._header(gang), *([f"# {settled}"] if settled else [])]:
                print(line, flush=True)
            device_kind = gang.members[0].device_kind
            plan = [step for case in cases for step in self._kind.steps(case, settings, device_kind)]
            progress = stack.enter_context(Progress(plan, sys.stdout))

            def report(step: Step, text: str, best: Best | None) -> None:
                self._note_restart(progress)
                logger.info("%s", text)
                progress.begin(step, text, best)

            def announce(text: str) -> None:
                logger.info("%s", text)
                progress.print(f"# {text}")

            benchmark = self._kind(gang, settings, attempt, report=report, announce=announce)
            for case in cases:
                for row in benchmark.run(case, outcome.rows):
                    self._journal.append(row)
                    outcome.rows.append(row)
                    outcome.wandb.log_row(row, gang.members)
                    progress.print(table.row_line(row))

    def _note_restart(self, progress: Progress) -> None:
        """The first step after a loss begins: say what the restart cost."""
        lost, self._lost = self._lost, None
        if lost is None:
            return
        took_s = time.monotonic() - lost.seen_s
        self._outcome.restart_s += took_s
        self._about["earlier_attempts"][-1]["restart_s"] = round(took_s, 1)
        self._run_dir.write_environment(self._about)
        text = f"Attempt {self._about['attempt']} begins {took_s:.1f} s after the loss was found out"
        logger.info("%s", text)
        progress.print(f"# {text}")

    def _retire(self, *, ended: str) -> None:
        """The members of a gang that is gone stay known, by its attempt."""
        gone = {"attempt": self._about["attempt"], "members": self._about.pop("members", []), "ended": ended}
        self._about.setdefault("earlier_attempts", []).append(gone)
        self._run_dir.write_environment(self._about)

    def _header(self, gang: Gang) -> list[str]:
        """Machine, versions and all cases; of a later gang the machine is all that may have changed."""
        members = [dataclasses.asdict(member) for member in gang.members]
        if self._outcome.restarts:
            return table.device_lines(members)
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
        header = table.header_lines(members=members, versions=versions, links=links, cases=expected)
        return [*header, *table.host_lines(hosts, self._cases, device_kind), *table.column_lines()]


def attempts_of(earlier: dict[str, Any]) -> dict[str, Any]:
    """What an environment.json begins with that follows ``earlier``, the one of the job that is continued."""
    if "attempt" not in earlier:
        return {}
    last = {"attempt": earlier["attempt"], "members": earlier.get("members", []), "ended": "the job ended"}
    known = {attempt["attempt"]: attempt for attempt in [last, *earlier.get("earlier_attempts", ())]}
    return {"attempt": earlier["attempt"], "earlier_attempts": [known[number] for number in sorted(known)]}


def members_by_attempt(about: dict[str, Any]) -> dict[int, tuple[Member, ...]]:
    """The ranks of each gang that ``about``, an environment.json, knows."""
    attempts = [about, *about.get("earlier_attempts", ())]
    return {
        attempt["attempt"]: tuple(Member(**member) for member in attempt.get("members", ()))
        for attempt in attempts
        if "attempt" in attempt
    }
