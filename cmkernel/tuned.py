"""Table of tuned configs: the fastest measured config per shape, and the choice of an entry for a shape.

A table is a sorted file with one JSON object a line, easy to read and diff. ``tuned.jsonl`` beside this module ships
with it; ``jobs.tune`` writes such tables.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from cmkernel.config import Config, KernelConfig, PpermuteConfig, from_plain, to_plain
from cmkernel.cost import ITEMSIZE
from cmkernel.performance_model import heuristic_config, is_modelled, modelled_us

SHIPPED_PATH = Path(__file__).with_name("tuned.jsonl")
# An entry serves shapes of which every size differs from its own by at most this factor.
_MAX_RATIO = 2.0
# The model must not expect an entry to take longer than this times the heuristic's time: no more than the model's
# rounding.
_MAX_SLOWDOWN = 1.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Key of a choice: lhs ``[m_shard, k]`` and rhs ``[k, n_shard]`` on each of ``num_ranks`` devices.

    Raises:
      ValueError: a size isn't an integer of at least 1, or ``device_kind`` or ``dtype`` isn't valid.
    """

    device_kind: str
    """Device name as ``cmkernel.hardware.device_kind`` returns it."""
    num_ranks: int
    m_shard: int
    k: int
    n_shard: int
    dtype: str

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            if type(size) is not int or size < 1:
                raise ValueError(f"{name}={size!r} must be an integer of at least 1")
        if not isinstance(self.device_kind, str):
            raise ValueError(f"device_kind={self.device_kind!r} must be a string")
        if self.dtype not in ITEMSIZE:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(ITEMSIZE)}")

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes as keyword arguments for ``cmkernel.performance_model``."""
        return {"m_shard": self.m_shard, "k": self.k, "n_shard": self.n_shard, "num_ranks": self.num_ranks}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Fastest measured config of an implementation on one shape.

    Raises:
      ValueError: a time isn't above 0, or ``date`` or ``jax`` isn't a string.
    """

    shape: Shape
    implementation: str
    config: Config
    us: float
    """Time of a call inside a program in microseconds, maximum over ranks."""
    heuristic_us: float
    """The same for the heuristic's config, measured in turns with this one."""
    date: str
    jax: str

    def __post_init__(self) -> None:
        for name in ("us", "heuristic_us"):
            time_us = getattr(self, name)
            if type(time_us) not in (int, float) or not 0 < time_us < math.inf:
                raise ValueError(f"{name}={time_us!r} must be a number above 0")
        for name in ("date", "jax"):
            if not isinstance(text := getattr(self, name), str):
                raise ValueError(f"{name}={text!r} must be a string")

    @property
    def key(self) -> tuple[Any, ...]:
        """Key by which a table holds one entry; also the sort order of its lines."""
        return self.implementation, *dataclasses.astuple(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Entry as a JSON object."""
        rest = {name: getattr(self, name) for name in ("us", "heuristic_us", "date", "jax")}
        return {
            **dataclasses.asdict(self.shape),
            "implementation": self.implementation,
            "config": to_plain(self.config),
            **rest,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild the entry from a JSON object of ``to_json``.

        Raises:
          ValueError: a field is missing or unknown, or the shape or the config breaks a law.
        """
        try:
            data = dict(data)
            shape = Shape(**{field.name: data.pop(field.name) for field in dataclasses.fields(Shape)})
            if not isinstance(options := data.pop("config"), dict):
                raise ValueError(f"config={options!r} must be an object of options")
            config = from_plain(data["implementation"], options)
            return cls(shape=shape, config=config, **data)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A config and its origin."""

    config: Config
    source: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Entries, at most one per key."""

    entries: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the table in the file at ``path``.

        Raises:
          ValueError: a line is no entry. The message names the line.
          OSError: the file can't be read.
        """
        entries = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                entries.append(Entry.from_json(json.loads(line)))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: no entry of a table ({error})") from error
        return cls(tuple(entries))

    def merged(self, entries: Iterable[Entry]) -> Table:
        """Return a table in which ``entries`` replace those of the same key."""
        by_key = {entry.key: entry for entry in (*self.entries, *entries)}
        return Table(tuple(by_key[key] for key in sorted(by_key)))

    def write(self, path: Path) -> None:
        """Replace the file at ``path`` atomically."""
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            new.write_text("".join(json.dumps(entry.to_json()) + "\n" for entry in self.entries))
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

    def find(self, implementation: str, shape: Shape, num_sms: int | None) -> Chosen | None:
        """Choose the table's config for a shape, or ``None``.

        An entry serves its own shape, in every dtype of the same size. Otherwise the nearest entry of the same device
        and number of ranks serves it. Distance is the sum of the absolute logarithms of the three sizes' ratios; no
        ratio may exceed 2. The model must agree: the heuristic takes the same config for both shapes, and the entry's
        modelled time is at most 1.02 times the heuristic's.
        """
        same = [entry for entry in self.entries if _is_alike(entry, implementation, shape)]
        for entry in sorted(same, key=lambda entry: (_distance(entry.shape, shape), entry.shape.dtype != shape.dtype)):
            if _distance(entry.shape, shape) == 0:
                return Chosen(entry.config, f"tuned on {entry.date}") if _fits(entry.config, num_sms) else None
            if _serves(entry, shape, num_sms):
                sizes = f"m_shard={entry.shape.m_shard} k={entry.shape.k} n_shard={entry.shape.n_shard}"
                return Chosen(entry.config, f"tuned on {entry.date} for {sizes}, the nearest")
        return None


@functools.cache
def shipped() -> Table:
    """Table shipped with this package."""
    return Table.read(SHIPPED_PATH)


def choose_config(
    implementation: str, shape: Shape, *, num_sms: int | None = None, table: Table | None = None
) -> Chosen:
    """Choose a config of ``mosaic_gpu`` (which needs ``num_sms``) or ``ppermute`` for a shape.

    Takes the entry of ``table`` (by default the shipped one) if there is one for the shape, else the heuristic's
    config.
    """
    tuned = (shipped() if table is None else table).find(implementation, shape, num_sms)
    return tuned or Chosen(_heuristic(implementation, shape, num_sms), "by the heuristic")


def _is_alike(entry: Entry, implementation: str, shape: Shape) -> bool:
    its = entry.shape
    return (
        entry.implementation == implementation
        and (its.device_kind, its.num_ranks) == (shape.device_kind, shape.num_ranks)
        and ITEMSIZE[its.dtype] == ITEMSIZE[shape.dtype]
        and all(
            max(a, b) <= _MAX_RATIO * min(a, b)
            for a, b in ((its.m_shard, shape.m_shard), (its.k, shape.k), (its.n_shard, shape.n_shard))
        )
    )


def _distance(a: Shape, b: Shape) -> float:
    return sum(abs(math.log(a.sizes[name] / b.sizes[name])) for name in ("m_shard", "k", "n_shard"))


def _fits(config: Config, num_sms: int | None) -> bool:
    """True if the config leaves a device of ``num_sms`` SMs at least one SM to compute."""
    return not isinstance(config, KernelConfig) or (num_sms is not None and config.num_comm_ctas < num_sms)


def _serves(entry: Entry, shape: Shape, num_sms: int | None) -> bool:
    if not _fits(entry.config, num_sms):
        return False
    if not isinstance(entry.config, KernelConfig):
        return True
    assert num_sms is not None
    heuristic = heuristic_config(**shape.sizes, num_sms=num_sms)
    if heuristic != heuristic_config(**entry.shape.sizes, num_sms=num_sms) or not is_modelled(entry.config):
        return False
    sizes = {**shape.sizes, "num_sms": num_sms}
    return modelled_us(entry.config, **sizes) <= _MAX_SLOWDOWN * modelled_us(heuristic, **sizes)


def _heuristic(implementation: str, shape: Shape, num_sms: int | None) -> Config:
    if implementation == "ppermute":
        return PpermuteConfig()
    assert num_sms is not None
    return heuristic_config(**shape.sizes, num_sms=num_sms)
