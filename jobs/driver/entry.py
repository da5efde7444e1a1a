"""What every entry point does: compose the config, run its job, print the RESULT line, set the exit code."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

from jobs.driver.outcome import Outcome
from jobs.errors import EXIT_INFRASTRUCTURE, EXIT_OK, EXIT_USAGE
from jobs.signals import raise_if_stopped, stop_on_signals, take_signals

# Ray, jax, W&B and Hydra take seconds to import: later, when a signal already ends in a RESULT line.
if TYPE_CHECKING:
    from omegaconf import DictConfig

Job = Callable[["DictConfig", Outcome], None]
"""A job: runs a composed config, and its outcome says what became of it; it imports what is slow only when called."""


def main(job: Job, between_points: AbstractContextManager[Any] | None = None) -> int:
    """Run ``job``, or each point of a multirun; the exit code, the worst one of a multirun.

    The last line of standard output is the RESULT line. A multirun prints one for each point, and last one for all.
    ``between_points`` is what the points of a multirun hand on: it is closed behind the last one.

    A signal stops the job until its outcome is settled; a later one changes neither the line nor the code.
    """
    take_signals()
    logging.basicConfig(level=logging.INFO, handlers=[_stderr_handler()])
    outcomes: list[Outcome] = []
    told: list[Outcome] = []
    ended = Outcome()
    more: dict[str, Any] = {}
    with ended.recording(), stop_on_signals(), between_points or contextlib.nullcontext():
        _run_hydra(job, outcomes, told, ended)
    if not outcomes and ended.status == "ok":
        return EXIT_OK  # --help, --cfg and the like
    if outcomes and not told:
        (ended,) = outcomes
    elif outcomes:
        # A signal between two points is the whole's own.
        worst = max([ended, *outcomes], key=lambda outcome: outcome.exit_code)
        ended.status, ended.exit_code, ended.error = worst.status, worst.exit_code, worst.error
        ended.rows = [row for outcome in outcomes for row in outcome.rows]
        ended.restarts = sum(outcome.restarts for outcome in outcomes)
        more["run_dirs"] = [str(outcome.run_dir) for outcome in outcomes if outcome.run_dir]
    _print(ended.line(**more))
    return ended.exit_code


def _run_hydra(job: Job, outcomes: list[Outcome], told: list[Outcome], ended: Outcome) -> None:
    """Compose the config and run the job, or one for each point; a config that can't be composed ends the whole.

    ``told`` gets the points of a multirun whose RESULT line is out.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf.errors import OmegaConfBaseException

    from jobs.config.problem import config_dir
    from jobs.config.schema import register

    register()

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    def task(config: DictConfig) -> None:
        raise_if_stopped()
        outcome = Outcome()
        with outcome.recording(), stop_on_signals():
            outcomes.append(outcome)
            job(config, outcome)
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            told.append(outcome)
            _print(outcome.line())

    # Or Hydra prints the error and exits with 1, where this project's code is 2.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        task()
    except (HydraException, OmegaConfBaseException) as error:
        ended.end("usage_error", EXIT_USAGE, _told(error))
    except SystemExit as error:
        # argparse, which has printed what is wrong.
        if error.code:
            ended.end("usage_error", EXIT_USAGE, "the command line can't be parsed")


def _told(error: BaseException) -> str:
    """What Hydra says in one line: the option first, then the reason, which it keeps in the exception's cause."""
    causes = [error, *([error.__cause__] if error.__cause__ else [])]
    lines = [line.strip() for cause in causes for line in str(cause).splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Nobody reads any more (`| head`): the exit code still tells.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _stderr_handler() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    return handler


def _remove_temporary_folders() -> None:
    """What Python removes as it ends, of W&B's: ``os._exit`` leaves no time for that."""
    for found in gc.get_objects():
        if type(found) is tempfile.TemporaryDirectory:
            with contextlib.suppress(OSError):
                found.cleanup()


def leave(code: int) -> NoReturn:
    """End the process with this exit code."""
    _remove_temporary_folders()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or EXIT_INFRASTRUCTURE
    # Threads of Ray or W&B that outlive their close must not hold the job, or change its exit code.
    os._exit(code)
