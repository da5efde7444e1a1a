"""The job's one W&B run, owned by the driver. W&B never holds up or fails a job that has begun to measure."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.errors import InfrastructureError, UsageError
from jobs.records.case import Case
from jobs.records.member import Member
from jobs.records.row import RowSummary
from jobs.results.disk.journal import JOURNAL_NAME
from jobs.results.disk.json_safe import json_safe
from jobs.results.wandb import metrics, per_rank
from jobs.results.wandb.bounded import call_within
from jobs.results.wandb.charts import charts
from jobs.results.wandb.metrics import Scalar
from jobs.results.wandb.process import browse_command, read_key_file, sync_command
from jobs.results.wandb.run import Files, NoKeyError, RunStarter, WandbRun

logger = logging.getLogger(__name__)

# For a row: where W&B's service hangs, what it doesn't read piles up, and after some dozen rows the next one waits.
ROW_LIMIT_S = 10.0
# Shares of finish_timeout_s: for handing over the table and the artifact, and for the upload of everything.
FILES_SHARE, UPLOAD_SHARE = 0.3, 0.6
# W&B's rules.
MAX_TAG_LENGTH, MAX_TABLE_LINES = 64, 10_000


class WandbSink:
    """The run in one of the modes, or nothing where W&B is disabled. Made by ``start``."""

    def __init__(self, settings: WandbSettings, run_dir: Path, starter: RunStarter | None = None) -> None:
        self.mode = WandbMode.disabled
        """As it is: online, offline or disabled."""
        self.fallback_reason: str | None = None
        """Why ``auto`` isn't online although a key is configured."""
        self.complete = True
        """Whether W&B took everything so far; the journal has what is missing."""
        self.dir: Path | None = None
        """Directory of the W&B run, absolute; ``None`` where there is none."""
        self.url: str | None = None
        self.run_id: str | None = None
        """W&B's id of the run: what ``start`` takes to continue it."""
        self._finish_timeout_s = settings.finish_timeout_s
        self._run_dir = run_dir
        self._starter = starter
        self._run: WandbRun | None = None
        # Without their samples, and with the tags that they bring.
        self._rows: list[tuple[RowSummary, list[str]]] = []
        self._per_rank_lines: deque[list[Any]] = deque(maxlen=MAX_TABLE_LINES)
        # The fastest row of each implementation; cases in the order of their numbers.
        self._cases: dict[Case, dict[str, RowSummary]] = {}
        self._failed: set[Case] = set()
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
        """Start the run. To be called before GPUs are reserved: it takes up to ``init_timeout_s`` and some seconds.

        ``auto`` is online where a key is configured (``api_key_file``, WANDB_API_KEY, netrc), else offline; WANDB_MODE
        may turn it to offline or disabled. A key isn't written anywhere. ``run_id`` continues an earlier job's run,
        whose rows ``replay`` takes. ``name`` is the run's where the config has none.

        Raises:
          UsageError: the key's file can't be read, or a tag has no or too many characters.
          InfrastructureError: ``online`` or ``offline`` was asked for and can't be had.
        """
        mode = _wanted_mode(settings.mode)
        if mode is WandbMode.disabled:
            sink = cls(settings, run_dir)
            sink.run_id = run_id
            return sink
        for tag in tags:
            if not 1 <= len(tag) <= MAX_TAG_LENGTH:
                raise UsageError(f"wandb.tags: {tag!r} must have 1 to {MAX_TAG_LENGTH} characters")
        init = {"project": settings.project, "entity": settings.entity, "name": settings.name or name, "group": group}
        starter = RunStarter(
            run_dir=run_dir,
            key=None if mode is WandbMode.offline else read_key_file(settings.api_key_file),
            init_timeout_s=settings.init_timeout_s,
            upload_timeout_s=settings.finish_timeout_s * UPLOAD_SHARE,
            init={**init, "tags": list(tags), "config": json_safe(config)},
        )
        sink = cls(settings, run_dir, starter)
        if mode is not WandbMode.offline:
            sink._open(WandbMode.online, run_id, fatal=mode is WandbMode.online)
        if sink._run is None:
            sink._open(WandbMode.offline, run_id, fatal=mode is WandbMode.offline)
        return sink

    def log_row(self, row: RowSummary, members: Sequence[Member]) -> None:
        """Log a row as the next step, under the names of ``metrics``; a failed check also raises an alert."""
        if self._starter is None:
            return
        if row.medians_us:
            self._per_rank_lines += per_rank.lines(row, members)
        self._rows.append((row, metrics.tags(row, members)))
        if self._run is None:
            return
        try:
            self._hand_over(self._run, len(self._rows) - 1)
        except (ConnectionError, TimeoutError) as error:
            self._revive(error)
        except Exception as error:
            self._note(f"a row was not logged: {_told(error)}")

    def replay(self, rows: Sequence[tuple[RowSummary, Sequence[Member]]]) -> None:
        """Log the rows of the job that this one continues: what of them W&B got is overwritten by the same.

        An offline run is then whole in its new folder, and the earlier job's folders of it are removed: ``wandb sync``
        would upload the rows twice.
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

        ``more`` goes into the summary as well; ``pictures`` are PNG files with their captions.

        Takes up to ``finish_timeout_s`` and some seconds; what W&B hasn't got by then stays on disk. Raises nothing: a
        problem is logged, and ``complete`` is false.
        """
        if self._run is None or self._starter is None:
            return
        end = {"status": status, "exit_code": exit_code, **(more or {})}
        try:
            try:
                self._conclude(self._run, end, pictures or {})
            except TimeoutError:
                raise
            except Exception as error:
                # `ray job stop` signals all descendants of the driver: W&B's service dies of it at once.
                self._revive(error)
                if self._run is not None:
                    self._conclude(self._run, end, pictures or {})
        except Exception as error:
            self._note(f"the run is not finished: {_told(error)}")
        finally:
            self._run = None
            self._starter.close()

    def browse_lines(self) -> list[str]:
        """Where the run is and how to look at it: for the end of the output."""
        if self.dir is None:
            return []
        lines = [f"# W&B     : {self.mode.value}, {self.url or self.dir}"]
        if self.mode is WandbMode.offline:
            lines.append(f"#   browse : {browse_command(self.dir)}")
        if self.mode is WandbMode.offline or not self.complete:
            lines.append(f"#   sync   : {sync_command(self.dir)}")
        return lines

    def _open(self, mode: WandbMode, run_id: str | None, *, fatal: bool) -> None:
        """Start the run in ``mode``; where that fails and isn't fatal, the sink is left without one, loudly."""
        assert self._starter is not None
        try:
            self._take(self._starter.start(mode, run_id=run_id), mode)
        except NoKeyError as error:
            if fatal:
                raise InfrastructureError(f"wandb.mode={mode.value}: {error}") from error
        except Exception as error:
            if fatal:
                raise InfrastructureError(f"wandb.mode={mode.value}: {_told(error)}") from error
            self.fallback_reason = _told(error)
            logger.warning("W&B can't be %s and falls back to offline: %s", mode.value, self.fallback_reason)

    def _take(self, run: WandbRun, mode: WandbMode) -> None:
        self._run, self.mode, self.dir, self.url, self.run_id = run, mode, run.dir, run.url, run.id
        logger.info("W&B is %s: %s", mode.value, run.url or run.dir)

    def _hand_over(self, run: WandbRun, step: int) -> None:
        """Give ``run`` the row that is its step ``step``; ``TimeoutError`` where it doesn't take it."""
        call_within(ROW_LIMIT_S, partial(self._log, run, step))

    def _log(self, run: WandbRun, step: int) -> None:
        row, tags = self._rows[step]
        of_case = self._cases.setdefault(row.case, {})
        known = of_case.get(row.implementation)
        if known is None or _time_us(row) <= _time_us(known):
            of_case[row.implementation] = row
        if row.failed:
            self._failed.add(row.case)
        run.add_tags(tags)
        run.log_row(row, step, 1 + list(self._cases).index(row.case))
        # Islands have the same cases each.
        if row.island is None:
            run.summarize(metrics.case_summary(of_case, passed=row.case not in self._failed))

    def _conclude(self, run: WandbRun, end: Mapping[str, Any], pictures: Mapping[Path, str]) -> None:
        """What ``finish`` does, each part within its limit; after a timeout the part is left behind in its thread."""
        deadline_s = time.monotonic() + self._finish_timeout_s
        num_failed = sum(row.failed for row, _ in self._rows)
        summary = {**end, "rows": len(self._rows), "failed_checks": num_failed}
        call_within(self._finish_timeout_s, lambda: run.summarize(summary))
        try:
            shown = charts(self._cases, [row for row, _ in self._rows], list(self._per_rank_lines))
            files = Files(list(self._per_rank_lines), shown, pictures, self._run_dir / JOURNAL_NAME)
            call_within(self._finish_timeout_s * FILES_SHARE, lambda: run.log_files(files, len(self._rows)))
        except ConnectionError:
            raise
        except Exception as error:
            self._note(f"tables, pictures and the journal are not in the run: {_told(error)}")
        call_within(deadline_s - time.monotonic(), lambda: run.finish(end["exit_code"]))

    def _revive(self, error: Exception) -> None:
        """Once W&B's service has died, or hangs: make the run again, under its id and from the rows."""
        old, self._run = self._run, None
        assert old is not None
        assert self._starter is not None
        self._starter.close()
        if self._revived:
            self._note(f"its service was lost again: {_told(error)}")
            return
        self._revived = True
        try:
            run = self._starter.start(self.mode, run_id=old.id)
            for step in range(len(self._rows)):
                self._hand_over(run, step)
        except Exception as again:
            self._note(f"its service was lost and can't be started again: {_told(again)}")
            return
        logger.info("W&B's service was lost (%s); the run was made again from the rows", _told(error))
        self._take(run, self.mode)
        if old.dir != run.dir:
            shutil.rmtree(old.dir, ignore_errors=True)

    def _note(self, problem: str) -> None:
        self.complete = False
        logger.warning("W&B: %s; the journal in %s has everything", problem, self._run_dir)


def _wanted_mode(mode: WandbMode) -> WandbMode:
    from_environment = os.environ.get("WANDB_MODE", "")
    if mode is WandbMode.auto and from_environment in (WandbMode.offline.value, WandbMode.disabled.value):
        return WandbMode(from_environment)
    return mode


def _time_us(row: RowSummary) -> float:
    return math.inf if row.headline_us is None else row.headline_us


def _told(error: BaseException) -> str:
    """Kind and first line of an error; the rest is advice for users of wandb's own API."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
