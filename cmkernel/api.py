"""The public function: validate, choose an implementation, run it; never fall back silently."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Literal, get_args

import jax.numpy as jnp
from jax import lax

from cmkernel import hardware, mosaic_gpu, mosaic_gpu_simple, ppermute, xla
from cmkernel.config import CONFIG_TYPES, KernelConfig, SimpleKernelConfig, validate_shape
from cmkernel.tuning import heuristic_config, simple_heuristic_config

if TYPE_CHECKING:
    import jax
    from jaxtyping import Array, Float

Implementation = Literal["auto", "mosaic_gpu", "mosaic_gpu_simple", "ppermute", "xla"]

logger = logging.getLogger(__name__)

_DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a call really runs: never ``auto``."""

    implementation: Implementation
    config: KernelConfig | SimpleKernelConfig | None
    """Tiles of the ``mosaic_gpu`` kernels; ``None`` for the others."""
    reason: str
    """Why this one."""


def all_gather_matmul(
    lhs: Float[Array, "m_shard k"],
    rhs: Float[Array, "k n_shard"],
    *,
    axis_name: str,
    implementation: Implementation = "auto",
    config: KernelConfig | SimpleKernelConfig | None = None,
) -> Float[Array, "m n_shard"]:
    """``all_gather(lhs, axis=0) @ rhs`` over mesh axis ``axis_name``, for use inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16, bf16 or f32 (f32 not with the ``mosaic_gpu``
    kernels); result ``[axis_size * m_shard, n_shard]`` in their dtype, accumulated in float32. Rows
    ``[i * m_shard, (i + 1) * m_shard)`` come from rank ``i``. ``jax.shard_map`` needs ``check_vma=False``.

    Args:
      lhs: This rank's rows of the left operand.
      rhs: This rank's columns of the right operand.
      axis_name: Mesh axis that the rows of lhs are sharded over. The ``mosaic_gpu`` kernels need it to cover all
        devices.
      implementation: ``mosaic_gpu`` (one Pallas kernel, Hopper), ``mosaic_gpu_simple`` (its readable form),
        ``ppermute`` (portable ring) or ``xla`` (all-gather, then matmul) run just that or raise. ``auto`` takes
        ``mosaic_gpu`` where it can run, else ``ppermute``, and logs why.
      config: ``KernelConfig`` of ``mosaic_gpu``, ``SimpleKernelConfig`` of ``mosaic_gpu_simple``; by default chosen
        from the shape.

    Raises:
      ValueError: The operands or ``config`` break a rule; the message names the value and the rule.
      NotImplementedError: ``implementation`` can't run here, on these dtypes or on this mesh.
    """
    choice = choose_implementation(lhs, rhs, axis_name=axis_name, implementation=implementation, config=config)
    if isinstance(choice.config, SimpleKernelConfig):
        return mosaic_gpu_simple.ring_all_gather_matmul(lhs, rhs, axis_name=axis_name, config=choice.config)
    if choice.config is not None:
        return mosaic_gpu.ring_all_gather_matmul(lhs, rhs, axis_name=axis_name, config=choice.config)
    if choice.implementation == "ppermute":
        return ppermute.ring_all_gather_matmul(lhs, rhs, axis_name=axis_name)
    return xla.all_gather_then_dot(lhs, rhs, axis_name=axis_name)


def choose_implementation(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: str,
    implementation: Implementation = "auto",
    config: KernelConfig | SimpleKernelConfig | None = None,
) -> Choice:
    """What ``all_gather_matmul`` runs for the same arguments; raises what it raises. Call it in the same context."""
    _validate_operands(lhs, rhs)
    if implementation not in get_args(Implementation):
        raise ValueError(f"{implementation=} must be one of {', '.join(get_args(Implementation))}")
    if implementation in ("ppermute", "xla"):
        if config is not None:
            raise ValueError(f"config is set, but {implementation=} has no tiles")
        return Choice(implementation, None, "named")
    kernel: Implementation = "mosaic_gpu" if implementation == "auto" else implementation
    if config is not None and type(config) is not CONFIG_TYPES[kernel]:
        expected = CONFIG_TYPES[kernel].__name__
        raise ValueError(f"config is a {type(config).__name__}, but {implementation=} takes a {expected}")
    if isinstance(config, SimpleKernelConfig):
        validate_shape(config, m_shard=lhs.shape[0], k=lhs.shape[1], n_shard=rhs.shape[1])
    if (reason := _refusal(lhs, axis_name)) is None:
        return Choice(
            kernel,
            config if config is not None else _heuristic_config(kernel, lhs, rhs, axis_name),
            "named" if implementation != "auto" else "fits",
        )
    if implementation != "auto":
        raise NotImplementedError(f"{implementation=} can't run here: {reason}")
    logger.info("implementation='auto' takes ppermute, as mosaic_gpu can't run here: %s", reason)
    return Choice("ppermute", None, f"mosaic_gpu can't run here: {reason}")


def _validate_operands(lhs: jax.Array, rhs: jax.Array) -> None:
    if lhs.ndim != 2 or rhs.ndim != 2:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must be matrices: [m_shard, k] and [k, n_shard]")
    if lhs.shape[1] != rhs.shape[0]:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must agree in k, the columns of lhs and rows of rhs")
    if 0 in (*lhs.shape, *rhs.shape):
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must have no empty dimension")
    if lhs.dtype != rhs.dtype:
        raise ValueError(f"lhs.dtype={lhs.dtype} and rhs.dtype={rhs.dtype} must be the same")
    if lhs.dtype not in _DTYPES:
        raise ValueError(f"lhs.dtype={lhs.dtype} must be float16, bfloat16 or float32")


def _refusal(lhs: jax.Array, axis_name: str) -> str | None:
    """Why neither kernel can run whatever its tiles, or ``None``."""
    if (reason := hardware.unsupported_reason(axis_name=axis_name)) is not None:
        return reason
    if lhs.dtype not in mosaic_gpu.SUPPORTED_DTYPES:
        return f"lhs.dtype={lhs.dtype} must be float16 or bfloat16"
    return None


def _heuristic_config(
    kernel: Implementation, lhs: jax.Array, rhs: jax.Array, axis_name: str
) -> KernelConfig | SimpleKernelConfig:
    """The tiles that the shape gets; ``ValueError`` where ``mosaic_gpu_simple`` has none that divide it."""
    (m_shard, k), n_shard = lhs.shape, rhs.shape[1]
    if kernel == "mosaic_gpu_simple":
        return simple_heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard)
    num_ranks, num_sms = lax.axis_size(axis_name), hardware.num_sms()
    return heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks, num_sms=num_sms)
