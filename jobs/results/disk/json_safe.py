"""Conversion to values that JSON can hold, for all files and lines of the results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any


def json_safe(value: Any) -> Any:
    """Convert ``value`` to plain dicts, lists, strings, numbers, booleans and ``None``.

    Infinite and undefined floats become the strings ``inf``, ``-inf`` and ``nan``, enums their names, dataclasses
    dicts, paths strings, tuples lists; numpy's scalars become Python's.

    Raises:
      TypeError: ``value`` holds something else.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_safe(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    raise TypeError(f"{type(value).__name__} can't be written as JSON: {value!r}")
