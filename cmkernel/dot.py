"""Local multiply of the portable implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    import jax


def dot(lhs: jax.Array, rhs: jax.Array, *, out_dtype: jax.typing.DTypeLike | None = None) -> jax.Array:
    """Compute ``lhs @ rhs`` with float32 accumulation, rounded once to ``out_dtype`` (by default the operands').

    lhs ``[m, k]``, rhs ``[k, n]`` -> ``[m, n]``.
    """
    # XLA on GPUs rounds f32 operands to TF32 by default.
    precision = lax.Precision.HIGHEST if lhs.dtype == jnp.float32 else None
    # XLA accumulates half-precision products in float32 whatever type it returns. The multiply itself rounds: if it
    # returned float32, a second kernel would have to convert that.
    return jnp.dot(lhs, rhs, precision=precision, preferred_element_type=out_dtype or lhs.dtype)
