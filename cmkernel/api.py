"""The public function: validate, choose an implementation, run it; never fall back silently."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from cmkernel import gradient, hardware, mosaic_gpu, mosaic_gpu_simple, ppermute, xla
from cmkernel.config import CONFIG_TYPES, KernelConfig, SimpleKernelConfig, validate_shape
from cmkernel.tuning import heuristic_config, modelled_calls_us, simple_heuristic_config

if TYPE_CHECKING:
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
    lhs: Float[Array, "*batch m_shard k"],
    rhs: Float[Array, "k n_shard"],
    *,
    axis_name: str,
    implementation: Implementation = "auto",
    config: KernelConfig | SimpleKernelConfig | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
    save_gathered_lhs: bool = False,
) -> Float[Array, "*batch m n_shard"]:
    """``all_gather(lhs, axis=-2) @ rhs`` over mesh axis ``axis_name``, for use inside ``jax.shard_map``.

    Per rank: lhs ``[m_shard, k]``, rhs ``[k, n_shard]``, both f16, bf16 or f32 (f32 not with the ``mosaic_gpu``
    kernels); result ``[axis_size * m_shard, n_shard]`` in ``out_dtype``, accumulated in float32 and rounded once. Rows
    ``[i * m_shard, (i + 1) * m_shard)`` come from rank ``i``. ``jax.shard_map`` needs ``check_vma=False``.

    With a batch, lhs ``[batch, m_shard, k]`` gives ``[batch, axis_size * m_shard, n_shard]``, with the same order of
    rows in each element. It is one multiply of ``batch * m_shard`` rows. Its result comes out rank by rank, so a batch
    above 1 costs one copy of the result, and one of its cotangent in the backward pass.

    Differentiable in reverse mode, with one backward pass for all implementations: ``cmkernel.gradient``. It computes
    ``d_lhs`` by a matmul and a reduce-scatter in float32, and ``d_rhs`` from the gathered lhs. Not for ``jax.jvp``, and
    with the ``mosaic_gpu`` kernels not for ``jax.vmap``: both raise.

    Args:
      lhs: This rank's rows of the left operand.
      rhs: This rank's columns of the right operand.
      axis_name: Mesh axis that the rows of lhs are sharded over. The ``mosaic_gpu`` kernels need it to cover all
        devices.
      implementation: ``mosaic_gpu`` (one Pallas kernel, Hopper), ``mosaic_gpu_simple`` (its readable form),
        ``ppermute`` (portable ring) or ``xla`` (all-gather, then matmul) run just that or raise. ``auto`` takes, where
        ``mosaic_gpu`` can run, whichever the cost model expects to be fastest (few rows go to ``xla``), else
        ``ppermute``, and logs why. With a ``config`` it takes ``mosaic_gpu`` where that can run.
      config: ``KernelConfig`` of ``mosaic_gpu``, ``SimpleKernelConfig`` of ``mosaic_gpu_simple``; by default chosen
        from the shape.
      out_dtype: Of the result: that of the operands, which is the default, or float32 (not with
        ``mosaic_gpu_simple``).
      save_gathered_lhs: Where the gradient takes the gathered lhs from. ``False`` keeps lhs and gathers it again in the
        backward pass: one more all-gather, which may overlap with the multiply for ``d_lhs``. ``True`` keeps the
        gathered lhs, ``axis_size`` times the memory. No implementation communicates more for it: ``xla`` has it anyway,
        the rings copy it once, from the shards that they received. Under ``jax.checkpoint`` what is kept comes from the
        repeated forward pass and lives no longer than that layer's backward pass, so ``True`` is cheap there.

    Raises:
      ValueError: The operands or ``config`` break a rule; the message names the value and the rule.
      NotImplementedError: ``implementation`` can't run here, on these dtypes or on this mesh. From jax, when the
        program is lowered: a ``mosaic_gpu`` kernel, named or taken by ``auto``, over a mesh whose devices aren't in the
        order of their ids.
    """
    choice = choose_implementation(
        lhs, rhs, axis_name=axis_name, implementation=implementation, config=config, out_dtype=out_dtype
    )
    multiply, multiply_and_gather = _passes(choice, axis_name, lhs.dtype if out_dtype is None else out_dtype)
    product = gradient.differentiable(
        multiply, multiply_and_gather, axis_name=axis_name, save_gathered_lhs=save_gathered_lhs
    )
    *batch, m_shard, k = lhs.shape
    out = product(lhs.reshape(-1, k), rhs)
    # [axis_size, *batch, m_shard, n_shard] -> [*batch, axis_size, m_shard, n_shard]
    by_rank = out.reshape(-1, *batch, m_shard, rhs.shape[1])
    return jnp.moveaxis(by_rank, 0, -3).reshape(*batch, -1, rhs.shape[1])


def choose_implementation(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    axis_name: str,
    implementation: Implementation = "auto",
    config: KernelConfig | SimpleKernelConfig | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> Choice:
    """What ``all_gather_matmul`` runs for the same operands; raises what it raises. Call it in the same context."""
    _validate_operands(lhs, rhs, lhs.dtype if out_dtype is None else out_dtype)
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
    if implementation == "mosaic_gpu_simple" and out_dtype is not None and out_dtype != lhs.dtype:
        raise NotImplementedError(
            f"{implementation=} gives lhs.dtype={lhs.dtype}, not out_dtype={jnp.dtype(out_dtype)}"
        )
    if isinstance(config, SimpleKernelConfig):
        validate_shape(config, m_shard=math.prod(lhs.shape[:-1]), k=lhs.shape[-1], n_shard=rhs.shape[1])
    if (reason := _refusal(lhs, axis_name)) is None:
        if implementation == "auto" and config is None:
            return _fastest(lhs, rhs, axis_name)
        chosen = config if config is not None else _heuristic_config(kernel, lhs, rhs, axis_name)
        return Choice(kernel, chosen, "named" if implementation != "auto" else "its config is named")
    if implementation != "auto":
        raise NotImplementedError(f"{implementation=} can't run here: {reason}")
    logger.info("implementation='auto' takes ppermute, as mosaic_gpu can't run here: %s", reason)
    return Choice("ppermute", None, f"mosaic_gpu can't run here: {reason}")


def _passes(
    choice: Choice, axis_name: str, out_dtype: jax.typing.DTypeLike
) -> tuple[gradient.Multiply, gradient.MultiplyAndGather]:
    """The forward pass of ``choice``, without and with the gathered lhs as a second result."""
    options: dict[str, Any] = {"axis_name": axis_name}
    if choice.implementation != "mosaic_gpu_simple":
        options["out_dtype"] = out_dtype
    if choice.implementation == "xla":
        return (
            functools.partial(xla.all_gather_then_dot, **options),
            functools.partial(xla.all_gather_then_dot_with_lhs, **options),
        )
    if choice.config is not None:
        options["config"] = choice.config
    module: Any = {"mosaic_gpu": mosaic_gpu, "mosaic_gpu_simple": mosaic_gpu_simple, "ppermute": ppermute}[
        choice.implementation
    ]

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return module.ring_all_gather_matmul(lhs, rhs, **options)

    def multiply_and_gather(lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out, received = module.ring_all_gather_matmul_with_received(lhs, rhs, **options)
        return out, gradient.in_rank_order(lhs, received, axis_name=axis_name)

    if choice.config is None:
        return multiply, multiply_and_gather
    return _not_batched(multiply), _not_batched(multiply_and_gather)


def _not_batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, refused under ``jax.vmap``: its kernel counts arrivals once a call, not once a batch element."""
    refused = jax.custom_batching.custom_vmap(function)

    @refused.def_vmap
    def _refuse(axis_size: int, *_: Any) -> Any:
        raise NotImplementedError(
            f"jax.vmap of {axis_size=} over the kernel isn't supported; pass lhs as [batch, m_shard, k], or use "
            'implementation="ppermute"'
        )

    return refused


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


def _refusal(lhs: jax.Array, axis_name: str) -> str | None:
    """Why neither kernel can run whatever its tiles, or ``None``."""
    if (reason := hardware.unsupported_reason(axis_name=axis_name)) is not None:
        return reason
    if lhs.dtype not in mosaic_gpu.SUPPORTED_DTYPES:
        return f"lhs.dtype={lhs.dtype} must be float16 or bfloat16"
    return None


def _fastest(lhs: jax.Array, rhs: jax.Array, axis_name: str) -> Choice:
    """What ``auto`` takes where all implementations can run."""
    config = _heuristic_config("mosaic_gpu", lhs, rhs, axis_name)
    times_us = modelled_calls_us(
        config,  # type: ignore[arg-type]
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
    return Choice(fastest, config if fastest == "mosaic_gpu" else None, reason)


def _heuristic_config(
    kernel: Implementation, lhs: jax.Array, rhs: jax.Array, axis_name: str
) -> KernelConfig | SimpleKernelConfig:
    """The tiles that the shape gets; ``ValueError`` where ``mosaic_gpu_simple`` has none that divide it."""
    m_shard, k, n_shard = math.prod(lhs.shape[:-1]), lhs.shape[-1], rhs.shape[1]
    if kernel == "mosaic_gpu_simple":
        return simple_heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard)
    num_ranks, num_sms = lax.axis_size(axis_name), hardware.num_sms()
    return heuristic_config(m_shard=m_shard, k=k, n_shard=n_shard, num_ranks=num_ranks, num_sms=num_sms)
