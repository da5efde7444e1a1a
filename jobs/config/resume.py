"""What a resumed job takes from the one that it continues, and what the command line may still change."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jobs.config.schema import Settings
from jobs.errors import UsageError

# Where and for how long the job may run, and how W&B is reached; nothing that a row depends on.
MAY_CHANGE = frozenset(
    {
        *(f"cluster.{name}" for name in ("mode", "address", "max_restarts")),
        *(f"cluster.{name}_timeout_s" for name in ("connect", "placement", "setup", "step", "stall", "heartbeat")),
        "results.report",
        *(f"wandb.{name}" for name in ("mode", "api_key_file", "init_timeout_s", "finish_timeout_s")),
    }
)


def continued(stored: Settings, given: Settings, overrides: Sequence[str]) -> Settings:
    """``stored``, the settings of the job to continue, with what ``MAY_CHANGE`` of the ``overrides``.

    Args:
      stored: of the earlier job.
      given: what the present command line was composed to.
      overrides: the command line, as ``group=choice`` and ``option=value``.

    Raises:
      UsageError: an override contradicts the earlier job; the option is named.
    """
    settings = copy.deepcopy(stored)
    settings.resume = given.resume
    named = {override.partition("=")[0].lstrip("+~").replace("/", ".") for override in overrides}
    for option, value in _leaves(given):
        if option == "resume" or not any(option == name or option.startswith(f"{name}.") for name in named):
            continue
        *groups, field = option.split(".")
        owner: Any = settings
        for group in groups:
            owner = getattr(owner, group)
        before = getattr(owner, field)
        if option in MAY_CHANGE:
            setattr(owner, field, value)
        elif value != before:
            raise UsageError(
                f"{option}={_told(value)} contradicts {option}={_told(before)} of the job in resume={given.resume}; a "
                "resumed job keeps its config: leave the option out"
            )
    return settings


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def _told(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "name", value))
