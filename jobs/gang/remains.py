"""Remains of a killed gang: processes and GPU memory that must be gone before a fresh gang starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.errors import InfrastructureError
from jobs.gang.answers import Answers
from jobs.gang.cluster import Cluster
from jobs.gang.messages import Place
from jobs.gang.shape import Node

logger = logging.getLogger(__name__)

# Ray declares an unreachable node dead after some 65 s.
TIMEOUT_S = 100.0
# Limit for a node's processes to end and its GPU memory to be free.
NODE_TIMEOUT_S = 20.0
_INTERVAL_S = 1.0
# Tolerated growth of a GPU's memory use from other causes.
_SLACK_BYTES = 64 * 2**20
Remains = tuple[list[int], list[str]]
"""Ids of processes that don't end, and GPUs whose memory isn't free."""


def await_gone(cluster: Cluster, places: Sequence[Place], *, hosts: Collection[str] | None = None) -> None:
    """Wait until the gang that ran at ``places`` is gone and every node that Ray calls alive answers.

    A node that doesn't answer may be cut off, and Ray would still start ranks there: it must answer or be declared dead
    first. GPU memory that isn't released only causes a warning, as another job may use it. With ``hosts``, only their
    nodes must answer.

    Raises:
      InfrastructureError: a process outlives SIGKILL, or a node neither answers nor is declared dead.
      JobStopped: a signal arrived.
    """
    deadline = time.monotonic() + TIMEOUT_S
    cluster.refresh()
    nodes = dict(enumerate(node for node in cluster.nodes if hosts is None or node.host in hosts))
    answers = Answers({index: _ask(node, places) for index, node in nodes.items()})
    waiting = set(nodes)
    while waiting:
        answer = answers.next(min(time.monotonic() + _INTERVAL_S, deadline))
        if answer is None:
            if time.monotonic() >= deadline:
                named = ", ".join(f"{nodes[i].host} ({nodes[i].ip})" for i in sorted(waiting))
                raise InfrastructureError(f"no answer within {TIMEOUT_S:g} s from {named}, which Ray still calls alive")
            cluster.refresh()
            alive = {node.node_id for node in cluster.nodes}
            waiting = {index for index in waiting if nodes[index].node_id in alive}
            continue
        waiting.discard(answer.key)
        # After an error the node is dead, with all that ran on it.
        if answer.error is None:
            _judge(nodes[answer.key], *answer.value)
    cluster.refresh()


def _judge(node: Node, pids: Sequence[int], gpus: Sequence[str]) -> None:
    if pids:
        raise InfrastructureError(f"host {node.host}: processes {pids} of the killed gang outlive SIGKILL")
    if gpus:
        logger.warning("host %s: GPU memory is still in use after the gang's end: %s", node.host, "; ".join(gpus))


def _ask(node: Node, places: Sequence[Place]) -> ray.ObjectRef[Remains]:
    # By host, not node: a restarted raylet has a new id and doesn't know what the old one started.
    here = [place for place in places if place.host == node.host]
    gpus = {place.gpu.uuid: place.gpu.memory_used_bytes or 0 for place in here if place.gpu}
    affinity = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    look = ray.remote(num_cpus=0, max_retries=0)(_make_look()).options(scheduling_strategy=affinity)
    return look.remote([place.pid for place in here], gpus, NODE_TIMEOUT_S, _SLACK_BYTES)


def _make_look() -> Callable[[list[int], dict[str, int], float, int], Remains]:
    """Build a nested function, which is sent by value: a node may lack this project's code."""

    def look(pids: list[int], gpus: dict[str, int], timeout_s: float, slack_bytes: int) -> Remains:
        import contextlib
        import os
        import signal
        import time
        from pathlib import Path

        def runs(pid: int) -> bool:
            try:
                # The pid may be reused; a zombie's command line is empty.
                return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
            except OSError:
                return False

        def taken(uuid: str, used_before: int) -> int:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            # Version 2 excludes the driver's own reserve, as in ``jobs.health.nvml``.
            used: int = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
            return max(used - used_before - slack_bytes, 0)

        deadline = time.monotonic() + timeout_s
        while True:
            left = [pid for pid in pids if runs(pid)]
            full = [f"{uuid} by {taken(uuid, used) >> 20} MiB" for uuid, used in gpus.items() if taken(uuid, used)]
            if not (left or full) or time.monotonic() >= deadline:
                return left, full
            for pid in left:
                # The raylet should have killed it but may be dead itself.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)

    return look
