"""What the driver asks of each host: an object that lives in a process there."""

from __future__ import annotations

import time

from jobs.health.facts import HostFacts, Xid
from jobs.health.host import host_facts
from jobs.health.tcp import Sink, send


class Examiner:
    """Answers for the host whose address, as Ray knows it, is ``ip``."""

    def __init__(self, ip: str) -> None:
        self._ip = ip
        self._watch: object = None

    def facts(self, with_gpus: bool) -> HostFacts:
        """All that the host tells; from then on it listens for XIDs where it was asked for its GPUs."""
        facts = host_facts(self._ip, with_gpus=with_gpus)
        if facts.gpus:
            from jobs.health.nvml import visible_gpus
            from jobs.health.xids import XidWatch

            self._watch = XidWatch(visible_gpus())
        return facts

    def now(self) -> float:
        """This host's clock, in seconds since the epoch."""
        return time.time()

    def listen(self) -> tuple[int, bytes]:
        """Port and key of a ``Sink``."""
        sink = Sink(self._ip)
        return sink.port, sink.key

    def send(self, ip: str, port: int, key: bytes, seconds: float) -> float | str:
        """Bytes per second to that ``Sink``, or why it can't be reached."""
        try:
            return send(ip, port, key, seconds=seconds)
        except OSError as error:
            return str(error)

    def xids(self) -> tuple[tuple[Xid, ...], str | None]:
        """XIDs since ``facts``, and why none could be heard of."""
        if self._watch is None:
            return (), None
        from jobs.health.xids import XidWatch

        assert isinstance(self._watch, XidWatch)
        return self._watch.stop(), self._watch.error
