"""One examiner per host: an actor that reserves no resources, so that it starts even on a full host."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.errors import one_line
from jobs.gang.answers import Answers
from jobs.gang.closing import Closing, finishes_within
from jobs.gang.shape import Node
from jobs.health.examiner import Examiner
from jobs.health.facts import Bandwidth, HostFacts, Xid
from jobs.health.finding import Finding
from jobs.health.host_findings import announces_another, unreachable_name
from jobs.health.pairs import rounds

START_TIMEOUT_S = 60.0
# The first process on a node installs the environment that scripts/submit.sh --install requests.
_INSTALL_TIMEOUT_S = 600.0
_ANSWER_TIMEOUT_S = 15.0
_CLOSE_TIMEOUT_S = 5.0
# The fastest of several round trips gives the best estimate of a clock's offset.
_ROUND_TRIPS = 5
_SEND_S = 0.5


class Examiners(Closing):
    """Running examiners, one per node, by index in ``nodes``; a context manager that ends them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        actor_class = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Examiner)
        self._actors: list[Any] = [
            actor_class.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote(
                node.ip
            )
            for node in self.nodes
        ]
        self._facts: dict[int, HostFacts] = {}

    def facts(
        self, *, with_gpus: bool, timeout_s: float = START_TIMEOUT_S
    ) -> tuple[list[HostFacts], list[tuple[Node, str]]]:
        """Facts of the hosts that answer, and the others with the reason; the others are asked nothing more.

        ``timeout_s`` covers the start of a process. If Ray installs packages first, the limit is 600 s.
        """
        if ray.get_runtime_context().runtime_env.get("pip"):
            timeout_s = _INSTALL_TIMEOUT_S
        self._facts, errors = self._ask("facts", with_gpus, of=range(len(self.nodes)), timeout_s=timeout_s)
        silent = [(self.nodes[i], why) for i, why in sorted(errors.items())]
        return [self._facts[i] for i in sorted(self._facts)], silent

    def clock_offsets(self) -> dict[str, tuple[float, float]]:
        """By host that answered: its clock minus the driver's, and the error of that, both in seconds."""
        best: dict[str, tuple[float, float]] = {}
        for index, facts in self._facts.items():
            for _ in range(_ROUND_TRIPS):
                asked = time.time()
                answers, _ = self._ask("now", of=[index])
                if index not in answers:
                    break
                answered = time.time()
                # Assume that the host read its clock at half of the round trip; the error is at most that half.
                offset = (answers[index] - (asked + answered) / 2, (answered - asked) / 2)
                best[facts.host] = min(best.get(facts.host, offset), offset, key=lambda pair: pair[1])
        return best

    def tcp(self) -> list[Bandwidth]:
        """TCP bandwidth between neighbours in the ring of hosts, in each direction; no host runs two at once."""
        neighbours = rounds([[index] for index in self._one_per_host()])
        turns = [turn for pairs in neighbours for turn in (pairs, [(b, a) for a, b in pairs])]
        return [link for turn in turns for link in self._tcp_round(turn)]

    def unreachable_names(self) -> list[Finding]:
        """Hosts whose name resolves to another address than Ray's, which the host before them can't reach."""
        hosts = self._one_per_host()
        findings = []
        for before, index in zip([*hosts[-1:], *hosts[:-1]], hosts, strict=True):
            facts = self._facts[index]
            if before == index or not announces_another(facts):
                continue
            sinks, errors = self._ask("listen", facts.resolved_ip, of=[index])
            if index in sinks:
                calls = {before: (facts.resolved_ip, *sinks[index], 0.0)}
                answers, errors = self._ask_each("send", calls)
                errors |= {i: answer for i, answer in answers.items() if isinstance(answer, str)}
            findings += [unreachable_name(facts, why) for why in errors.values()]
        return findings

    def xids(self) -> list[tuple[HostFacts, tuple[Xid, ...], str | None]]:
        """XIDs since ``facts`` on each host that answered then, or the reason why they are unknown."""
        answers, errors = self._ask("xids", of=self._facts)
        answers |= {i: ((), why) for i, why in errors.items()}
        return [(self._facts[i], *answers[i]) for i in sorted(self._facts)]

    def _one_per_host(self) -> list[int]:
        """Index of one node per host, as raylets of one host share an address."""
        return sorted({facts.ip: index for index, facts in reversed(self._facts.items())}.values())

    def _tcp_round(self, pairs: Sequence[tuple[int, int]]) -> list[Bandwidth]:
        """Bandwidth from the first of each pair to the second."""
        sinks, errors = self._ask("listen", of=[receiver for _, receiver in pairs])
        calls = {
            sender: (self._facts[receiver].ip, *sinks[receiver], _SEND_S)
            for sender, receiver in pairs
            if receiver in sinks
        }
        answers, failed = self._ask_each("send", calls)
        links = []
        for sender, receiver in pairs:
            name = f"{self._facts[sender].host} to {self._facts[receiver].host}"
            # A speed, or the reason why there is none.
            answer = answers.get(sender, failed.get(sender) or errors.get(receiver))
            speed, error = (answer, None) if isinstance(answer, float) else (None, answer)
            links.append(Bandwidth(link=name, bytes_per_s=speed, error=error))
        return links

    def _ask(
        self, method: str, *args: Any, of: Iterable[int], timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> tuple[dict[int, Any], dict[int, str]]:
        """Answers by node, and the reason for each node without one."""
        return self._ask_each(method, dict.fromkeys(of, args), timeout_s)

    def _ask_each(
        self, method: str, calls: Mapping[int, Sequence[Any]], timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> tuple[dict[int, Any], dict[int, str]]:
        answers = Answers({i: getattr(self._actors[i], method).remote(*args) for i, args in calls.items()})
        values, errors = answers.collect(timeout_s)
        reasons = {index: one_line(error) for index, error in errors.items()}
        return values, reasons | dict.fromkeys(answers.unfinished, f"no answer within {timeout_s:g} s")

    def close(self) -> None:
        """Kill all examiners; takes 5 s at most."""
        finishes_within(_CLOSE_TIMEOUT_S, self._kill, "close-examiners")

    def _kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
