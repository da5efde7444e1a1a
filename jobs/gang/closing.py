"""Cleanup that ends in every case: after an error, and when the cluster no longer answers."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from typing import Self


class Closing(abc.ABC):
    """A context manager that calls ``close`` when its block ends."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def finishes_within(timeout_s: float, cleanup: Callable[[], None], name: str) -> bool:
    """Run ``cleanup`` in a thread called ``name``; return whether it finished within ``timeout_s`` seconds.

    Calls to Ray may never return when the cluster is gone.
    """
    thread = threading.Thread(target=cleanup, name=name, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()
