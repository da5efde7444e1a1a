"""Choose the implementation of a call: validate its operands, check the machine, never fall back silently."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import cost, hardware, mosaic_gpu
from cmkernel.config import CONFIG_TYPES, Config, SimpleKernelConfig, validate_shape
from cmkernel.cost import Links
from cmkernel.performance_model import modelled_calls_us, simple_heuristic_config
from cmkernel.ring import TwoLevelRing
from cmkernel.tuned import Chosen, Shape, Table, choose_config

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Implementation = Literal["auto", "mosaic_gpu", "mosaic_gpu_simple", "ppermute", "ppermute_two_level", "xla"]
AxisName = str | tuple[str, str]

logger = logging.getLogger(__name__)

_DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The implementation that a call runs, never ``auto``."""

    implementation: Implementation
    config: Config | None
    """Config of ``ppermute`` and of the ``mosaic_gpu`` kernels; ``None`` for the others."""
    reason: str
    """Why this implementation was chosen, and where its config comes from."""


def choose_implementation(
    lhs: Float[Array, "*batch m_shard k"],
    rhs: Float[Array, "k n_shard"],
    *,
    axis_name: AxisName,
    implementation: Implementation = "auto",
    config: Config | None = None,
    table: Table | None = None,
    devices_per_host: int | None = None,
    links: Links | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> Choice:
    """Return what ``all_gather_matmul`` would run for the same operands, without running it.

    Takes the same arguments, raises the same errors, and must be called in the same context: inside ``jax.shard_map``.
    """
    _validate_operands(lhs, rhs, lhs.dtype if out_dtype is None else out_dtype)
    if implementation not in get_args(Implementation):
        raise ValueError(f"{implementation=} must be one of {', '.join(get_args(Implementation))}")
    hosts = find_hosts(axis_name, devices_per_host)
    if implementation in ("ppermute_two_level", "xla"):
        if config is not None:
            raise ValueError(f"config is set, but {implementation=} takes none")
        if implementation == "ppermute_two_level" and hosts is None:
            raise ValueError(
                f"{implementation=} needs to know the hosts: pass devices_per_host, or axis_name=(host axis, device "
                f"axis) instead of {axis_name!r}"
            )
        return Choice(implementation, None, "named")
    kernel: Implementation = "mosaic_gpu" if implementation == "auto" else implementation
    if config is not None and type(config) is not CONFIG_TYPES[kernel]:
        expected = CONFIG_TYPES[kernel].__name__
        raise ValueError(f"config is a {type(config).__name__}, but {implementation=} takes a {expected}")
    if implementation == "ppermute":
        return _configured(implementation, "named", config, lhs, rhs, axis_name, table)
    if implementation == "mosaic_gpu_simple" and out_dtype is not None and out_dtype != lhs.dtype:
        raise NotImplementedError(
            f"{implementation=} gives lhs.dtype={lhs.dtype}, not out_dtype={jnp.dtype(out_dtype)}"
        )
    if isinstance(config, SimpleKernelConfig):
        validate_shape(config, m_shard=math.prod(lhs.shape[:-1]), k=lhs.shape[-1], n_shard=rhs.shape[1])
    if (reason := _refusal(lhs, axis_name, hosts)) is None:
        _validate_shard_map(axis_name)
        if implementation == "auto" and config is None:
            return _fastest(lhs, rhs, axis_name, table)
        reason = "named" if implementation != "auto" else "its config is named"
        return _configured(kernel, reason, config, lhs, rhs, axis_name, table)
    if implementation != "auto":
        raise NotImplementedError(f"{implementation=} can't run here: {reason}")
    portable, expected = _choose_ring(lhs, rhs, hosts, links)
    reason = f"mosaic_gpu can't run here: {reason}{expected}"
    logger.info("implementation='auto' takes %s, as %s", portable, reason)
    if portable == "ppermute_two_level":
        return Choice(portable, None, reason)
    return _configured(portable, reason, None, lhs, rhs, axis_name, table)


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


def _validate_operands(lhs: jax.Array, rhs: jax.Array, out_dtype: jax.typing.DTypeLike) -> None:
    if lhs.ndim not in (2, 3) or rhs.ndim != 2:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must be [m_shard, k] or [batch, m_shard, k], and [k, n_shard]")
    if lhs.shape[-1] != rhs.shape[0]:
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must agree in k, the columns of lhs and rows of rhs")
    if 0 in (*lhs.shape, *rhs.shape):
        raise ValueError(f"{lhs.shape=} and {rhs.shape=} must have no empty dimension")
    if lhs.dtype != rhs.dtype:
        raise ValueError(f"lhs.dtype={lhs.dtype} and rhs.dtype={rhs.dtype} must be the same")
    if lhs.dtype not in _DTYPES:
        raise ValueError(f"lhs.dtype={lhs.dtype} must be float16, bfloat16 or float32")
    if jnp.dtype(out_dtype) not in (lhs.dtype, jnp.float32):
        raise ValueError(f"out_dtype={jnp.dtype(out_dtype)} must be lhs.dtype={lhs.dtype} or float32")


def _validate_shard_map(axis_name: AxisName) -> None:
    """Raise ``ValueError`` if jax tracks which values vary between ranks: it can't through a kernel."""
    if jax.typeof(lax.axis_index(axis_name)).manual_axis_type.varying:
        raise ValueError(
            "jax.shard_map has check_vma=True, which the mosaic_gpu kernels can't do; pass check_vma=False"
        )


def _refusal(lhs: jax.Array, axis_name: AxisName, hosts: TwoLevelRing | None) -> str | None:
    """Return why neither kernel can run here with any tiles, or ``None``."""
    if isinstance(axis_name, tuple):
        return f"{axis_name=} must be a single axis"
    if (reason := hardware.unsupported_reason(axis_name=axis_name)) is not None:
        return reason
    if lhs.dtype not in mosaic_gpu.SUPPORTED_DTYPES:
        return f"lhs.dtype={lhs.dtype} must be float16 or bfloat16"
    if hosts is not None and hosts.num_hosts > 1:
        return f"the ranks are on {hosts.num_hosts} hosts, and must be on one that NVLink joins"
    return None


def _fastest(lhs: jax.Array, rhs: jax.Array, axis_name: AxisName, table: Table | None) -> Choice:
    """Choose for ``auto`` where every implementation can run."""
    heuristic = _choose_config("mosaic_gpu", lhs, rhs, axis_name, Table())
    times_us = modelled_calls_us(
        heuristic.config,  # type: ignore[arg-type]
        m_shard=math.prod(lhs.shape[:-1]),
        k=lhs.shape[-1],
        n_shard=rhs.shape[1],
        num_ranks=lax.axis_size(axis_name),
        num_sms=hardware.num_sms(),
    )
    fastest: Any = min(times_us, key=lambda name: times_us[name])
    expected = ", ".join(f"{name} {time_us:.0f} us" for name, time_us in sorted(times_us.items()))
    reason = f"expected to be the fastest: {expected}"
    logger.info("implementation='auto' takes %s, %s", fastest, reason)
    if fastest == "xla":
        return Choice(fastest, None, reason)
    return _configured(fastest, reason, None, lhs, rhs, axis_name, table)


def _choose_ring(
    lhs: jax.Array, rhs: jax.Array, hosts: TwoLevelRing | None, links: Links | None
) -> tuple[Implementation, str]:
    """Return the portable ring that the cost model prefers, and its expected times as a suffix for the reason."""
    if hosts is None or hosts.num_hosts == 1:
        return "ppermute", ""
    kind, dtype = hardware.device_kind(), lhs.dtype.name
    expected = cost.expected_rings(
        links or cost.default_links(kind),
        peak_tflops=cost.peak_tflops(kind, dtype),
        m_shard=math.prod(lhs.shape[:-1]),
        k=lhs.shape[-1],
        n_shard=rhs.shape[1],
        num_hosts=hosts.num_hosts,
        devices_per_host=hosts.devices_per_host,
        dtype=dtype,
    )
    return (
        "ppermute_two_level" if expected.prefers_two_level else "ppermute",
        f"; over {hosts.num_hosts} hosts of {hosts.devices_per_host} ranks {expected}",
    )


def _configured(
    implementation: Implementation,
    reason: str,
    config: Config | None,
    lhs: jax.Array,
    rhs: jax.Array,
    axis_name: AxisName,
    table: Table | None,
) -> Choice:
    """Pair ``implementation`` with ``config``, or with the config chosen for the shape."""
    if config is not None:
        return Choice(implementation, config, reason)
    chosen = _choose_config(implementation, lhs, rhs, axis_name, table)
    return Choice(implementation, chosen.config, f"{reason}; its config {chosen.source}")


def _choose_config(
    implementation: Implementation, lhs: jax.Array, rhs: jax.Array, axis_name: AxisName, table: Table | None
) -> Chosen:
    """Choose the config for a shape.

    Raises:
      ValueError: no tiles of ``mosaic_gpu_simple`` divide the shape.
    """
    m_shard, k, n_shard = math.prod(lhs.shape[:-1]), lhs.shape[-1], rhs.shape[1]
    if implementation == "mosaic_gpu_simple":
        return Chosen(simple_heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard), "by the heuristic")
    shape = Shape(
        device_kind=hardware.device_kind(),
        num_ranks=lax.axis_size(axis_name),
        m_shard=m_shard,
        k=k,
        n_shard=n_shard,
        dtype=lhs.dtype.name,
    )
    num_sms = hardware.num_sms() if implementation == "mosaic_gpu" else None
    return choose_config(implementation, shape, num_sms=num_sms, table=table)
