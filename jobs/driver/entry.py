"""Frame of every entry point: compose the config, run its job, print the RESULT line, set the exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

from jobs.driver.outcome import Outcome
from jobs.errors import EXIT_OK, EXIT_USAGE, UsageError
from jobs.output import keep_output
from jobs.signals import raise_if_stopped, stop_on_signals, take_signals

# Ray, jax, W&B and Hydra take seconds to import. They are imported once a signal ends in a RESULT line.
if TYPE_CHECKING:
    from omegaconf import DictConfig

Check = Callable[["DictConfig"], None]
"""Raises ``UsageError`` for a config that ``Job`` would refuse before it starts."""
Job = Callable[["DictConfig", Outcome], None]
"""Runs a composed config and records its end in the outcome; it makes its slow imports when it is called."""

_own_folders: list[str] = []
"""Temporary folders that this process made, for ``leave`` to remove."""


@dataclasses.dataclass
class _Session:
    """Outcomes of one command line."""

    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    """One for each point of a multirun, otherwise a single one."""
    is_multirun: bool = False
    whole: Outcome = dataclasses.field(default_factory=Outcome)
    """End of the command itself: a config that can't be composed, a signal between two points."""

    def result(self) -> tuple[Outcome, dict[str, Any]]:
        """The outcome to report last, and further keys of its RESULT line."""
        if not self.is_multirun:
            return (self.outcomes or [self.whole])[0], {}
        worst = max([self.whole, *self.outcomes], key=lambda outcome: outcome.exit_code)
        all_points = Outcome(
            status=worst.status,
            exit_code=worst.exit_code,
            error=worst.error,
            rows=[row for outcome in self.outcomes for row in outcome.rows],
            restarts=sum(outcome.restarts for outcome in self.outcomes),
        )
        return all_points, {"run_dirs": [str(outcome.run_dir) for outcome in self.outcomes if outcome.run_dir]}


def main(job: Job, check: Check, between_points: AbstractContextManager[Any] | None = None) -> int:
    """Run ``job``, or each point of a multirun, and return the exit code; a multirun returns its worst one.

    The last line of standard output is the RESULT line. A multirun prints one for each point, and one more for all.
    A signal stops the job until its outcome is settled; a later one changes neither the line nor the code.

    Args:
      job: function to run.
      check: called with the config of each point of a multirun before the first one runs.
      between_points: context shared by the points of a multirun, and closed after the last one.
    """
    take_signals()
    keep_output()
    logging.basicConfig(level=logging.INFO, handlers=[_stderr_handler()])
    session = _Session()
    with session.whole.recording(), stop_on_signals(), between_points or contextlib.nullcontext():
        _keep_temporary_files_together()
        _run_hydra(job, check, session)
    if not session.outcomes and session.whole.status == "ok":
        return EXIT_OK  # --help, --cfg and the like
    outcome, more = session.result()
    print(outcome.line(**more), flush=True)
    return outcome.exit_code


def leave(code: int) -> NoReturn:
    """End the process with this exit code."""
    for folder in _own_folders:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    # Threads of Ray or W&B that outlive their close must neither keep the job alive nor change its exit code.
    os._exit(code)


def _keep_temporary_files_together() -> None:
    """Send libraries' temporary files to one folder, which ``leave`` removes: libraries do so only on a normal exit."""
    # Without a usable temporary folder the libraries that need one say so.
    with contextlib.suppress(OSError):
        tempfile.tempdir = tempfile.mkdtemp(prefix="cmkernel-")
        _own_folders.append(tempfile.tempdir)


def _run_hydra(job: Job, check: Check, session: _Session) -> None:
    """Compose the config and run the job for each point; a config that can't be composed is a usage error."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from jobs.config.command_line import elsewhere, runs_points, with_quoted_paths
    from jobs.config.composing import mistake
    from jobs.config.problem import config_dir
    from jobs.config.schema import register

    register()
    OmegaConf.register_new_resolver("job_help", _job_help, replace=True)

    def refuse(config: DictConfig) -> None:
        raise_if_stopped()
        try:
            check(config)
        except UsageError as error:
            names = HydraConfig.get()
            refusals.append(f"point {names.job.num} ({' '.join(names.overrides.task)}): {error}")

    def task(config: DictConfig) -> None:
        raise_if_stopped()
        outcome = Outcome()
        with outcome.recording(), stop_on_signals():
            session.outcomes.append(outcome)
            job(config, outcome)
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            session.is_multirun = True
            print(outcome.line(), flush=True)

    # Hydra exits with 1 on its own errors; catch them so that the exit code is 2.
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[1:] = with_quoted_paths(sys.argv[1:])
    refusals: list[str] = []
    in_hydra = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    try:
        if runs_points(sys.argv[1:]):
            with _arguments(*elsewhere(sys.argv[1:], tempfile.gettempdir())):
                in_hydra(refuse)()
        if refusals:
            session.whole.end("usage_error", EXIT_USAGE, " | ".join(refusals))
        else:
            in_hydra(task)()
    except Exception as error:
        # A job's own errors are in its outcome. This one is of composing the config, or of a multirun.
        if wants_traceback:
            traceback.print_exception(error)
        session.whole.end("usage_error", EXIT_USAGE, mistake(error, sys.argv[1:]))
    except SystemExit as error:
        # argparse has already printed the mistake.
        if error.code:
            session.whole.end("usage_error", EXIT_USAGE, "the command line can't be parsed")


@contextlib.contextmanager
def _arguments(*arguments: str) -> Iterator[None]:
    """Another command line, until the block ends."""
    saved = sys.argv[1:]
    sys.argv[1:] = arguments
    try:
        yield
    finally:
        sys.argv[1:] = saved


def _job_help() -> str:
    """Head of ``--help``: the docstring of the entry point."""
    return (sys.modules["__main__"].__doc__ or "").strip().replace("``", "") + "\n"


def _stderr_handler() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    return handler
