"""The examiner of a host: an object in a process there that answers the driver's questions."""

from __future__ import annotations

import time

from jobs.health.facts import HostFacts, Xid
from jobs.health.host import host_facts
from jobs.health.tcp import Sink, send


class Examiner:
    """Answers for the host with the address ``ip`` in Ray."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._watch: object = None

    def facts(self, with_gpus: bool) -> HostFacts:
        """Facts about the host. If they include GPUs, it listens for XIDs from now on."""
        facts = host_facts(self._ip, with_gpus=with_gpus)
        if facts.gpus:
            from jobs.health.nvml import visible_gpus
            from jobs.health.xids import XidWatch

            self._watch = XidWatch(visible_gpus())
        return facts

    def now(self) -> float:
        """Clock of this host, in seconds since the epoch."""
        return time.time()

    def listen(self, ip: str | None = None) -> tuple[int, bytes]:
        """Start a ``Sink`` on this address, or that in Ray; return its port and key."""
        sink = Sink(ip or self._ip)
        return sink.port, sink.key

    def send(self, ip: str, port: int, key: bytes, seconds: float) -> float | str:
        """Bytes per second to a ``Sink``, or the reason why it can't be reached."""
        try:
            return send(ip, port, key, seconds=seconds)
        except OSError as error:
            return str(error)

    def xids(self) -> tuple[tuple[Xid, ...], str | None]:
        """XIDs since ``facts``, and the reason if listening failed."""
        if self._watch is None:
            return (), None
        from jobs.health.xids import XidWatch

        assert isinstance(self._watch, XidWatch)
        return self._watch.stop(), self._watch.error
