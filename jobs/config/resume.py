"""Settings of a resumed job: the earlier job's, with the options that the command line may change."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from jobs.config.options import leaves
from jobs.config.schema import Settings
from jobs.errors import UsageError


def continued(stored: Settings, given: Settings, overrides: Sequence[str], *, num_ranks: int | None = None) -> Settings:
    """Settings of the earlier job, changed by the ``overrides`` that no row depends on.

    Args:
      stored: settings of the earlier job.
      given: settings composed from the present command line.
      overrides: the present command line, as ``group=choice`` and ``option=value``.
      num_ranks: ranks of the earlier job's rows, which replace ``cluster.num_ranks``; ``None`` if it has no row.

    Raises:
      UsageError: an override contradicts the earlier job; the error names the option.
    """
    settings = copy.deepcopy(stored)
    settings.resume = given.resume
    named = {override.partition("=")[0].lstrip("+~").replace("/", ".") for override in overrides}
    for option, schema, value in leaves(given):
        if option == "resume" or not any(option == name or option.startswith(f"{name}.") for name in named):
            continue
        # A group's choice says nothing about the options that it leaves open.
        if value is None and option not in named:
            continue
        *groups, field = option.split(".")
        owner: Any = settings
        for group in groups:
            owner = getattr(owner, group)
        before = getattr(owner, field)
        if schema.metadata.get("may_change"):
            setattr(owner, field, value)
        elif value != before:
            raise UsageError(
                f"{option}={_shown(value)} contradicts {option}={_shown(before)} of the job in resume={given.resume}; "
                "a resumed job keeps its config: leave the option out"
            )
    if num_ranks is not None:
        settings.cluster.num_ranks = num_ranks
    return settings


def _shown(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "name", value))
