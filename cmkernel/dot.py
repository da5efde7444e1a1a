"""The local multiply that every portable implementation uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    import jax


def dot(lhs: jax.Array, rhs: jax.Array, *, out_dtype: jax.typing.DTypeLike | None = None) -> jax.Array:
    """``lhs @ rhs`` with float32 accumulation, rounded once to ``out_dtype``, by default that of the operands.

    lhs ``[m, k]``, rhs ``[k, n]`` -> ``[m, n]``.
    """
    # f32 operands must not be rounded to TF32, which is XLA's default on GPUs.
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else None
    # XLA accumulates half-precision products in float32 whatever type it returns. Rounding is left to the multiply:
    # asked for float32, cuBLAS would write that, and another kernel would convert it.
    return jnp.dot(lhs, rhs, precision=precision, preferred_element_type=out_dtype or lhs.dtype)
