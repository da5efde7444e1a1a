"""One examiner on each host: an actor that takes no resources, so that it starts also where everything is taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.gang.answers import Answers
from jobs.gang.shape import Node
from jobs.health.examiner import Examiner
from jobs.health.facts import Bandwidth, HostFacts, Xid
from jobs.health.pairs import rounds

START_TIMEOUT_S = 60.0
# The first process on a node makes the environment that scripts/submit.sh --install asks for.
_INSTALL_TIMEOUT_S = 600.0
_ANSWER_TIMEOUT_S = 15.0
_CLOSE_TIMEOUT_S = 5.0
# The fastest of several round trips tells a clock's offset best.
_ROUND_TRIPS = 5
_SEND_S = 0.5


class Examiners:
    """Examiners that run; a context manager that ends them. Nodes are known by their index in ``nodes``."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        actor_class = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Examiner)
        self._actors: list[Any] = [
            actor_class.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote(
                node.ip
            )
            for node in self.nodes
        ]
        self._heard: dict[int, HostFacts] = {}

    def facts(
        self, *, with_gpus: bool, timeout_s: float = START_TIMEOUT_S
    ) -> tuple[list[HostFacts], list[tuple[Node, str]]]:
        """What the hosts tell about themselves, and which ones don't, and why; those are asked nothing more.

        ``timeout_s`` is for a process to start there; where Ray installs packages for it first, more.
        """
        if ray.get_runtime_context().runtime_env.get("pip"):
            timeout_s = _INSTALL_TIMEOUT_S
        self._heard, errors = self._ask("facts", with_gpus, of=range(len(self.nodes)), timeout_s=timeout_s)
        silent = [(self.nodes[i], why) for i, why in sorted(errors.items())]
        return [self._heard[i] for i in sorted(self._heard)], silent

    def clock_offsets(self) -> dict[str, tuple[float, float]]:
        """Of each host that was heard: its clock minus the driver's, and how far off that may be, in seconds."""
        best: dict[str, tuple[float, float]] = {}
        for index, facts in self._heard.items():
            for _ in range(_ROUND_TRIPS):
                asked = time.time()
                answers, _ = self._ask("now", of=[index])
                if index not in answers:
                    break
                answered = time.time()
                # Half of the round trip is where the host looked at its clock, or off by that much.
                offset = (answers[index] - (asked + answered) / 2, (answered - asked) / 2)
                best[facts.host] = min(best.get(facts.host, offset), offset, key=lambda pair: pair[1])
        return best

    def tcp(self) -> list[Bandwidth]:
        """Between neighbours in the ring of hosts, in each direction, each pair by itself."""
        # Raylets of one host have one address.
        first = {facts.ip: index for index, facts in reversed(self._heard.items())}
        neighbours = rounds([[index] for index in sorted(first.values())])
        turns = [turn for pairs in neighbours for turn in (pairs, [(b, a) for a, b in pairs])]
        return [link for turn in turns for link in self._tcp_round(turn)]

    def xids(self) -> list[tuple[HostFacts, tuple[Xid, ...], str | None]]:
        """Of each host that was heard: the XIDs since ``facts``, and why it can't tell."""
        answers, errors = self._ask("xids", of=self._heard)
        told = {**{i: ((), why) for i, why in errors.items()}, **answers}
        return [(self._heard[i], *told[i]) for i in sorted(self._heard)]

    def _tcp_round(self, pairs: Sequence[tuple[int, int]]) -> list[Bandwidth]:
        """From the first of each pair to the second."""
        sinks, errors = self._ask("listen", of=[receiver for _, receiver in pairs])
        calls = {
            sender: (self._heard[receiver].ip, *sinks[receiver], _SEND_S)
            for sender, receiver in pairs
            if receiver in sinks
        }
        answers, failed = self._ask_each("send", calls)
        links = []
        for sender, receiver in pairs:
            name = f"{self._heard[sender].host} to {self._heard[receiver].host}"
            found = answers.get(sender, failed.get(sender) or errors.get(receiver))
            is_speed = isinstance(found, float)
            links.append(
                Bandwidth(link=name, bytes_per_s=found if is_speed else None, error=None if is_speed else found)
            )
        return links

    def _ask(
        self, method: str, *args: Any, of: Iterable[int], timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> tuple[dict[int, Any], dict[int, str]]:
        """Answers by node, and why others gave none."""
        return self._ask_each(method, dict.fromkeys(of, args), timeout_s)

    def _ask_each(
        self, method: str, calls: Mapping[int, Sequence[Any]], timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> tuple[dict[int, Any], dict[int, str]]:
        answers = Answers({i: getattr(self._actors[i], method).remote(*args) for i, args in calls.items()})
        values: dict[int, Any] = {}
        errors: dict[int, str] = {}
        deadline = time.monotonic() + timeout_s
        while (answer := answers.next(deadline)) is not None:
            if answer.error is None:
                values[answer.key] = answer.value
            else:
                errors[answer.key] = " ".join(str(answer.error).split())
        return values, errors | dict.fromkeys(answers.unfinished, f"no answer within {timeout_s:g} s")

    def __enter__(self) -> Examiners:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # In a thread: with the cluster gone, Ray's calls may not come back.
        thread = threading.Thread(target=self._kill, name="close-examiners", daemon=True)
        thread.start()
        thread.join(_CLOSE_TIMEOUT_S)

    def _kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
