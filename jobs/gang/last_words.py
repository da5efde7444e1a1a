"""Last words of a rank that died: the end of its output, and processes that the kernel killed for lack of memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.gang.answers import Answers
from jobs.gang.messages import Place

# Limit for the start of a process on the rank's node.
_TIMEOUT_S = 10.0
_MAX_BYTES, _MAX_LINES = 600, 4


def last_words(place: Place) -> str:
    """Text for the error of the rank that died at ``place``; empty if its node doesn't answer."""
    look = _make_look()
    arguments = (place.stderr_path, _MAX_BYTES)
    if place.node_id == ray.get_runtime_context().get_node_id():
        lines, kills = look(*arguments)
    else:
        affinity = NodeAffinitySchedulingStrategy(place.node_id, soft=False)
        remote = ray.remote(num_cpus=0, max_retries=0)(look).options(scheduling_strategy=affinity)
        answer = Answers({0: remote.remote(*arguments)}).next(time.monotonic() + _TIMEOUT_S)
        if answer is None or answer.error is not None:
            return ""
        lines, kills = answer.value
    text = f"; its last lines: {' / '.join(lines[-_MAX_LINES:])}" if lines else ""
    if kills is not None and place.oom_kills is not None and kills > place.oom_kills:
        text += (
            f"; since it started, the kernel of {place.host} has killed {kills - place.oom_kills} processes because "
            "memory ran out: use smaller sizes, or fewer ranks on a host"
        )
    return text


def _make_look() -> Callable[[str, int], tuple[list[str], int | None]]:
    """Build a nested function, which is sent by value: a node may lack this project's code."""

    def look(path: str, max_bytes: int) -> tuple[list[str], int | None]:
        from pathlib import Path

        try:
            output = Path(path).read_bytes()
        except OSError:
            output = b""
        # Begin with a whole line.
        end = output if len(output) <= max_bytes else output[-max_bytes:].partition(b"\n")[2] or output[-max_bytes:]
        try:
            counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        except OSError:
            counters = {}
        kills = counters.get("oom_kill")
        lines = [line.strip() for line in end.decode(errors="replace").splitlines()]
        return list(filter(None, lines)), None if kills is None else int(kills)

    return look
