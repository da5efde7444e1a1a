"""Integer arithmetic on Python integers and on traced ones, so that kernels and tests call the same functions."""

from __future__ import annotations

from typing import Any

from jax import lax

Int = Any
"""A Python int, or a traced int32 scalar."""


def ceil_div(a: int, b: int) -> int:
    """Quotient of Python integers, rounded up."""
    return -(-a // b)


def div(a: Int, b: Int) -> Int:
    """Quotient of non-negative integers, rounded down."""
    return a // b if isinstance(a, int) and isinstance(b, int) else lax.div(a, b)


def rem(a: Int, b: Int) -> Int:
    """Remainder of non-negative integers."""
    return a % b if isinstance(a, int) and isinstance(b, int) else lax.rem(a, b)


def minimum(a: Int, b: Int) -> Int:
    """The smaller of two integers."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else lax.min(a, b)


def select(condition: Any, a: Int, b: Int) -> Int:
    """``a`` where ``condition`` is true, else ``b``."""
    return (a if condition else b) if isinstance(condition, bool) else lax.select(condition, a, b)
