"""Tables of tuned configs, as options of a job name them."""

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

# A table is locked for as long as it takes to read and write it: one that isn't free by then never will be.
_LOCK_S = 30.0
_POLL_S = 0.02


def absolute_table(path: str | None) -> str | None:
    """The same file wherever the process is."""
    return None if path is None else str(Path(path).expanduser().absolute())


def read_table(option: str, path: str | None) -> Table | None:
    """The table that ``option`` names; ``None`` where it names none.

    Raises:
      UsageError: the file can't be read, or isn't such a table.
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
    """Put ``entry`` into the table at ``path``, which ``option`` names and which is made where there is none.

    Other jobs may add entries to the same table at the same time: none is lost.

    Raises:
      UsageError: the file isn't such a table.
      InfrastructureError: it can't be written, or another process has it locked for longer than ``lock_s``.
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
    """With the lock of the file that ``path`` is then; whoever holds it may replace that file."""
    deadline_s = time.monotonic() + lock_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(option, path, fd, deadline_s)
            # It may have been replaced while this process waited, and then the lock is that of a file which is gone.
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
