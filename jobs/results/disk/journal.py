"""Journal ``results.jsonl``: every row is on disk before the next one is measured.

One JSON object a line. JSON has no infinities and no NaN: they are written as the strings ``inf``, ``-inf`` and ``nan``
(a check that meets an overflow has an infinite error), and ``read`` restores them by the types of the fields.
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
from jobs.records.row import READABLE_VERSIONS, AnyRow, Row
from jobs.records.soak import READABLE_SLICE_VERSIONS, SoakSlice
from jobs.results.disk.json_safe import json_safe

logger = logging.getLogger(__name__)

JOURNAL_NAME = "results.jsonl"
SOAK_NAME = "soak.jsonl"
_ROW, _SLICE = TypeAdapter(Row), TypeAdapter(SoakSlice)


class Journal:
    """Appends rows to the file at ``path``, which stays open and locked.

    An unfinished last line, left by a crash, is cut off before the next row.

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
        """Write ``row`` as one line and wait until it is on the disk.

        Raises:
          InfrastructureError: the disk is full or broken; the rows before this one are intact.
        """
        line = (json.dumps(json_safe(row), allow_nan=False) + "\n").encode()
        size = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, line)
            os.fsync(self._fd)
        except OSError as error:
            # An unfinished line in the middle would make the file unreadable.
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
    """Rows of the journal at ``path``, read by ``iterate``."""
    return list(iterate(path))


def iterate(path: Path) -> Iterator[Row]:
    """Rows of the journal at ``path`` in order, one at a time, because a row may have megabytes of samples.

    An unfinished last line, left by a crash, is left out with a warning.

    Raises:
      UsageError: the file can't be read, or a line isn't a row of this format; the error names the line.
    """
    return _iterate(path, _ROW, READABLE_VERSIONS)


def iterate_soak(path: Path) -> Iterator[SoakSlice]:
    """Slices of the soak's journal at ``path``, one at a time; none if there is no file.

    Raises: the errors of ``iterate``.
    """
    return _iterate(path, _SLICE, READABLE_SLICE_VERSIONS) if path.exists() else iter(())


def _iterate[T](path: Path, adapter: TypeAdapter[T], versions: tuple[int, ...]) -> Iterator[T]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    logger.warning("%s: line %d has no end and is left out", path, number)
                    return
                yield _parsed(line, f"{path}:{number}", adapter, versions)
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error


def finished_cases(rows: Iterable[AnyRow], *, baselines: Collection[str]) -> set[Case]:
    """Cases of which ``rows``, the rows of one job, are complete.

    A complete case has the row of ``kernel.implementation`` and a row for each of ``baselines``.
    """
    by_case: dict[Case, list[AnyRow]] = defaultdict(list)
    for row in rows:
        by_case[row.case].append(row)
    return {
        case
        for case, measured in by_case.items()
        if not all(row.is_baseline for row in measured) and set(baselines) <= {row.implementation for row in measured}
    }


def one_line(error: ValueError) -> str:
    """First message of an error by JSON or pydantic; pydantic's begins with the field."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        return f"{field}: {first['msg']}" if field else first["msg"]
    return str(error)


def _parsed[T](line: bytes, where: str, adapter: TypeAdapter[T], versions: tuple[int, ...]) -> T:
    """Object of a line; one of an earlier version becomes one of the last version."""
    try:
        data = json.loads(line)
        version = data.get("version") if isinstance(data, dict) else None
        if version not in versions:
            raise ValueError(f"{version=} must be one of {versions}")
        return adapter.validate_python({**data, "version": versions[-1]})
    except ValueError as error:
        raise UsageError(f"{where}: not a row ({one_line(error)})") from error


def _write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``: a disk that fills up accepts a part of it before it fails."""
    while data:
        data = data[os.write(fd, data) :]
