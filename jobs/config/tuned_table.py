"""Tables of tuned configs that options of a job name."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from cmkernel import Table
from cmkernel.tuned import Entry
from jobs.errors import InfrastructureError, UsageError

logger = logging.getLogger(__name__)

# A lock is held while one table is read and written; one that isn't free after this time never will be.
_LOCK_S = 30.0
_POLL_S = 0.02


def read_table(option: str, path: str | None) -> Table | None:
    """Read the table that ``option`` names; ``None`` if it names none.

    Raises:
      UsageError: the file can't be read, or isn't a table.
    """
    if path is None:
        return None
    try:
        return Table.read(Path(path).expanduser())
    except OSError as error:
        raise UsageError(f"{option}={path}: can't be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{option}={path}: {error}") from error


def add_entry(option: str, path: Path, entry: Entry, *, lock_s: float = _LOCK_S) -> None:
    """Add ``entry`` to the table at ``path``, which ``option`` names; create the table if there is none.

    Several jobs may add entries to a table at the same time: no entry is lost.

    Raises:
      UsageError: the file isn't a table.
      InfrastructureError: the file can't be written, or another process has it locked for longer than ``lock_s``.
    """
    try:
        with _locked(option, path, lock_s):
            table = read_table(option, str(path))
            assert table
            table.merged([entry]).write(path)
    except OSError as error:
        raise InfrastructureError(f"{option}={path}: can't be written ({error.strerror})") from error


@contextlib.contextmanager
def _locked(option: str, path: Path, lock_s: float) -> Iterator[None]:
    """Hold the lock of the file at ``path``; the holder may replace that file."""
    deadline_s = time.monotonic() + lock_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(option, path, fd, deadline_s)
            # If the file was replaced while this process waited, the lock is that of a deleted file: try again.
            if os.path.samestat(os.fstat(fd), path.stat()):
                yield
                return
        finally:
            os.close(fd)


def _lock(option: str, path: Path, fd: int, deadline_s: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise InfrastructureError(f"{option}={path}: another process keeps it locked") from None
            time.sleep(_POLL_S)
        except OSError as error:
            logger.warning("%s: this file system has no locks (%s)", path, error.strerror)
            return
        else:
            return
