"""Start of a local Ray, which lives as long as the job."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from jobs.config.schema import ClusterSettings
from jobs.errors import InfrastructureError
from jobs.gang.address import RAY_ADDRESS
from jobs.gang.process import refuse_xla_flags, user_variables
from jobs.gang.ray_session import connecting, init
from jobs.gang.shape import DEFAULT_CPU_RANKS
from jobs.gang.submission import JOB_CONFIG, PACKAGES, folder
from jobs.gang.temp_dir import TempDir

logger = logging.getLogger(__name__)

# Rows and operands bypass the object store; Ray's default would take a third of the machine's memory.
_OBJECT_STORE_BYTES = 100_000_000
# CPU ranks are for trying things out: a local Ray may start more of them than there are cores, up to this number.
_MAX_CPU_RANKS = 16
_LOOPBACK_TIMEOUT_S = 5.0
# Ray gives its raylet and its agents 30 s. In a new environment Python compiles their modules first: on a busy machine
# that takes longer, once.
_TOO_SLOW = "timed out during startup"
# For so long, not a minute, Ray's agents look for the GCS of a driver that was killed, before they end.
_OPTIONS = {"RAY_gcs_rpc_server_reconnect_timeout_s": "20"}


def max_cpu_ranks() -> int:
    """CPU ranks that a local Ray starts at most: 16, or one for each core where there are more."""
    return max(os.cpu_count() or 1, _MAX_CPU_RANKS)


@contextlib.contextmanager
def starting(settings: ClusterSettings) -> Iterator[TempDir]:
    """Start a Ray with room for the ranks and yield its folder; until the block ends, clean up after an error.

    Raises:
      UsageError: XLA refuses the user's XLA_FLAGS, which the ranks would inherit.
      InfrastructureError: it doesn't start; the error has the errors in its logs.
      JobStopped: a signal arrived meanwhile; all that was started has ended.
    """
    _refuse_dead_loopback()
    refuse_xla_flags()
    # Without a token Ray writes one for all clusters into the user's home; a variable is enough for this cluster.
    known = any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if not known and not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if ignored := user_variables():
        logger.warning("%s: set, but ranks run without it", ", ".join(ignored))
    temp_dir = TempDir.make()
    try:
        # In a submitted job these name the cluster, and files that only the cluster has.
        with _environment({RAY_ADDRESS: None, JOB_CONFIG: None, **_OPTIONS}):
            try:
                _start(settings, temp_dir)
            except InfrastructureError as error:
                if _TOO_SLOW not in str(error):
                    raise
                logger.warning("%s; starting it once more", error)
                _start(settings, temp_dir)
            with connecting("a local Ray didn't start"):
                yield temp_dir
    except InfrastructureError as error:
        temp_dir.keeps = True
        named = f"its logs are in {temp_dir.path}"
        raise InfrastructureError("; ".join(filter(None, [str(error), named, temp_dir.log_errors()]))) from error
    except BaseException:
        temp_dir.remove()
        raise


def _start(settings: ClusterSettings, temp_dir: TempDir) -> None:
    with connecting("a local Ray didn't start"):
        init(
            "local",
            num_cpus=max(os.cpu_count() or 1, min(settings.num_ranks or DEFAULT_CPU_RANKS, _MAX_CPU_RANKS)),
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            _temp_dir=str(temp_dir.path),
            runtime_env={
                # The driver's working directory may be outside the checkout.
                "env_vars": {"PYTHONPATH": os.pathsep.join(_import_path())},
                # Ray starts workers by a shell, and doesn't quote the path.
                "py_executable": shlex.quote(sys.executable),
            },
        )


def _refuse_dead_loopback() -> None:
    """Raise ``InfrastructureError`` if this host can't connect to itself: Ray would try for minutes."""
    reasons = []
    for family, ip in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.create_server((ip, 0), family=family) as server:
                socket.create_connection(server.getsockname()[:2], timeout=_LOOPBACK_TIMEOUT_S).close()
            return
        except OSError as error:
            reasons.append(f"{ip}: {os.strerror(error.errno) if error.errno else error}")
    raise InfrastructureError(
        f"this host can't connect to itself ({', '.join(reasons)}), which a local Ray needs: ip link set lo up"
    )


def _has_token() -> bool:
    try:
        return (Path.home() / ".ray" / "auth_token").exists()
    except (RuntimeError, OSError):  # no home, or one that can't be read
        return False


def _import_path() -> list[str]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*dict.fromkeys([*(str(folder(package).parent) for package in PACKAGES), *filter(None, inherited)])]


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those that are ``None``, until the block ends."""
    saved = {name: os.environ.get(name) for name in changes}
    _change_environment(changes)
    try:
        yield
    finally:
        _change_environment(saved)


def _change_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
