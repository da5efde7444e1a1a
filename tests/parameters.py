"""Parameters of tests of which only the first ones run in the fast selection."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(parameters: Iterable[Any], *, fast: int) -> list[Any]:
    """Mark all but the first ``fast`` of a test's parameters as slow: ``scripts/test.sh --all`` runs them."""
    listed = list(parameters)
    return [*listed[:fast], *(_slow(parameter) for parameter in listed[fast:])]


def _slow(parameter: Any) -> Any:
    if hasattr(parameter, "marks"):
        return pytest.param(*parameter.values, id=parameter.id, marks=[*parameter.marks, pytest.mark.slow])
    values = parameter if isinstance(parameter, tuple) else (parameter,)
    return pytest.param(*values, marks=pytest.mark.slow)
