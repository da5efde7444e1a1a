"""The job's W&B run, owned by the driver. Once the job measures, W&B neither delays nor fails it."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.errors import InfrastructureError, UsageError
from jobs.records.member import Member
from jobs.records.row import RowSummary
from jobs.results.disk.journal import JOURNAL_NAME
from jobs.results.disk.json_safe import json_safe
from jobs.results.wandb import service
from jobs.results.wandb.api_key import read_key_file
from jobs.results.wandb.bounded import call_within
from jobs.results.wandb.commands import browse_command, sync_command
from jobs.results.wandb.logged_rows import LoggedRows
from jobs.results.wandb.metrics import Scalar
from jobs.results.wandb.run import NoKeyError, RunStarter, WandbRun
from jobs.results.wandb.variables import wanted_mode

logger = logging.getLogger(__name__)

# For one row. Where W&B's service hangs, unread rows pile up, and after some dozen of them the next one blocks.
ROW_LIMIT_S = 10.0
END_LIMIT_S = 5.0
# Shares of finish_timeout_s for logging the files and for uploading everything.
FILES_SHARE, UPLOAD_SHARE = 0.3, 0.6
MAX_TAG_LENGTH = 64  # W&B's rule
DEFAULT_PROJECT = "cmkernel"


class WandbSink:
    """The run in one of the modes; does nothing where W&B is disabled. Made by ``start``."""

    def __init__(self, settings: WandbSettings, run_dir: Path, starter: RunStarter | None = None) -> None:
        self.mode = WandbMode.disabled
        """Actual mode: online, offline or disabled."""
        self.fallback_reason: str | None = None
        """Reason why ``auto`` isn't online although a key is configured."""
        self.complete = True
        """True while W&B has taken everything; the journal has what is missing."""
        self.dir: Path | None = None
        """Directory of the W&B run, absolute; ``None`` without a run."""
        self.url: str | None = None
        self.run_id: str | None = None
        """W&B's id of the run; ``start`` takes it to continue the run."""
        self._finish_timeout_s = settings.finish_timeout_s
        self._key_file = settings.api_key_file
        self._run_dir = run_dir
        self._starter = starter
        self._run: WandbRun | None = None
        self._rows = LoggedRows()
        self._revived = False

    @classmethod
    def start(
        cls,
        settings: WandbSettings,
        *,
        run_dir: Path,
        config: Mapping[str, Any],
        group: str | None,
        tags: Sequence[str],
        name: str | None = None,
        run_id: str | None = None,
    ) -> WandbSink:
        """Start the run. Call it before GPUs are reserved: it takes up to ``init_timeout_s`` and some seconds.

        ``auto`` is the mode of WANDB_MODE, else online where a key is configured (``api_key_file``, WANDB_API_KEY,
        netrc), else offline. The key isn't written anywhere. ``run_id`` continues an earlier job's run;
        ``replay`` takes its rows. ``name`` is the run's name where the config has none.

        Raises:
          UsageError: the key's file can't be read, or a tag is empty or too long.
          InfrastructureError: the config asks for ``online`` or ``offline``, and W&B can't start so.
        """
        mode = wanted_mode(settings.mode)
        if mode is WandbMode.disabled:
            sink = cls(settings, run_dir)
            sink.run_id = run_id
            return sink
        if bad := [tag for tag in tags if not 1 <= len(tag) <= MAX_TAG_LENGTH]:
            raise UsageError(f"wandb.tags: {bad[0]!r} must have 1 to {MAX_TAG_LENGTH} characters")
        init = {"project": settings.project or DEFAULT_PROJECT, "entity": settings.entity, "group": group}
        starter = RunStarter(
            run_dir=run_dir,
            key=None if mode is WandbMode.offline else read_key_file(settings.api_key_file),
            init_timeout_s=settings.init_timeout_s,
            upload_timeout_s=settings.finish_timeout_s * UPLOAD_SHARE,
            init={**init, "name": settings.name or name, "tags": list(tags), "config": json_safe(config)},
        )
        sink = cls(settings, run_dir, starter)
        if mode is not WandbMode.offline:
            sink._open(WandbMode.online, run_id, fatal=mode is WandbMode.online)
        if sink._run is None:
            sink._open(WandbMode.offline, run_id, fatal=mode is WandbMode.offline)
        return sink

    def log_row(self, row: RowSummary, members: Sequence[Member]) -> None:
        """Log a row as the next step, under the names of ``metrics``; a failed check also raises an alert.

        Raises nothing: a problem is logged, and ``complete`` becomes false.
        """
        if self._starter is None:
            return
        try:
            self._rows.add(row, members)
            if self._run is not None:
                call_within(ROW_LIMIT_S, partial(self._rows.log, self._run, len(self._rows) - 1))
        except (ConnectionError, TimeoutError) as error:
            self._revive(error)
        except Exception as error:
            self._note(f"a row was not logged: {_brief(error)}")

    def replay(self, rows: Sequence[tuple[RowSummary, Sequence[Member]]]) -> None:
        """Log the rows of the job that this one continues; the same rows overwrite those that W&B has.

        An offline run is then complete in its new folder. The earlier job's folders of it are removed, because ``wandb
        sync`` would upload the rows twice.
        """
        for row, members in rows:
            self.log_row(row, members)
        if self._run is None or not self.complete:
            return
        for path in (self._run_dir / "wandb").glob(f"offline-run-*-{self._run.id}"):
            if path != self.dir:
                shutil.rmtree(path, ignore_errors=True)

    def finish(
        self,
        *,
        exit_code: int,
        status: str,
        more: Mapping[str, Scalar] | None = None,
        pictures: Mapping[Path, str] | None = None,
    ) -> None:
        """End the run with tables, charts, pictures, the journal as an artifact, and the job's end in the summary.

        ``more`` goes into the summary, too; ``pictures`` are PNG files with their captions.
        Takes up to ``finish_timeout_s`` and some seconds; what W&B hasn't taken by then stays on disk. Raises nothing:
        a problem is logged, and ``complete`` becomes false.
        """
        if self._run is None or self._starter is None:
            return
        end = {"status": status, "exit_code": exit_code, **(more or {})}
        deadline_s = time.monotonic() + self._finish_timeout_s
        try:
            try:
                self._conclude(self._run, end, pictures or {}, deadline_s)
            except TimeoutError:
                raise
            except Exception as error:
                # `ray job stop` signals all descendants of the driver, and W&B's service dies of it at once.
                self._revive(error)
                if self._run is not None:
                    self._conclude(self._run, end, pictures or {}, deadline_s)
        except Exception as error:
            self._note(f"the run is not finished: {_brief(error)}")
        finally:
            self._run = None
            if not service.end(END_LIMIT_S):
                self._note("its service had to be killed")

    def browse_lines(self) -> list[str]:
        """Lines for the end of the output: where the run is, and the commands to look at it."""
        if self.dir is None:
            return []
        lines = [f"# W&B     : {self.mode.value}, {self.url or self.dir}"]
        is_offline = self.mode is WandbMode.offline
        lines += [f"#   browse : {browse_command(self.dir)}"] if is_offline else []
        sync = sync_command(self.dir, self._key_file)
        return lines + ([f"#   sync   : {sync}"] if is_offline or not self.complete else [])

    def _open(self, mode: WandbMode, run_id: str | None, *, fatal: bool) -> None:
        """Start the run in ``mode``. A failure that isn't fatal is logged and leaves the sink without a run."""
        assert self._starter is not None
        try:
            self._take(self._starter.start(mode, run_id=run_id), mode)
        except Exception as error:
            without_key = isinstance(error, NoKeyError)
            # The second line has the server's status or the cause.
            reason = str(error) if without_key else _brief(error, num_lines=2)
            if mode is WandbMode.online and not without_key:
                reason = f"{self._starter.server}: {reason}"
            if fatal:
                raise InfrastructureError(f"wandb.mode={mode.value}: {reason}") from error
            if mode is WandbMode.offline:
                self._note(f"it can't be offline either: {reason}")
            elif not without_key:
                self.fallback_reason = reason
                logger.warning("W&B can't be online and falls back to offline: %s", reason)

    def _take(self, run: WandbRun, mode: WandbMode) -> None:
        self._run, self.mode, self.dir, self.url, self.run_id = run, mode, run.dir, run.url, run.id
        logger.info("W&B is %s: %s", mode.value, run.url or run.dir)

    def _conclude(self, run: WandbRun, end: Mapping[str, Any], pictures: Mapping[Path, str], deadline_s: float) -> None:
        """Do what ``finish`` promises, each part within its limit; a part that times out goes on in its thread."""
        summary = {**end, "rows": len(self._rows), "failed_checks": self._rows.num_failed}
        call_within(deadline_s - time.monotonic(), lambda: run.summarize(summary))
        try:
            files = self._rows.files(pictures, self._run_dir / JOURNAL_NAME)
            limit_s = min(self._finish_timeout_s * FILES_SHARE, deadline_s - time.monotonic())
            call_within(limit_s, lambda: run.log_files(files, len(self._rows)))
        except ConnectionError:
            raise
        except Exception as error:
            self._note(f"tables, pictures and the journal are not in the run: {_brief(error)}")
        call_within(deadline_s - time.monotonic(), lambda: run.finish(end["exit_code"]))

    def _revive(self, error: Exception) -> None:
        """After W&B's service died or hung, make the run again, once: under its id, from the rows."""
        old, self._run = self._run, None
        assert old is not None
        assert self._starter is not None
        service.end(END_LIMIT_S)
        if self._revived:
            self._note(f"its service was lost again: {_brief(error)}")
            return
        self._revived = True
        try:
            run = self._starter.start(self.mode, run_id=old.id)
            for step in range(len(self._rows)):
                call_within(ROW_LIMIT_S, partial(self._rows.log, run, step))
        except Exception as again:
            service.end(END_LIMIT_S)
            self._note(f"its service was lost and can't be started again: {_brief(again)}")
            return
        logger.info("W&B's service was lost (%s); the run was made again from the rows", _brief(error))
        self._take(run, self.mode)
        if old.dir != run.dir:
            shutil.rmtree(old.dir, ignore_errors=True)

    def _note(self, problem: str) -> None:
        self.complete = False
        logger.warning("W&B: %s; the journal in %s has everything", problem, self._run_dir)


def _brief(error: BaseException, num_lines: int = 1) -> str:
    """Type and first lines of an error; the rest is advice for users of wandb's own API."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:num_lines]])
