"""Outcome of a job: status, exit code and everything it produced."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.driver.result_line import result_line
from jobs.errors import EXIT_INFRASTRUCTURE, EXIT_OK, JobError, JobStopped

if TYPE_CHECKING:
    from jobs.records.row import RowSummary
    from jobs.results.analysis.soaking import Point
    from jobs.results.wandb.sink import WandbSink

logger = logging.getLogger(__name__)

_INSTALL = "run scripts/bench.sh, which makes an environment with all packages, or install requirements.lock"


@dataclasses.dataclass
class Outcome:
    """Status, exit code and rows of a job, and where its results are; filled in while it runs."""

    status: str = "ok"
    exit_code: int = EXIT_OK
    error: str | None = None
    run_dir: Path | None = None
    wandb: WandbSink | None = None
    rows: list[RowSummary] = dataclasses.field(default_factory=list)
    """Summaries of all rows of the journal, including those of the job that this one resumes."""
    soak: list[Point] = dataclasses.field(default_factory=list)
    """Every slice of the soak."""
    given_up: list[str] = dataclasses.field(default_factory=list)
    """Cases without rows because gangs were lost on them, each with the reason."""
    restarts: int = 0
    restart_s: float = 0.0
    """Sum of the seconds from each loss of a gang to the first step of the next gang."""

    def end(self, status: str, exit_code: int, error: object) -> None:
        """Record why the job ends early; the first reason stays, even if cleaning up fails too."""
        logger.error("%s: %s", status, error)
        if self.status == "ok":
            self.status, self.exit_code, self.error = status, exit_code, str(error)

    @contextlib.contextmanager
    def recording(self, where: str = "") -> Iterator[None]:
        """Turn an exception into the job's status and exit code; the error begins with ``where``."""
        try:
            yield
        except (JobError, JobStopped) as error:
            self.end(error.status, error.exit_code, f"{where}{error}")
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(("jobs", "cmkernel")):
                logger.info("a package is missing", exc_info=True)
                self.end("infrastructure_error", EXIT_INFRASTRUCTURE, f"{where}{sys.executable}: {error}; {_INSTALL}")
                return
            logger.exception("unexpected error, probably a bug")
            self.end("internal_error", EXIT_INFRASTRUCTURE, f"{where}{type(error).__name__}: {error}")

    def line(self, **more: Any) -> str:
        """The RESULT line; ``more`` are further keys."""
        return result_line(
            status=self.status,
            exit_code=self.exit_code,
            run_dir=str(self.run_dir) if self.run_dir else None,
            rows=len(self.rows),
            restarts=self.restarts,
            wandb_dir=str(self.wandb.dir) if self.wandb and self.wandb.dir else None,
            error=self.error,
            **more,
        )
