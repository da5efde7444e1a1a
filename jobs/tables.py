"""Tables of tuned configs, as options of a job name them."""

from __future__ import annotations

from pathlib import Path

from cmkernel import Table
from jobs.errors import UsageError


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
