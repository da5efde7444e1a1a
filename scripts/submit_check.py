"""Checks that scripts/submit.sh makes before it uploads anything: ``submit_check.py ROOT EXCLUDES ID ADDRESS``.

It prints the URL of the job server, or nothing if Ray has to find it. Exit codes: 2 the user's mistake, 3 no server.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import re
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NoReturn

USAGE, INFRASTRUCTURE = 2, 3
TIMEOUT_S = 10.0
MIB = 2**20
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_CURE = (
    "it must be the address of the head's dashboard (port 8265 by default), which listens on 127.0.0.1 only unless the "
    "head was started with --dashboard-host"
)


def fail(code: int, message: str) -> NoReturn:
    """End with one line."""
    print(f"submit.sh: {message}", file=sys.stderr)
    sys.exit(code)


def check_id(submission_id: str) -> None:
    """Refuse a name that can't be part of a URL and of a path."""
    if not _ID.fullmatch(submission_id):
        fail(
            USAGE,
            f"--submission-id={submission_id!r} must be 1 to 128 letters, digits, dots, dashes and underscores, and "
            "begin with a letter, a digit or an underscore: it is the job's name in URLs, and its run directory's",
        )


def chosen(option: str) -> tuple[str, str]:
    """Source and text of the address; both are empty if only Ray can find it."""
    if option:
        return "--address", option
    return next(((name, os.environ[name]) for name in _VARIABLES if os.environ.get(name)), ("", ""))


def job_server(source: str, address: str) -> str:
    """URL of the job server at ``address``; empty if Ray has to ask the cluster for it."""
    if not source or (source == "RAY_ADDRESS" and "://" not in address) or address in ("auto", "local"):
        return ""  # RAY_ADDRESS=HOST:6379 is the GCS, which knows its job server
    try:
        url = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
        port = url.port
    except ValueError as error:
        fail(USAGE, f"{source}={address} must be http://HEAD:8265: {error}")
    if url.scheme == "ray":
        fail(USAGE, f"{source}={address} is Ray Client's address; give the job server's: http://{url.hostname}:8265")
    if url.scheme not in ("http", "https") or not url.hostname or re.search(r"\s", address):
        fail(USAGE, f"{source}={address} must be http://HEAD:8265, or https://")
    # http://HEAD without a port may be an ingress on port 80, HEAD alone is no URL.
    host = url.netloc if port or "://" in address else f"{url.netloc.rstrip(':')}:8265"
    return f"{url.scheme}://{host}{url.path.rstrip('/')}"


def token_headers() -> dict[str, str]:
    """Ray's token as a header, if token authentication is on."""
    from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled

    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if path and not os.environ.get("RAY_AUTH_TOKEN"):
        try:
            Path(path).read_bytes()
        except OSError as error:
            fail(USAGE, f"RAY_AUTH_TOKEN_PATH={path} must be a file with the cluster's token: {error.strerror}")
        if Path(path).stat().st_mode & 0o077:
            print(f"submit.sh: others can read the token in {path}: chmod 600 {path}", file=sys.stderr)
    try:
        return dict(get_auth_headers_if_auth_enabled({}))
    except Exception as error:  # Ray 2.60 raises its AuthenticationError, other versions other types
        fail(
            USAGE,
            "RAY_AUTH_MODE=token needs the cluster's token in RAY_AUTH_TOKEN, in the file RAY_AUTH_TOKEN_PATH or in "
            f"~/.ray/auth_token: {str(error).strip().splitlines()[0]}",
        )


def check_job_server(source: str, address: str, url: str) -> None:
    """Ask the job server for its version, once."""
    named = f"{source}={address}"
    request = urllib.request.Request(f"{url}/api/version", headers=token_headers())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer = json.load(response)
        if not isinstance(answer, dict) or "ray_version" not in answer:
            raise ValueError("its answer isn't a Ray's")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            fail(
                INFRASTRUCTURE,
                f"{named} refuses the token (HTTP {error.code}): set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
                "RAY_AUTH_TOKEN_PATH (default ~/.ray/auth_token) to the cluster's token",
            )
        path = urllib.parse.urlsplit(url).path
        if path:
            fail(USAGE, f"{named}: nothing at the path {path} (HTTP {error.code}); {url.removesuffix(path)} is enough")
        fail(INFRASTRUCTURE, f"{named} is no job server of a Ray (HTTP {error.code} for /api/version); {_CURE}")
    except ValueError:
        fail(INFRASTRUCTURE, f"{named} answers, but is no job server of a Ray; {_CURE}")
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, socket.gaierror):
            fail(INFRASTRUCTURE, f"{named}: the name {urllib.parse.urlsplit(url).hostname} is unknown: {reason}")
        fail(INFRASTRUCTURE, f"{named} doesn't answer: {reason}; {_CURE}")
    except Exception as error:  # what listens there speaks no HTTP
        fail(INFRASTRUCTURE, f"{named} is no job server of a Ray: {error!r}; {_CURE}")


def check_gcs(source: str, address: str) -> None:
    """See that somebody listens where RAY_ADDRESS points."""
    if source != "RAY_ADDRESS" or address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        fail(USAGE, f"RAY_ADDRESS={address} must be host:port; from outside the cluster use --address http://HEAD:8265")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        fail(INFRASTRUCTURE, f"RAY_ADDRESS={address} doesn't answer: {error}; use --address http://HEAD:8265")


def check_size(root: Path, excludes: list[str]) -> None:
    """Refuse a checkout that Ray's GCS wouldn't store."""
    try:  # private, read from Ray 2.60.0: its own walk, so that .gitignore and .rayignore count as they do there
        from ray._private.runtime_env.packaging import GCS_STORAGE_MAX_SIZE, _dir_travel, _get_excludes
    except ImportError:
        return
    sizes: collections.Counter[str] = collections.Counter()

    def add(path: Path) -> None:
        with contextlib.suppress(OSError):
            if path.is_file():
                sizes[path.relative_to(root).parts[0]] += path.stat().st_size

    gitignore = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
    logging.disable()
    _dir_travel(root, [_get_excludes(root, excludes)], add, include_gitignore=gitignore)
    if (total := sum(sizes.values())) < GCS_STORAGE_MAX_SIZE:
        return
    largest = ", ".join(f"{name} ({size / MIB:.0f} MiB)" for name, size in sizes.most_common(3))
    fail(
        USAGE,
        f"{root} has {total / MIB:.0f} MiB to upload, and Ray takes less than {GCS_STORAGE_MAX_SIZE / MIB:.0f} MiB; "
        f"the largest: {largest}. Move what the job doesn't need elsewhere, or name it in {root}/.rayignore",
    )


def main() -> None:
    """Check everything, quick checks first."""
    root, excludes, submission_id, option = sys.argv[1:]
    check_id(submission_id)
    check_size(Path(root), json.loads(excludes))
    source, address = chosen(option)
    url = job_server(source, address)
    if url:
        check_job_server(source, address, url)
    else:
        check_gcs(source, address)
    print(url)


if __name__ == "__main__":
    main()
