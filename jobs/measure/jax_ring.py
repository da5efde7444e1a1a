"""A baseline: jax's own ring kernel, ``all_gather_lhs_matmul`` of ``jax.experimental.pallas.ops.gpu``.

The JAX tutorial (https://docs.jax.dev/en/latest/pallas/gpu/collective_matmul.html) describes it. Its tiles must divide
the shape. jax's example times a grid of tiles; here a one-line model chooses them, and the row records them.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import types
from typing import Any, NamedTuple

import jax
from jax import lax

from cmkernel import hardware

NAME = "jax_ring"


class _Tiles(NamedTuple):
    """Output tile of a warpgroup, how two of them form a CTA's tile, and the time of a pipeline step of that."""

    tile_m: int
    tile_n: int
    wg_dimension: str
    step_time: float
    """Ratio to the step of a 128 x 256 CTA tile, from ``cmkernel.performance_model``."""

    @property
    def cta_tile(self) -> tuple[int, int]:
        along_m = self.wg_dimension == "M"
        return (2 * self.tile_m, self.tile_n) if along_m else (self.tile_m, 2 * self.tile_n)

    def divide(self, m_shard: int, n_shard: int) -> bool:
        return m_shard % self.cta_tile[0] == 0 and n_shard % self.cta_tile[1] == 0

    def device_step_time(self, m_shard: int, n_shard: int, num_sms: int) -> float:
        num_tiles = (m_shard // self.cta_tile[0]) * (n_shard // self.cta_tile[1])
        return -(-num_tiles // num_sms) * self.step_time


# The tutorial's tiles come first: among equals the first one wins.
_CANDIDATES = (
    _Tiles(128, 128, "N", 1.0),
    _Tiles(128, 128, "M", 1.0),
    _Tiles(128, 64, "N", 0.57),
    _Tiles(128, 64, "M", 0.57),
    _Tiles(64, 128, "M", 0.56),
    _Tiles(64, 64, "N", 0.34),
    _Tiles(64, 64, "M", 0.34),
)
# The tutorial's values; with the first tiles they equal `conf/kernel/mosaic_gpu_simple.yaml`.
_TILE_K, _MAX_CONCURRENT_STEPS, _GRID_TILE_WIDTH = 64, 4, 8


def unsupported_reason(*, axis_name: str, dtype: Any) -> str | None:
    """Reason why no shape can run here, or ``None``; call it inside ``jax.shard_map``."""
    if (reason := hardware.unsupported_reason(axis_name=axis_name)) is not None:
        return reason
    if lax.axis_size(axis_name) == 1:
        return "it needs at least 2 ranks"
    if jax.numpy.dtype(dtype).itemsize != 2:
        return f"dtype={dtype} must be float16 or bfloat16"
    return None


def choose_config(*, m_shard: int, k: int, n_shard: int, num_sms: int) -> Any:
    """``TuningConfig`` for a shape: of the tiles that divide it, the ones with the shortest device step.

    Raises:
      NotImplementedError: jax's module can't be imported.
      ValueError: no tiles divide the shape.
    """
    module = _module()
    if k % _TILE_K or k < 2 * _TILE_K:
        raise ValueError(f"{k=} must be a multiple of {_TILE_K}, and at least {2 * _TILE_K}, for {NAME}")
    fitting = [tiles for tiles in _CANDIDATES if tiles.divide(m_shard, n_shard)]
    if not fitting:
        raise ValueError(
            f"{m_shard=} and {n_shard=} must be multiples of 64 and 128, or of 128 and 64, for {NAME}: its tiles must "
            "divide the shape"
        )
    best = min(fitting, key=lambda tiles: tiles.device_step_time(m_shard, n_shard, num_sms))
    return module.TuningConfig(
        tile_m=best.tile_m,
        tile_n=best.tile_n,
        tile_k=_TILE_K,
        max_concurrent_steps=_MAX_CONCURRENT_STEPS,
        grid_minor_dim=module.MatmulDimension.N,
        grid_tile_width=_GRID_TILE_WIDTH,
        wg_dimension=module.MatmulDimension[best.wg_dimension],
    )


def all_gather_matmul(lhs: jax.Array, rhs: jax.Array, *, axis_name: str, config: Any) -> jax.Array:
    """``AllGather(lhs) @ rhs`` by jax's kernel, for use inside ``jax.shard_map``.

    Optimization barriers surround it for the same reason as the project's kernels: see ``cmkernel.mosaic_gpu``. jax's
    own code has none.
    """
    lhs, rhs = (lax.optimization_barrier(operand) for operand in (lhs, rhs))
    out = _module().all_gather_lhs_matmul(lhs, rhs, axis_name, config=config, dtype=lhs.dtype)
    return lax.optimization_barrier(out)


def plain(config: Any) -> dict[str, Any]:
    """``TuningConfig`` as plain data for the row."""
    values = dataclasses.asdict(config)
    return {name: value.name if isinstance(value, enum.Enum) else value for name, value in values.items()}


def _module() -> types.ModuleType:
    # Imported late: it imports jax's test utilities and with them absl, which jax doesn't require.
    try:
        return importlib.import_module("jax.experimental.pallas.ops.gpu.collective_matmul_mgpu")
    except ImportError as error:
        raise NotImplementedError(f"jax's own ring can't be imported: {error}; install requirements.lock") from error
