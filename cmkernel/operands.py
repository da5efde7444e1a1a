"""Rules that operands and mesh axes must obey, whatever implementation runs them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import hardware
from cmkernel.config import Op
from cmkernel.ring import TwoLevelRing

AxisName = str | tuple[str, str]

KERNEL_DTYPES = (jnp.float16, jnp.bfloat16)
"""Operands that the ``mosaic_gpu`` kernels take."""
_DTYPES = (*KERNEL_DTYPES, jnp.float32)
_SHAPES = {
    "all_gather_matmul": "[m_shard, k] or [batch, m_shard, k], and [k, n_shard]",
    "matmul_reduce_scatter": "[m, k_shard] or [batch, m, k_shard], and [k_shard, n]",
}


def find_hosts(axis_name: AxisName, devices_per_host: int | None) -> TwoLevelRing | None:
    """Layout of the ranks over hosts, or ``None`` if the caller doesn't give it.

    Raises:
      ValueError: ``axis_name`` has neither one nor two axes, or ``devices_per_host`` doesn't fit it.
    """
    if isinstance(axis_name, tuple):
        if len(axis_name) != 2:
            raise ValueError(f"{axis_name=} must be one axis, or two: (host axis, device axis)")
        num_hosts, size = map(lax.axis_size, axis_name)
        if devices_per_host not in (None, size):
            raise ValueError(f"{devices_per_host=} must be left out, or {size}, the size of axis {axis_name[1]!r}")
        return TwoLevelRing(num_hosts, size)
    if devices_per_host is None:
        return None
    num_ranks = lax.axis_size(axis_name)
    if devices_per_host < 1 or num_ranks % devices_per_host:
        raise ValueError(f"{devices_per_host=} must divide {num_ranks=}, the size of axis {axis_name!r}")
    return TwoLevelRing(num_ranks // devices_per_host, devices_per_host)


def validate_operands(lhs: jax.Array, rhs: jax.Array, out_dtype: jax.typing.DTypeLike, op: Op) -> None:
    """Raise ``ValueError`` unless the operands' shapes and dtypes fit each other and the result's dtype."""
    if lhs.ndim not in (2, 3) or rhs.ndim != 2:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must be {_SHAPES[op]}")
    if lhs.shape[-1] != rhs.shape[0]:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must agree in k, the columns of lhs and rows of rhs")
    if 0 in (*lhs.shape, *rhs.shape):
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must have no empty dimension")
    if lhs.dtype != rhs.dtype:
        raise ValueError(f"lhs.dtype={lhs.dtype} and rhs.dtype={rhs.dtype} must be the same")
    if lhs.dtype not in _DTYPES:
        raise ValueError(f"lhs.dtype={lhs.dtype} must be float16, bfloat16 or float32")
    _validate_wide(lhs, "out_dtype", out_dtype)


def validate_partial_dtype(lhs: jax.Array, partial_dtype: jax.typing.DTypeLike) -> None:
    """Raise ``ValueError`` unless partial sums can travel in ``partial_dtype``."""
    _validate_wide(lhs, "partial_dtype", partial_dtype)


def validate_scattered_rows(lhs: jax.Array, axis_name: AxisName) -> None:
    """Raise ``ValueError`` unless the rows of lhs divide among the ranks."""
    m, num_ranks = lhs.shape[-2], lax.axis_size(axis_name)
    if m % num_ranks:
        raise ValueError(f"{m=}, the rows of lhs, must be a multiple of {num_ranks=}, the size of axis {axis_name!r}")


def validate_shard_map(axis_name: AxisName) -> None:
    """Raise ``ValueError`` if jax tracks which values vary between ranks: it can't through a kernel."""
    if jax.typeof(lax.axis_index(axis_name)).manual_axis_type.varying:
        raise ValueError(
            "jax.shard_map has check_vma=True, which the mosaic_gpu kernels can't do; pass check_vma=False"
        )


def kernel_refusal(lhs: jax.Array, axis_name: AxisName, hosts: TwoLevelRing | None) -> str | None:
    """Return why no ``mosaic_gpu`` kernel can run here with any tiles, or ``None``."""
    if isinstance(axis_name, tuple):
        return f"{axis_name=} must be a single axis"
    if (reason := hardware.unsupported_reason(axis_name=axis_name)) is not None:
        return reason
    if lhs.dtype not in KERNEL_DTYPES:
        return f"lhs.dtype={lhs.dtype} must be float16 or bfloat16"
    if hosts is not None and hosts.num_hosts > 1:
        return f"the ranks are on {hosts.num_hosts} hosts, and must be on one that NVLink joins"
    return None


def _validate_wide(lhs: jax.Array, name: str, dtype: jax.typing.DTypeLike) -> None:
    if jnp.dtype(dtype) not in (lhs.dtype, jnp.float32):
        raise ValueError(f"{name}={jnp.dtype(dtype)} must be lhs.dtype={lhs.dtype} or float32")
