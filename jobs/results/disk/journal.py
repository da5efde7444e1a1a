"""The journal ``results.jsonl``: every row on disk before the next one is measured.

One JSON object a line. JSON has no infinite and no undefined numbers: they are the strings ``inf``, ``-inf`` and
``nan`` here (a check that met an overflow has an infinite error), and ``read`` restores them by the fields' types.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from pydantic import TypeAdapter, ValidationError

from jobs.errors import InfrastructureError, UsageError
from jobs.records.case import Case
from jobs.records.row import AnyRow, Row
from jobs.records.soak import SoakSlice
from jobs.results.disk.json_safe import json_safe

logger = logging.getLogger(__name__)

JOURNAL_NAME = "results.jsonl"
SOAK_NAME = "soak.jsonl"
_ROW, _SLICE = TypeAdapter(Row), TypeAdapter(SoakSlice)


class Journal:
    """Appends rows to the file at ``path``, which it keeps open and locked.

    A last line without its end, left by a crash, is cut off: the next row must not grow out of it.

    Raises:
      UsageError: another job is writing to the file.
      InfrastructureError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InfrastructureError(f"{path}: can't be opened ({error.strerror})") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise UsageError(
                f"run_dir={path.parent} is in use by another job: name a folder of this job alone"
            ) from None
        except OSError as error:
            logger.warning("%s: this file system has no locks (%s)", path, error.strerror)
        whole = path.read_bytes().rfind(b"\n") + 1
        if whole != os.fstat(self._fd).st_size:
            logger.warning("%s: cut off a last line without its end", path)
            os.ftruncate(self._fd, whole)

    def append(self, row: Row | SoakSlice) -> None:
        """Write ``row`` as one line; when this returns, it is on the disk.

        Raises:
          InfrastructureError: the disk is full or broken. The rows before this one are intact.
        """
        line = (json.dumps(json_safe(row), allow_nan=False) + "\n").encode()
        size = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, line)
            os.fsync(self._fd)
        except OSError as error:
            # A torn line in the middle would spoil the file for whatever is appended after it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            raise InfrastructureError(
                f"{self.path}: a row can't be written ({error.strerror}); the rows before it are intact"
            ) from error

    def close(self) -> None:
        """Release the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read(path: Path) -> list[Row]:
    """The rows of the journal at ``path``, as ``iterate`` gives them."""
    return list(iterate(path))


def iterate(path: Path) -> Iterator[Row]:
    """The rows of the journal at ``path``, in their order, one at a time: a row may have megabytes of samples.

    A last line without its end is what a crash leaves: it is left out, with a warning.

    Raises:
      UsageError: the file can't be read, or a line is no row of this format; the line is named.
    """
    return _iterate(path, _ROW)


def iterate_soak(path: Path) -> Iterator[SoakSlice]:
    """The slices of the soak's journal at ``path``, one at a time; none where there is no such file.

    Raises: what ``iterate`` raises.
    """
    return _iterate(path, _SLICE) if path.exists() else iter(())


def _iterate[T](path: Path, adapter: TypeAdapter[T]) -> Iterator[T]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    logger.warning("%s: line %d has no end and is left out", path, number)
                    return
                yield _parsed(line, f"{path}:{number}", adapter)
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error


def finished_cases(rows: Iterable[AnyRow], *, baselines: Collection[str]) -> set[Case]:
    """Cases that need not be measured again: all their rows are among ``rows``, those of one job.

    These are that of ``kernel.implementation``, and one for each of ``baselines``.
    """
    by_case: dict[Case, list[AnyRow]] = defaultdict(list)
    for row in rows:
        by_case[row.case].append(row)
    return {
        case
        for case, found in by_case.items()
        if not all(row.is_baseline for row in found) and set(baselines) <= {row.implementation for row in found}
    }


def one_line(error: ValueError) -> str:
    """First complaint of an error: JSON's own, or pydantic's with the field that it is about."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        return f"{field}: {first['msg']}" if field else first["msg"]
    return str(error)


def _parsed[T](line: bytes, where: str, adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_python(json.loads(line))
    except ValueError as error:
        raise UsageError(f"{where}: not a row ({one_line(error)})") from error


def _write_all(fd: int, data: bytes) -> None:
    """A disk that fills up takes a part first, and refuses the rest."""
    while data:
        data = data[os.write(fd, data) :]
