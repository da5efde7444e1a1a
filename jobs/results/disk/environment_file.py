"""Writer of ``environment.json``, where each gang of a job records its start and end."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

from jobs.records.environment import Environment, GangsRecord
from jobs.records.member import Member
from jobs.results.disk.run_dir import RunDir


class EnvironmentFile:
    """``environment.json`` of a run directory; the gangs of several islands may write at the same time.

    Every method that writes raises ``InfrastructureError`` if the file can't be written.
    """

    def __init__(self, run_dir: RunDir, environment: Environment) -> None:
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self.environment = environment
        run_dir.write_environment(environment)

    def begin(self, island: str | None) -> int:
        """Number the next gang of an island, or of a job without islands; nothing is written yet."""
        with self._lock:
            return self._replace(island, lambda gangs: dataclasses.replace(gangs, attempt=gangs.attempt + 1)).attempt

    def started(self, island: str | None, members: Sequence[Member], origin: str) -> None:
        """Record the ranks of the gang, and its origin: ``fresh``, or the point of a multirun that started it."""
        self._change(island, lambda gangs: dataclasses.replace(gangs, members=tuple(members), gang=origin))

    def lost(self, island: str | None, reason: str) -> None:
        """Record why the gang ended, and keep its members among the earlier gangs."""
        self._change(island, lambda gangs: gangs.retired(reason))

    def restarted(self, island: str | None, after_s: float) -> None:
        """Record the seconds from the last loss to the first step of the next gang."""

        def change(gangs: GangsRecord) -> GangsRecord:
            *earlier, last = gangs.earlier_attempts
            last = dataclasses.replace(last, restart_s=round(after_s, 1))
            return dataclasses.replace(gangs, earlier_attempts=(*earlier, last))

        self._change(island, change)

    def _change(self, island: str | None, change: Callable[[GangsRecord], GangsRecord]) -> None:
        with self._lock:
            self._replace(island, change)
            self._run_dir.write_environment(self.environment)

    def _replace(self, island: str | None, change: Callable[[GangsRecord], GangsRecord]) -> GangsRecord:
        gangs = {one.island: one for one in self.environment.gangs}
        gangs[island] = change(gangs[island])
        self.environment = dataclasses.replace(self.environment, gangs=tuple(gangs.values()))
        return gangs[island]
