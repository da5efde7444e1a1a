"""Environment of a job: the content of ``environment.json`` and of ``environment`` in the W&B config."""

from __future__ import annotations

import dataclasses
import functools
import getpass
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.records.member import Member

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from jobs.records.row import AnyRow


ENVIRONMENT_NAME = "environment.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GangRecord:
    """One gang: the ranks that measured an attempt."""

    attempt: int = 1
    """Number of the gang in its job; 1 in journals of version 1, which have none."""
    members: tuple[Member, ...] = ()
    ended: str | None = None
    """Reason why the gang ended; ``None`` for the last one."""
    restart_s: float | None = None
    """Seconds from the gang's loss to the first step of the next gang."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GangsRecord:
    """Gangs of one island, or of a job without islands: the last gang and the earlier ones."""

    island: str | None = None
    attempt: int = 0
    """Number of the last gang; 0 before the first."""
    members: tuple[Member, ...] = ()
    gang: str | None = None
    """``fresh``, or the point of a multirun whose gang was reused."""
    earlier_attempts: tuple[GangRecord, ...] = ()

    def all(self) -> tuple[GangRecord, ...]:
        """Every gang, the last one at the end."""
        return *self.earlier_attempts, GangRecord(attempt=self.attempt or 1, members=self.members)

    def retired(self, ended: str) -> GangsRecord:
        """Move the last gang to the earlier ones."""
        if not self.attempt:
            return self
        known = {gang.attempt: gang for gang in self.earlier_attempts}
        known[self.attempt] = GangRecord(attempt=self.attempt, members=self.members, ended=ended)
        earlier = tuple(known[attempt] for attempt in sorted(known))
        return GangsRecord(island=self.island, attempt=self.attempt, earlier_attempts=earlier)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """Command, code, machine and gangs of a job. Fields that an old run lacks are ``None``."""

    command: str | None = None
    git_sha: str | None = None
    """Commit of the code; ends in ``-dirty`` if files differ from it."""
    python: str | None = None
    platform: str | None = None
    driver_host: str | None = None
    user: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    """Versions of the packages that all hosts have."""
    outlier_z: float | None = None
    """``cluster.outlier_z`` of the job."""
    wandb_name: str | None = None
    wandb_group: str | None = None
    wandb_id: str | None = None
    gangs: tuple[GangsRecord, ...] = (GangsRecord(),)
    """One entry per island, or a single one without a name."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Ranks of the last gang, island by island."""
        return tuple(member for gangs in self.gangs for member in gangs.members)

    @property
    def all_members(self) -> tuple[Member, ...]:
        """Ranks of every gang."""
        return tuple(member for gangs in self.gangs for gang in gangs.all() for member in gang.members)

    def members_of(self, row: AnyRow) -> tuple[Member, ...]:
        """Ranks of the gang that measured ``row``; empty if they weren't recorded."""
        gangs = (gang for one in self.gangs if one.island == row.island for gang in one.all())
        return next((gang.members for gang in gangs if gang.attempt == row.attempt), ())

    def to_json(self) -> dict[str, Any]:
        """Object of ``environment.json``, for ``json_safe``: without islands the gangs' fields are at the top level."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "gangs"}
        gangs = [_known(one) for one in self.gangs]
        return {**data, **(gangs[0] if self.gangs[0].island is None else {"islands": gangs})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        """Environment from a JSON object that ``to_json`` made, of this version or an earlier one.

        Raises:
          ValueError: ``data`` isn't the environment of a job.
        """
        try:
            gangs = [_filled(gangs) for gangs in data.get("islands", [data])]
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return _adapter().validate_python({**data, "gangs": gangs})


def here(submitted_git_sha: str | None) -> Environment:
    """Command, code and machine of the driver; no values of environment variables, as some are secrets.

    Args:
      submitted_git_sha: commit of a submitted job, whose uploaded files have no git history.
    """
    # Entry point that ``python -m`` runs: jobs.bench, jobs.tune, ...
    started = sys.modules["__main__"].__spec__
    return Environment(
        command=" ".join(["python", *(["-m", started.name] if started else sys.argv[:1]), *sys.argv[1:]]),
        git_sha=submitted_git_sha or git_sha(),
        python=platform.python_version(),
        platform=platform.platform(),
        driver_host=socket.gethostname(),
        user=_user(),
    )


def _user() -> str | None:
    """Name of the user; ``None`` for a user id without a name, as containers may have."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def git_sha() -> str | None:
    """Commit of the job's checkout, ending in ``-dirty`` if files differ; ``None`` outside a checkout."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def short_sha(sha: str) -> str:
    """Commit shortened to 12 digits; a ``-dirty`` stays."""
    return sha[:12] + sha[40:]


@functools.cache
def _adapter() -> TypeAdapter[Environment]:
    from pydantic import TypeAdapter

    return TypeAdapter(Environment)


# Early runs, and runs stripped for tests, record nothing of a rank but its device.
_UNKNOWN = dict.fromkeys(("host", "ip", "node_id", "stderr_path"), "") | {"pid": 0, "versions": {}}
_UNKNOWN |= dict.fromkeys(("gpu_uuid", "gpu_index", "driver_version"))


def _filled(gangs: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the fields that members of old runs lack."""
    members = [{"rank": rank, **_UNKNOWN, **member} for rank, member in enumerate(gangs.get("members", ()))]
    earlier = [_filled(gang) for gang in gangs.get("earlier_attempts", ())]
    return {**gangs, "members": members, **({"earlier_attempts": earlier} if earlier else {})}


def _known(record: GangsRecord | GangRecord) -> dict[str, Any]:
    """Fields that aren't empty: a gang that hasn't begun has neither number nor members."""
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    known = {name: value for name, value in fields.items() if value not in (None, ())}
    if not record.attempt:
        del known["attempt"]
    if isinstance(record, GangsRecord) and record.earlier_attempts:
        known["earlier_attempts"] = [_known(gang) for gang in record.earlier_attempts]
    return known
