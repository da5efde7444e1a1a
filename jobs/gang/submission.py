"""Submission of this driver's job: its id, its commit, and the code that its ranks need."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cmkernel
import jobs

# Ray's variable with a submitted job's config, set in its driver.
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
PACKAGES = (cmkernel, jobs)


def submission_id() -> str | None:
    """Ray's id of the submitted job that this driver belongs to; ``None`` without one."""
    return _metadata("job_submission_id")


def submitted_git_sha() -> str | None:
    """Commit that ``scripts/submit.sh`` uploaded; ``None`` if the job was submitted another way."""
    return _metadata("git_sha") or None


def code() -> dict[str, Any] | None:
    """Runtime environment that uploads this project's code; ``None`` if the job's working directory holds it."""
    if _job_config().get("runtime_env", {}).get("working_dir"):
        return None
    return {"py_modules": [str(folder(package)) for package in PACKAGES], "excludes": ["__pycache__"]}


def folder(package: Any) -> Path:
    """Folder of a package's modules."""
    return Path(package.__file__).resolve().parent


def _metadata(key: str) -> str | None:
    value = _job_config().get("metadata", {}).get(key)
    return None if value is None else str(value)


def _job_config() -> dict[str, Any]:
    return dict(json.loads(os.environ.get(JOB_CONFIG, "{}")))
