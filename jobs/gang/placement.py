"""A placement group for a gang: reserved with a time limit, and released in every case."""

from __future__ import annotations

import logging
import time

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jobs.errors import NoCapacity
from jobs.gang.answers import Answers
from jobs.gang.shape import Node, Shape, describe

logger = logging.getLogger(__name__)

# Label that Ray sets on each node.
_NODE_LABEL = "ray.io/node-id"


class Placement:
    """Resources reserved for a gang."""

    def __init__(self, group: PlacementGroup, shape: Shape) -> None:
        self._group = group
        self.shape = shape

    @classmethod
    def reserve(cls, nodes: tuple[Node, ...], shape: Shape, *, timeout_s: float) -> Placement:
        """Reserve the bundles of ``shape``.

        Raises:
          NoCapacity: they aren't free within ``timeout_s`` seconds.
        """
        where = [{_NODE_LABEL: node_id} for node_id in shape.node_ids] or None
        placement = cls(placement_group(shape.bundles, strategy=shape.strategy, bundle_label_selector=where), shape)
        try:
            answer = Answers({0: placement._group.ready()}).next(time.monotonic() + timeout_s)
            if answer and not answer.error:
                return placement
            why = f"Ray says: {answer.error}" if answer else f"not free within {timeout_s:g} s"
            raise NoCapacity(
                f"cluster.num_ranks={shape.num_ranks} needs {shape}, {why}; free now: {_free(shape)}; "
                f"the cluster has {describe(nodes)}"
            )
        except BaseException:
            placement.remove()
            raise

    def strategies(self) -> list[PlacementGroupSchedulingStrategy]:
        """Scheduling strategy of each rank's actor, bundle by bundle."""
        return [
            PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            for index, count in enumerate(self.shape.ranks_per_bundle)
            for _ in range(count)
        ]

    def remove(self) -> None:
        """Release all resources; Ray kills what still runs there."""
        try:
            remove_placement_group(self._group)
        except Exception as error:
            logger.warning("the placement group can't be removed (Ray drops it when the job ends): %s", error)


def _free(shape: Shape) -> str:
    free = ray.available_resources().get(shape.resource, 0.0)
    return f"{free:g} {shape.resource}s"
