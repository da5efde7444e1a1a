"""Variables of W&B's in the environment: which a job follows, and which it ignores."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.errors import UsageError

logger = logging.getLogger(__name__)

# Each stands for an option that isn't given.
VARIABLES = {
    "project": "WANDB_PROJECT",
    "entity": "WANDB_ENTITY",
    "name": "WANDB_NAME",
    "group": "WANDB_RUN_GROUP",
    "tags": "WANDB_TAGS",
}
_MODES = {mode.value: mode for mode in (WandbMode.online, WandbMode.offline, WandbMode.disabled)}
# W&B's older names.
_MODES |= {"run": WandbMode.online, "dryrun": WandbMode.offline}

_OWN_RUN = "each job has a W&B run of its own; resume=RUN_DIR continues it"
_LIMIT = "the limit is an option"
_IGNORED = {
    **dict.fromkeys(("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_FORK_FROM"), _OWN_RUN),
    **dict.fromkeys(("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH"), f"{_OWN_RUN}, and -m sweeps over options"),
    **dict.fromkeys(("WANDB_DIR", "WANDB_ROOT_DIR"), "W&B's files are in the run directory, which run_dir names"),
    **dict.fromkeys(("WANDB_RUN_NAME", "WANDB_RUN_TAGS"), "the job follows WANDB_NAME and WANDB_TAGS"),
    "WANDB_INIT_TIMEOUT": f"{_LIMIT}, wandb.init_timeout_s",
    "WANDB_FINISH_TIMEOUT": f"{_LIMIT}, wandb.finish_timeout_s",
    "WANDB_DISABLED": "say wandb=disabled or WANDB_MODE=disabled",
    "WANDB_CONSOLE": "the run directory has the log",
    "WANDB_SERVICE": "the job starts W&B's service itself",
}


def wanted_mode(mode: WandbMode) -> WandbMode:
    """``mode``, or that of WANDB_MODE in place of ``auto``.

    Raises:
      UsageError: WANDB_MODE is no mode of a job's run.
    """
    value = os.environ.get(variable := "WANDB_MODE", "")
    if mode is not WandbMode.auto or not value:
        return mode
    if value not in _MODES:
        raise UsageError(f"{variable}={value} must be one of {', '.join(_MODES)}")
    return _MODES[value]


def with_variables(settings: WandbSettings, *, is_resumed: bool) -> WandbSettings:
    """Options that aren't given from their variables; a resumed job keeps those of its run."""
    given = {option: os.environ.get(variable, "") for option, variable in VARIABLES.items()}
    if is_resumed:
        for option, value in given.items():
            if value and value != _as_text(getattr(settings, option)):
                logger.warning("%s=%s is ignored: a resumed job keeps its W&B run", VARIABLES[option], value)
        return settings
    changes: dict[str, Any] = {
        option: value for option, value in given.items() if value and getattr(settings, option) is None
    }
    if "tags" in changes:
        changes["tags"] = [tag.strip() for tag in given["tags"].split(",")]
    return dataclasses.replace(settings, **changes)


def ignore_variables() -> None:
    """Remove the variables that a job doesn't follow from this process, each with a warning, and empty ones."""
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        if not os.environ[variable]:
            del os.environ[variable]
        elif reason := _IGNORED.get(variable):
            logger.warning("%s=%s is ignored: %s", variable, os.environ.pop(variable), reason)


def _as_text(value: str | list[str] | None) -> str | None:
    return ",".join(value) if isinstance(value, list) else value
