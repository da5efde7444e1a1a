"""What the points of a multirun hand on: the connection to Ray, and the gang."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from jobs.errors import GangLost, UsageError

# Ray takes seconds to import: later, when a signal already ends in a RESULT line.
if TYPE_CHECKING:
    from jobs.config.schema import ClusterSettings
    from jobs.gang.cluster import Cluster
    from jobs.gang.gang import Gang
    from jobs.gang.messages import Place

logger = logging.getLogger(__name__)


class WarmGang:
    """Connects, starts gangs, and keeps both for the next point; a context manager that ends what is kept.

    A gang in which something went wrong is ended, and the connection with it unless the mistake is the user's: no point
    meets what an error may have left behind.
    """

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._gang: Gang | None = None
        self._settings: ClusterSettings | None = None
        self._others: tuple[Hashable, ...] = ()
        # Of gangs that were told to end, where nobody has waited for it yet.
        self._remains: Sequence[Place] = ()
        self._point: str | None = None
        self._keeps = False
        self._connect_s = 0.0
        self._origin: str | None = None
        self._start_s = 0.0
        self.reused: str | None = None
        """Where the present gang is from, and what its start took; ``None`` where it is fresh."""

    @contextlib.contextmanager
    def connected(self, settings: ClusterSettings, *others: Hashable, point: str | None = None) -> Iterator[Cluster]:
        """The cluster that ``settings`` name: the one that was kept, where all that made it and the gang is the same.

        Args:
          settings: of the cluster; a gang has all of them in it.
          *others: whatever else a gang can't change once it runs.
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
            # A mistake that is found before the gang does anything leaves it as good as it was.
            if not (self._keeps and isinstance(error, UsageError)):
                self.close()
            raise
        if not self._keeps:
            self.close()

    @contextlib.contextmanager
    def gang(self, num_ranks: int, stacks_path: Path) -> Iterator[Gang]:
        """A gang of so many ranks, while connected: the one that was kept, where all its ranks answer, else a new one.

        ``stacks_path`` is the file for the stacks of a gang that hangs.

        Raises:
          UsageError, InfrastructureError, RankFailed: as ``Gang.start``.
        """
        gang = self._take(num_ranks) or self._start(num_ranks, stacks_path)
        gang.stacks_path = stacks_path
        try:
            yield gang
        except GangLost:
            # Whoever starts another one waits for its end.
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
        """End the gang and the connection, where there are any; takes 30 s at most."""
        if self._gang:
            self._end(self._gang)
        cluster, self._cluster = self._cluster, None
        if cluster:
            cluster.close()
            if cluster.is_local:
                # All its processes end with it.
                self._remains = ()

    def __enter__(self) -> WarmGang:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, num_ranks: int) -> Gang | None:
        """The gang that was kept, if it is what is wanted; else it is ended."""
        if self._gang is None:
            return None
        if len(self._gang.members) == num_ranks and self._gang.answers():
            gang, self._gang = self._gang, None
            took_s = self._connect_s + self._start_s
            self.reused = f"gang of point {self._origin} reused; its start took {took_s:.1f} s"
            return gang
        logger.warning("the gang of point %s is of no use to this one", self._origin)
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
