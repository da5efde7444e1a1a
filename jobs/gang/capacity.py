"""Wait for the hosts that a job needs: some join late, some come back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from jobs.config.schema import ClusterSettings
from jobs.errors import NoCapacity
from jobs.gang.cluster import Cluster
from jobs.gang.local_ray import max_cpu_ranks
from jobs.gang.shape import Node, plan, wanted_ranks
from jobs.signals import raise_if_stopped

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.5


def default_num_ranks(cluster: Cluster, settings: ClusterSettings) -> int:
    """``cluster.num_ranks``; if null, one rank per GPU (``gpus_per_host`` on each host), or at most 4 CPU ranks.

    Raises:
      UsageError: ``num_ranks`` is no multiple of ``gpus_per_host``.
      NoCapacity: the cluster lacks that many GPUs or CPUs, free or not, for ``placement_timeout_s`` seconds.
      JobStopped: a signal arrived.
    """

    def fit(nodes: Sequence[Node]) -> int:
        num_ranks = wanted_ranks(nodes, settings)
        if cluster.is_local and not cluster.on_gpus and num_ranks > max_cpu_ranks():
            raise NoCapacity(
                f"cluster.num_ranks={num_ranks} must be at most {max_cpu_ranks()} on the CPUs of a local Ray"
            )
        plan(nodes, settings, num_ranks)
        return num_ranks

    return await_capacity(cluster, settings.placement_timeout_s, fit)


def await_capacity[T](cluster: Cluster, timeout_s: float, fit: Callable[[Sequence[Node]], T]) -> T:
    """Call ``fit`` with the cluster's nodes, again while it raises ``NoCapacity`` and others may join.

    Raises:
      NoCapacity: they aren't enough within ``timeout_s`` seconds. A local Ray raises at once, as no node can join.
      JobStopped: a signal arrived.
    """
    deadline = time.monotonic() + timeout_s
    waiting = False
    while True:
        try:
            return fit(cluster.nodes)
        except NoCapacity as error:
            if cluster.is_local or time.monotonic() >= deadline:
                raise
            if not waiting:
                logger.warning("waiting up to cluster.placement_timeout_s=%g s for nodes to join: %s", timeout_s, error)
                waiting = True
        raise_if_stopped()
        time.sleep(_INTERVAL_S)
        cluster.refresh()
