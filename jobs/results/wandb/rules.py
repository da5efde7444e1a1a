"""Rules of W&B's, applied before a job connects to a cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pydantic import ValidationError

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.errors import UsageError
from jobs.results.wandb.api_key import read_key_file
from jobs.results.wandb.variables import VARIABLES, ignore_variables, wanted_mode, with_variables

# Rules of W&B's servers, which a run would meet too late.
MAX_NAME_LENGTH = 128
MAX_JOB_TYPE_LENGTH = 64
_NOT_IN_ENTITY = re.compile(r"[/\\#?%:\s]")
_SECRET = re.compile("KEY|TOKEN|HEADERS|PROXY|PASSWORD|SECRET")


def accepted(settings: WandbSettings, *, is_resumed: bool) -> WandbSettings:
    """``settings`` with the values of W&B's variables, if W&B accepts them.

    Raises:
      UsageError: an option or a variable breaks a rule of W&B's, the key file can't be read, or a folder hides the
        package.
    """
    mode = wanted_mode(settings.mode)
    full = with_variables(settings, is_resumed=is_resumed)
    if mode is WandbMode.disabled:
        return full
    if mode is not WandbMode.offline:
        read_key_file(full.api_key_file)
    _refuse_hidden_package()
    ignore_variables()
    try:
        import wandb  # noqa: F401
    except ImportError:
        # A W&B that can't be imported doesn't end a job: the start of the run says so.
        return full
    _refuse_variables()
    for option, variable in VARIABLES.items():
        value = getattr(full, option)
        is_given = is_resumed or getattr(settings, option) is not None
        if value is not None:
            _refuse_value(f"wandb.{option}" if is_given else variable, option, value)
    return full


def _refuse_hidden_package() -> None:
    """Refuse a folder or file named wandb that Python would import in place of the package."""
    installed = Path(str(metadata.distribution("wandb").locate_file("wandb")))
    found = importlib.util.find_spec("wandb")
    # An editable installation is elsewhere.
    if found is None or found.origin is None or not installed.is_dir():
        return
    origin = Path(found.origin)
    if origin != installed / "__init__.py" and not origin.samefile(installed / "__init__.py"):
        hiding = origin.parent if origin.name == "__init__.py" else origin
        raise UsageError(
            f"{hiding} hides the package wandb: rename it, start the job from another folder by scripts/bench.sh, or "
            "give wandb=disabled"
        )


def _refuse_variables() -> None:
    """Refuse a variable whose value W&B refuses. A key isn't refused: the run is offline then."""
    import wandb

    for variable, value in os.environ.items():
        if variable.startswith("WANDB_") and variable != "WANDB_API_KEY":
            with _named(variable if _SECRET.search(variable) else f"{variable}={value}"):
                wandb.Settings().update_from_env_vars({variable: value})
                if variable == "WANDB_JOB_TYPE" and len(value) > MAX_JOB_TYPE_LENGTH:
                    raise ValueError(f"must have at most {MAX_JOB_TYPE_LENGTH} characters")


def _refuse_value(name: str, option: str, value: str | list[str]) -> None:
    import wandb

    with _named(f"{name}={value}"):
        if isinstance(value, list):
            wandb.Settings(run_tags=tuple(value))
            return
        if option == "project":
            wandb.Settings(project=value)
        if not value.strip() or len(value) > MAX_NAME_LENGTH:
            raise ValueError(f"must have 1 to {MAX_NAME_LENGTH} characters")
        if option == "entity" and _NOT_IN_ENTITY.search(value):
            raise ValueError("must have neither spaces nor one of the characters / \\ # ? % :")


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn W&B's refusal into a usage error that begins with ``name``."""
    try:
        yield
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name}: {reason}") from error
    except Exception as error:
        raise UsageError(f"{name}: {error}") from error
