"""A listener for XIDs, the NVIDIA driver's error reports. NVML keeps none: only a listener learns of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pynvml

from jobs.health.facts import Xid

_WAIT_MS = 200


class XidWatch:
    """A thread that listens until it is stopped."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._seen: list[Xid] = []
        self._stopped = threading.Event()
        self.error: str | None = None
        """Reason why listening failed; ``None`` if it works."""
        try:
            self._events = pynvml.nvmlEventSetCreate()
            for handle in handles:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError as error:
            self.error = str(error)
            return
        self._thread = threading.Thread(target=self._run, name="xids", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[Xid, ...]:
        """Stop, and return the XIDs since the start."""
        self._stopped.set()
        if self.error is None:
            self._thread.join()
        return tuple(self._seen)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                event = pynvml.nvmlEventSetWait(self._events, _WAIT_MS)
                self._seen.append(Xid(gpu_uuid=pynvml.nvmlDeviceGetUUID(event.device), number=event.eventData))
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError as error:
                # For example a GPU that fell off the bus, where each wait would fail at once.
                self.error = str(error)
                break
        pynvml.nvmlEventSetFree(self._events)
