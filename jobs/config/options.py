"""Options of the schema: full names, rules and renamed options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from jobs.errors import UsageError

# Old names of options, each with the new name and its reason.
_GIGABYTES = "its unit is GB/s, gigabytes per second"
RENAMED = {
    "cluster.link_gbps": ("cluster.link_gbytes_per_s", _GIGABYTES),
    "cluster.nic_gbps": ("cluster.nic_gbytes_per_s", _GIGABYTES),
}


def option(default: Any, rule: str = "", *, why: str = "", may_change: bool = False) -> Any:
    """Make a field of the schema with its rule. ``null`` is always allowed.

    Args:
      default: value unless the config names one.
      rule: ``> 0``, ``>= 1``, or an interval such as ``(0, 1]``.
      why: reason of the rule, for the error message.
      may_change: True if a resumed job may have another value, because no row depends on it.
    """
    return dataclasses.field(default=default, metadata={"rule": rule, "why": why, "may_change": may_change})


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every option of a settings object: full name, field of the schema, value."""
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field, value


def refuse_value(name: str, field: dataclasses.Field[Any], value: Any) -> None:
    """Raise ``UsageError`` if ``value`` breaks the rule of its field."""
    rule = field.metadata.get("rule")
    if not rule or value is None or _obeys(value, rule):
        return
    words = {">": "greater than", ">=": "at least"}.get(rule.split()[0])
    limit = f"{words} {rule.split()[1]}" if words else f"in {rule}"
    reason = f": {field.metadata['why']}" if field.metadata["why"] else ""
    raise UsageError(f"{name}={value} must be {limit}{reason}")


def renamed_option(text: str) -> str | None:
    """Message for an old name of an option in ``text``; ``None`` if there is none."""
    return next((f"{old} is now called {new}: {why}" for old, (new, why) in RENAMED.items() if old in text), None)


def with_new_names(config: DictConfig) -> DictConfig:
    """Give the renamed options of a recorded config their present names."""
    for old, (new, _) in RENAMED.items():
        group, name = old.split(".")
        if name in config.get(group, {}):
            config[group][new.split(".")[1]] = config[group].pop(name)
    return config


def _obeys(value: float, rule: str) -> bool:
    if rule.startswith((">", ">=")):
        operator, limit = rule.split()
        return value >= float(limit) if operator == ">=" else value > float(limit)
    low, high = (float(limit) for limit in rule[1:-1].split(","))
    return (value > low if rule[0] == "(" else value >= low) and (value < high if rule[-1] == ")" else value <= high)
