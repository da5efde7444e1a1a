"""One W&B run, as far as the job uses it. The only module that imports wandb.

Facts about wandb 0.31.0 that shape it, each met by a test:

- ``init`` keeps ``init_timeout``, and ``finish`` ``finish_timeout``, but neither where the service process is frozen;
- a Table or an artifact asks the server before it is logged: a frozen server blocks that for a minute and more;
- ``log`` holds a step back until the next one begins, unless told to commit;
- error reports to W&B hold up the interpreter's exit for 20 s where the server is frozen.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config.choices import WandbMode
from jobs.records.row import RowSummary
from jobs.results.wandb import metrics, per_rank
from jobs.results.wandb.bounded import call_within
from jobs.results.wandb.charts import Chart
from jobs.results.wandb.process import kill_services

if TYPE_CHECKING:
    import wandb

logger = logging.getLogger(__name__)

# Beyond init_timeout, for a wandb that doesn't keep it.
INIT_MARGIN_S = 5.0
TEARDOWN_LIMIT_S = 5.0
ABORT_LIMIT_S = 1.0
# For a start that was given up to come to its end.
GIVEN_UP_LIMIT_S = 0.5
_USER_HAS_DATA_DIR = "WANDB_DATA_DIR" in os.environ


class NoKeyError(Exception):
    """No API key is configured."""


@dataclasses.dataclass(frozen=True)
class Files:
    """What a run gets at its end."""

    per_rank_lines: Sequence[Sequence[Any]]
    charts: Sequence[Chart]
    pictures: Mapping[Path, str]
    """PNG files with their captions."""
    journal: Path


class RunStarter:
    """Starts the run, a second time if need be, and ends W&B's service process; waits for neither without a limit.

    Args:
      run_dir: the job's run directory; W&B's files go into ``wandb`` there.
      key: API key; ``None``: what WANDB_API_KEY, netrc or W&B's own settings say.
      init_timeout_s: limit for the server to accept the run.
      upload_timeout_s: limit for the upload at the end.
      init: what else ``wandb.init`` gets: project, config, ...
    """

    def __init__(
        self, *, run_dir: Path, key: str | None, init_timeout_s: float, upload_timeout_s: float, init: Mapping[str, Any]
    ) -> None:
        self._folder = run_dir / "wandb"
        self._limit_s = init_timeout_s + INIT_MARGIN_S
        self._init = {**init, "dir": str(run_dir)}
        self._key = key
        self._init_timeout_s = init_timeout_s
        self._upload_timeout_s = upload_timeout_s

    def start(self, mode: WandbMode, *, run_id: str | None = None) -> WandbRun:
        """A run that is online or offline, under a new id or an old one. If this raises, nothing of it is left.

        Raises:
          NoKeyError: online, and no key is configured.
          TimeoutError: W&B doesn't keep its own limit.
          Exception: whatever else W&B raises.
        """
        before = set(self._folder.glob("*run-*"))
        making = threading.Lock()
        try:
            return WandbRun(call_within(self._limit_s, partial(self._start, mode, run_id, making)))
        except BaseException:
            # Held for good, or the thread that was left behind would still make the run.
            making.acquire(timeout=GIVEN_UP_LIMIT_S)
            # Nothing is lost with it, and a job that is stopped here has 3 s.
            self.close(ABORT_LIMIT_S)
            # A later `wandb sync` would upload the empty run.
            for path in set(self._folder.glob("*run-*")) - before:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def _start(self, mode: WandbMode, run_id: str | None, making: threading.Lock) -> wandb.Run:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Takes a second, and nothing comes of it.
        import wandb  # noqa: F401

        with making:
            return self._make(mode, run_id)

    def _make(self, mode: WandbMode, run_id: str | None) -> wandb.Run:
        import wandb
        from wandb.sdk.lib import wbauth

        settings = self._wandb_settings()
        base_url = wandb.setup(settings).settings.base_url
        # Not before setup(): that would take the key for one of W&B's own server, whatever WANDB_BASE_URL says.
        settings.api_key = self._key
        # init() would open a prompt on a terminal, and wandb.login(), which can be told not to, writes to the user's
        # settings.
        if (
            mode is WandbMode.online
            and not self._key
            and not wbauth.authenticate_session(host=base_url, source="init", prompt=False, update_session=False)
        ):
            raise NoKeyError("no API key: run `wandb login`, or set wandb.api_key_file or WANDB_API_KEY")
        if mode is WandbMode.online:
            return wandb.init(
                **self._init, mode="online", id=run_id, resume="allow" if run_id else None, settings=settings
            )
        return wandb.init(**self._init, mode="offline", id=run_id, settings=settings)

    def _wandb_settings(self) -> wandb.Settings:
        import wandb

        return wandb.Settings(
            init_timeout=self._init_timeout_s,
            finish_timeout=self._upload_timeout_s,
            finish_timeout_raises=True,
            # Standard output is the job's table; the log names what went wrong.
            silent=True,
            console="off",
            # Not the process's global run: a dead one would be taken for the new one.
            reinit="create_new",
            # The driver may share its host with ranks that are timed; they sample NVML themselves.
            x_disable_stats=True,
            # Uploaded is what the run directory holds: no code, and no diff of a checkout.
            save_code=False,
            disable_code=True,
            disable_git=True,
            label_disable=True,
            # A killed job keeps all but the last second, and `wandb leet` shows rows as they come; so does the server.
            x_transaction_log_flush_interval=1.0,
            x_file_stream_transmit_interval=2.0,
        )

    @staticmethod
    def close(limit_s: float = TEARDOWN_LIMIT_S) -> None:
        """End the service process; kill it if it hasn't ended after ``limit_s``."""
        # A module that another thread still imports has none.
        teardown = getattr(sys.modules.get("wandb"), "teardown", None)
        if teardown is None:
            return
        try:
            call_within(limit_s, teardown)
        except TimeoutError:
            kill_services()
        except Exception as error:
            logger.info("W&B's service was gone already: %s", error)
            # That ended the first call early; the second one forgets the session's credentials.
            call_within(limit_s, teardown)


class WandbRun:
    """A run that was started. Once the service has died, methods raise ``ConnectionError`` or wandb's own errors."""

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        self.id: str = run.id
        # run.dir is the folder of the run's files, inside the run's own.
        self.dir = Path(run.dir).absolute().parent
        """What ``wandb leet`` and ``wandb sync`` take."""
        self.url: str | None = run.url
        self._defined: set[str] = set()
        # Labels of a row: their curves would say nothing.
        for name in ("case/*", "attempt", "island"):
            run.define_metric(name, hidden=True)
        run.define_metric("gpu/*", step_metric=metrics.STEP)

    def define_metrics(self, implementation: str) -> None:
        """Let its interesting curves be drawn over the number of the case, and the rest be there when asked for."""
        for metric in metrics.OF_IMPLEMENTATION:
            if metric.is_drawn:
                self._run.define_metric(f"{implementation}/{metric.name}", step_metric=metrics.STEP)
        self._run.define_metric(f"{implementation}/*", step_metric=metrics.STEP, hidden=True)

    def log_row(self, row: RowSummary, step: int, case_number: int) -> None:
        """Log a row under the names of ``metrics``; a failed check also raises an alert."""
        if row.implementation not in self._defined:
            self._defined.add(row.implementation)
            self.define_metrics(row.implementation)
        self._run.log(metrics.history(row, case_number), step=step, commit=True)
        if row.check and row.failed:
            self._run.alert(
                title=f"Check failed: {row.implementation} on {row.case.name}",
                text=f"{row.case}: {row.check.num_wrong} of {row.check.num_elements} elements wrong",
                level="ERROR",
                wait_duration=0,
            )

    def add_tags(self, tags: Iterable[str]) -> None:
        """Add those that the run doesn't have."""
        known = self._run.tags or ()
        if new := [tag for tag in dict.fromkeys(tags) if tag not in known]:
            self._run.tags = (*known, *new)

    def log_files(self, files: Files, step: int) -> None:
        """Log tables, charts, pictures, and the journal as an artifact of type ``results``. May block for minutes."""
        import wandb

        # The copies that an offline run uploads later belong to it, and not into a home that a container takes with it.
        if not _USER_HAS_DATA_DIR:
            os.environ["WANDB_DATA_DIR"] = str(self.dir.parent)
        media: dict[str, Any] = {}
        if files.per_rank_lines:
            media["per_rank"] = wandb.Table(columns=list(per_rank.COLUMNS), data=list(files.per_rank_lines))
        media |= {f"charts/{chart.name}": _plot(chart) for chart in files.charts}
        media |= {
            f"pictures/{path.stem}": wandb.Image(str(path), caption=caption) for path, caption in files.pictures.items()
        }
        if media:
            self._run.log(media, step=step, commit=True)
        if files.journal.exists():
            artifact = wandb.Artifact(f"results-{self.id}", type="results")
            # immutable: taken from where it lies, not from a copy in the home directory.
            artifact.add_file(str(files.journal), policy="immutable")
            self._run.log_artifact(artifact)

    def summarize(self, values: Mapping[str, metrics.Scalar]) -> None:
        """Set values of the summary."""
        self._run.summary.update(dict(values))

    def finish(self, exit_code: int) -> None:
        """End the run.

        Raises:
          TimeoutError: the upload took longer than its limit; what is missing is in ``dir``.
        """
        self._run.finish(exit_code=exit_code)


def _plot(chart: Chart) -> Any:
    import wandb

    table = wandb.Table(columns=list(chart.columns), data=[list(line) for line in chart.lines])
    if chart.kind == "bar":
        return wandb.plot.bar(table, chart.x, chart.y, title=chart.title)
    if chart.kind == "line":
        return wandb.plot.line(table, chart.x, chart.y, stroke=chart.stroke, title=chart.title)
    return wandb.plot.scatter(table, chart.x, chart.y, title=chart.title)
