"""A gang and a connection to Ray that the points of a multirun share."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.errors import GangLost, UsageError
from jobs.gang.closing import Closing

# Ray takes seconds to import; do so later, when a signal already leads to a RESULT line.
if TYPE_CHECKING:
    from jobs.config.schema import ClusterSettings
    from jobs.gang.cluster import Cluster
    from jobs.gang.gang import Gang
    from jobs.gang.messages import Place

logger = logging.getLogger(__name__)


class WarmGang(Closing):
    """Connects, starts gangs, and keeps both for the next point; a context manager that ends what is kept.

    After an error the gang is ended; after any but a ``UsageError`` the connection too. So no point inherits the
    effects of an error.
    """

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._gang: Gang | None = None
        self._settings: ClusterSettings | None = None
        self._others: tuple[Hashable, ...] = ()
        # Places of gangs whose end was requested but not awaited.
        self._remains: Sequence[Place] = ()
        self._point: str | None = None
        self._keeps = False
        self._connect_s = 0.0
        self._origin: str | None = None
        self._start_s = 0.0
        self.reused: str | None = None
        """Origin of the present gang and the time of its start; ``None`` if it is fresh."""

    @contextlib.contextmanager
    def connected(self, settings: ClusterSettings, *others: Hashable, point: str | None = None) -> Iterator[Cluster]:
        """Connect to the cluster that ``settings`` name, or reuse the kept one if all arguments are the same.

        Args:
          settings: cluster settings; a running gang can't change any of them.
          *others: anything else that a running gang can't change.
          point: number of the point; ``None`` outside a multirun, where nothing is kept.

        Raises:
          UsageError, InfrastructureError, JobStopped: as ``jobs.gang.cluster.connect``.
        """
        from jobs.gang.cluster import connect

        self._point, self._keeps = point, point is not None and settings.reuse_gang
        self.reused = None
        try:
            if (self._settings, self._others) != (settings, others):
                self.close()
            if self._cluster is None:
                began_s = time.monotonic()
                self._cluster = connect(settings)
                self._settings, self._others = settings, others
                self._connect_s = time.monotonic() - began_s
            else:
                self._cluster.refresh()
            yield self._cluster
        except BaseException as error:
            # A usage error is found before the gang does anything and leaves it intact.
            if not (self._keeps and isinstance(error, UsageError)):
                self.close()
            raise
        if not self._keeps:
            self.close()

    @contextlib.contextmanager
    def gang(self, num_ranks: int, stacks_path: Path) -> Iterator[Gang]:
        """Provide the kept gang if it has ``num_ranks`` ranks and all answer, else a new one; call while connected.

        ``stacks_path`` is the file for the stacks of a gang that hangs.

        Raises:
          UsageError, InfrastructureError, RankFailed: as ``Gang.start``.
        """
        gang = self._take(num_ranks) or self._start(num_ranks, stacks_path)
        gang.stacks_path = stacks_path
        try:
            yield gang
        except GangLost:
            # The caller waits for its end before it starts another one.
            gang.close()
            raise
        except BaseException:
            self._end(gang)
            raise
        if self._keeps:
            self._gang = gang
        else:
            self._end(gang)

    def close(self) -> None:
        """End the kept gang and the connection, if any; takes 30 s at most."""
        if self._gang:
            self._end(self._gang)
        cluster, self._cluster = self._cluster, None
        if cluster:
            cluster.close()
            if cluster.is_local:
                # All processes end with a local Ray.
                self._remains = ()

    def _take(self, num_ranks: int) -> Gang | None:
        """Return the kept gang if it suits; else end it."""
        if self._gang is None:
            return None
        if len(self._gang.members) == num_ranks and self._gang.answers():
            gang, self._gang = self._gang, None
            took_s = self._connect_s + self._start_s
            self.reused = f"gang of point {self._origin} reused; its start took {took_s:.1f} s"
            return gang
        logger.warning("the gang of point %s can't be reused: its size differs or a rank doesn't answer", self._origin)
        self._end(self._gang)
        return None

    def _start(self, num_ranks: int, stacks_path: Path) -> Gang:
        from jobs.gang.gang import Gang
        from jobs.gang.remains import await_gone

        assert self._cluster
        assert self._settings
        if self._remains:
            await_gone(self._cluster, self._remains)
            self._remains = ()
        began_s = time.monotonic()
        gang = Gang.start(self._cluster, self._settings, num_ranks, stacks_path=stacks_path)
        self._origin, self._start_s, self.reused = self._point, time.monotonic() - began_s, None
        return gang

    def _end(self, gang: Gang) -> None:
        gang.close()
        self._gang, self._remains = None, gang.places
