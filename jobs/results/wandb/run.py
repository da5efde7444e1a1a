"""A W&B run, and its start. Beside ``rules`` the only module that imports wandb.

Behaviour of wandb 0.31.0 that shapes it, each covered by a test:

- ``init`` keeps ``init_timeout``, and ``finish`` keeps ``finish_timeout``, but not where the service process is frozen.
- Logging a Table or an artifact asks the server first: a frozen server blocks it for a minute and more.
- ``log`` holds a step back until the next one begins, unless ``commit`` is set.
- Error reports to W&B delay the interpreter's exit by 20 s where the server is frozen.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config.choices import WandbMode
from jobs.records.row import RowSummary
from jobs.results.wandb import metrics, per_rank, service
from jobs.results.wandb.bounded import call_within
from jobs.results.wandb.charts import Chart

if TYPE_CHECKING:
    import wandb

# Beyond init_timeout, for a wandb that doesn't keep it.
INIT_MARGIN_S = 5.0
# Offline no server is waited for, but W&B's own service, which a busy machine starts slowly.
OFFLINE_LIMIT_S = 120.0
# For the service's end after a failed start: nothing is lost, and a job that is stopped here has 3 s.
ABORT_LIMIT_S = 1.0
# For the thread of a failed start to end.
GIVEN_UP_LIMIT_S = 0.5
_USER_HAS_DATA_DIR = "WANDB_DATA_DIR" in os.environ


class NoKeyError(Exception):
    """No API key is configured."""


@dataclasses.dataclass(frozen=True)
class Files:
    """Files and data that are logged at a run's end."""

    per_rank_lines: Sequence[Sequence[Any]]
    charts: Sequence[Chart]
    pictures: Mapping[Path, str]
    """PNG files with their captions."""
    journal: Path


@dataclasses.dataclass(kw_only=True)
class RunStarter:
    """Starts the run, as often as needed, within a limit."""

    run_dir: Path
    """The job's run directory; W&B's files go into its folder ``wandb``."""
    key: str | None = dataclasses.field(repr=False)
    """API key; ``None``: that of WANDB_API_KEY, netrc or W&B's own settings."""
    init_timeout_s: float
    """Limit for the server to accept the run."""
    upload_timeout_s: float
    """Limit for the upload at the end."""
    init: Mapping[str, Any]
    """Further arguments of ``wandb.init``: project, config, ..."""
    server: str | None = dataclasses.field(default=None, init=False)
    """URL of the W&B server: of WANDB_BASE_URL, W&B's own settings or W&B itself; known after a start."""

    def start(self, mode: WandbMode, *, run_id: str | None = None) -> WandbRun:
        """Start the run online or offline, under a new id or ``run_id``. A failed start leaves nothing behind.

        Raises:
          NoKeyError: online, and no key is configured.
          TimeoutError: W&B exceeded its own limit.
          Exception: any other error of W&B's.
        """
        folder = self.run_dir / "wandb"
        before = set(folder.glob("*run-*"))
        making = threading.Lock()
        try:
            start = partial(self._start, mode, run_id, making)
            return WandbRun(call_within(self._limit_s(mode) + INIT_MARGIN_S, start))
        except BaseException:
            # Never released: otherwise the abandoned thread would still make the run.
            making.acquire(timeout=GIVEN_UP_LIMIT_S)
            service.end(ABORT_LIMIT_S)
            # A later `wandb sync` would upload the empty run.
            for path in set(folder.glob("*run-*")) - before:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def _limit_s(self, mode: WandbMode) -> float:
        return self.init_timeout_s if mode is WandbMode.online else max(self.init_timeout_s, OFFLINE_LIMIT_S)

    def _start(self, mode: WandbMode, run_id: str | None, making: threading.Lock) -> wandb.Run:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Outside the lock: the import takes a second and leaves nothing behind.
        import wandb  # noqa: F401

        with making:
            return self._make(mode, run_id)

    def _make(self, mode: WandbMode, run_id: str | None) -> wandb.Run:
        import wandb
        from wandb.sdk.lib import wbauth

        settings = self._wandb_settings(mode)
        self.server = wandb.setup(settings).settings.base_url
        # After setup(), which would take the key for one of W&B's own server, whatever WANDB_BASE_URL says.
        settings.api_key = self.key
        # init() would prompt on a terminal; wandb.login(prompt=False) would write to the user's settings.
        if (
            mode is WandbMode.online
            and not self.key
            and not wbauth.authenticate_session(host=self.server, source="init", prompt=False, update_session=False)
        ):
            raise NoKeyError("no API key: run `wandb login`, or set wandb.api_key_file or WANDB_API_KEY")
        options: dict[str, Any] = {**self.init, "dir": str(self.run_dir), "mode": mode.value, "id": run_id}
        if mode is WandbMode.online and run_id:
            options["resume"] = "allow"
        return wandb.init(**options, settings=settings)

    def _wandb_settings(self, mode: WandbMode) -> wandb.Settings:
        import wandb

        return wandb.Settings(
            init_timeout=self._limit_s(mode),
            finish_timeout=self.upload_timeout_s,
            finish_timeout_raises=True,
            # Standard output is the job's table; errors go to the log.
            silent=True,
            console="off",
            # Without this, init() returns the process's global run, even a dead one.
            reinit="create_new",
            # The driver may share its host with ranks under measurement, which sample NVML themselves.
            x_disable_stats=True,
            # Upload neither code nor the checkout's diff.
            save_code=False,
            disable_code=True,
            disable_git=True,
            label_disable=True,
            # A killed job loses at most a second, and rows show in `wandb leet` and on the server as they come.
            x_transaction_log_flush_interval=1.0,
            x_file_stream_transmit_interval=2.0,
        )


class WandbRun:
    """A started run. Once the service has died, methods raise ``ConnectionError`` or wandb's own errors."""

    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        self.id: str = run.id
        # run.dir is the subfolder for the run's files.
        self.dir = Path(run.dir).absolute().parent
        """Directory for ``wandb leet`` and ``wandb sync``."""
        self.url: str | None = run.url
        self._defined: set[str] = set()
        # Labels of a row have no meaningful curve.
        for name in ("case/*", "attempt", "island"):
            run.define_metric(name, hidden=True)
        run.define_metric("gpu/*", step_metric=metrics.STEP)

    def define_metrics(self, implementation: str) -> None:
        """Draw an implementation's main curves over the number of the case, and hide its others."""
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
        """Add the tags that the run doesn't have yet."""
        known = self._run.tags or ()
        if new := [tag for tag in dict.fromkeys(tags) if tag not in known]:
            self._run.tags = (*known, *new)

    def log_files(self, files: Files, step: int) -> None:
        """Log tables, charts, pictures, and the journal as an artifact of type ``results``. May block for minutes."""
        import wandb

        # Copies for a later upload stay in the run directory: a home may vanish with its container.
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
            # immutable: not copied to the home directory first.
            artifact.add_file(str(files.journal), policy="immutable")
            self._run.log_artifact(artifact)

    def summarize(self, values: Mapping[str, metrics.Scalar]) -> None:
        """Set values of the summary."""
        self._run.summary.update(dict(values))

    def finish(self, exit_code: int) -> None:
        """End the run.

        Raises:
          TimeoutError: the upload exceeded its limit; ``dir`` has the rest.
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
