"""Configs of the rings: tile sizes of the Mosaic GPU kernels and the laws they must obey."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

# Largest dynamic shared memory a block may request on sm_90 (CUDA C++ Programming Guide, "Compute Capability 9.x").
SMEM_LIMIT_BYTES = 232_448
# Operands are f16 or bf16.
OPERAND_BYTES = 2
# A warpgroup is 128 threads. Its accumulator tile shares their registers with addresses and the epilogue's values.
WARPGROUP_THREADS = 128
MAX_ACCUMULATOR_REGISTERS = 192
NUM_COMPUTE_WARPGROUPS = 2
# Mosaic's limits: mbarriers in a group (one per slot), and rows of a copy, which it counts in eights.
MAX_CONCURRENT_STEPS = 32
MAX_CTA_TILE_M = 8 * 256
# Mbarriers (8 bytes each) and padding for the 1024-byte alignment of swizzled tiles.
SMEM_RESERVE_BYTES = 2_048
# Block that a communication CTA copies at a time: 16 KiB, large enough for the copy engine, small enough that several
# fit.
COMM_BLOCK_ROWS, COMM_BLOCK_COLUMNS = 64, 128
COMM_BLOCK_BYTES = COMM_BLOCK_ROWS * COMM_BLOCK_COLUMNS * OPERAND_BYTES
# Sending warps of a communication CTA: one keeps the link busy while the other waits for its copies to land.
NUM_COMM_WARPS = 2
MIN_BLOCK_SLOTS, MAX_BLOCK_SLOTS = 2, 4


class MatmulDimension(enum.Enum):
    """Dimension of the output tile."""

    M = "M"
    N = "N"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileConfig:
    """Tiles of both ring kernels. Option names follow jax's ``pallas/ops/gpu``.

    The two compute warpgroups of a CTA (block) lie side by side along ``wg_dimension``, so a CTA computes ``cta_tile_m
    x cta_tile_n`` outputs.

    Raises:
      ValueError: an option has another type than its default or breaks a law.
    """

    tile_m: int = 128
    """Output rows of one warpgroup: a multiple of 64 (the wgmma instruction's M)."""
    tile_n: int = 128
    """Output columns of one warpgroup: a multiple of the swizzle's elements, at most 256 (wgmma's N)."""
    tile_k: int = 64
    """Depth of one pipeline step: 16, 32, 64 or 128 elements."""
    max_concurrent_steps: int = 4
    """Pipeline depth in SMEM slots of lhs and rhs tiles: 2 (a sent slot is released one step late) to 32."""
    epi_tile_m: int = 64
    """Rows that the epilogue stores at a time; divides ``tile_m``."""
    epi_tile_n: int = 64
    """Columns that the epilogue stores at a time (half as many for a float32 result); divides ``tile_n``."""
    grid_tile_width: int = 8
    """Width of a raster group in tiles. Tiles of a group share operands in the L2."""
    wg_dimension: MatmulDimension = MatmulDimension.N
    """Dimension along which the two compute warpgroups split the CTA's tile."""

    def __post_init__(self) -> None:
        _validate_types(self)
        for field in dataclasses.fields(TileConfig):
            if isinstance(value := getattr(self, field.name), int) and value < 1:
                raise ValueError(f"{field.name}={value} must be at least 1")
        if self.tile_m % 64:
            raise ValueError(f"tile_m={self.tile_m} must be a multiple of 64, the M of a wgmma instruction")
        if self.tile_k not in (16, 32, 64, 128):
            raise ValueError(f"tile_k={self.tile_k} must be 16, 32, 64 or 128: a swizzled row is at most 128 bytes")
        if self.tile_n > 256 or self.tile_n % self.swizzle_elems:
            raise ValueError(
                f"tile_n={self.tile_n} must be a multiple of {self.swizzle_elems} (the swizzle that "
                f"tile_k={self.tile_k} gives) and at most 256, the N of a wgmma instruction"
            )
        if not 2 <= self.max_concurrent_steps <= MAX_CONCURRENT_STEPS:
            raise ValueError(
                f"max_concurrent_steps={self.max_concurrent_steps} must be at least 2 and at most "
                f"{MAX_CONCURRENT_STEPS}, the number of barriers in a Mosaic group"
            )
        if self.cta_tile_m > MAX_CTA_TILE_M:
            raise ValueError(
                f"tile_m={self.tile_m} with wg_dimension={self.wg_dimension.name} gives a block {self.cta_tile_m} "
                f"rows; a copy takes at most {MAX_CTA_TILE_M}"
            )
        if self.tile_m % self.epi_tile_m or self.epi_tile_m % 64:
            raise ValueError(f"epi_tile_m={self.epi_tile_m} must be a multiple of 64 that divides tile_m={self.tile_m}")
        if self.tile_n % self.epi_tile_n or self.epi_tile_n % 16:
            raise ValueError(f"epi_tile_n={self.epi_tile_n} must be a multiple of 16 that divides tile_n={self.tile_n}")
        registers = self.tile_m * self.tile_n // WARPGROUP_THREADS
        if registers > MAX_ACCUMULATOR_REGISTERS:
            raise ValueError(
                f"tile_m={self.tile_m} x tile_n={self.tile_n} needs {registers} accumulator registers a thread; "
                f"at most {MAX_ACCUMULATOR_REGISTERS} fit"
            )
        if (needed := smem_bytes(self)) > SMEM_LIMIT_BYTES:
            raise ValueError(
                f"tile_m={self.tile_m}, tile_n={self.tile_n}, tile_k={self.tile_k} with "
                f"max_concurrent_steps={self.max_concurrent_steps} need {needed} bytes of shared memory a block; "
                f"the limit is {SMEM_LIMIT_BYTES}"
            )

    @property
    def cta_tile_m(self) -> int:
        """Output rows of one CTA."""
        return self.tile_m * (NUM_COMPUTE_WARPGROUPS if self.wg_dimension is MatmulDimension.M else 1)

    @property
    def cta_tile_n(self) -> int:
        """Output columns of one CTA."""
        return self.tile_n * (NUM_COMPUTE_WARPGROUPS if self.wg_dimension is MatmulDimension.N else 1)

    @property
    def swizzle_elems(self) -> int:
        """Elements in a row of the shared-memory swizzle: ``tile_k``, but at most 128 bytes."""
        return min(self.tile_k, 128 // OPERAND_BYTES)

    @property
    def num_epilogue_slots(self) -> int:
        """Epilogue buffers that a warpgroup alternates between."""
        return min(2, (self.tile_m // self.epi_tile_m) * (self.tile_n // self.epi_tile_n))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleKernelConfig(TileConfig):
    """Config of ``mosaic_gpu_simple``. The defaults are those of the JAX tutorial's example."""

    grid_minor_dim: MatmulDimension = MatmulDimension.N
    """Dimension along which the raster order moves fastest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfig(TileConfig):
    """Config of ``mosaic_gpu``: its tiles, and how a shard travels while it is multiplied.

    A raster group is ``grid_tile_width`` tiles of M, walked along M first.
    """

    tile_m: int = 64
    tile_n: int = 256
    wg_dimension: MatmulDimension = MatmulDimension.M
    num_chunks: int = 4
    """Arrival counters per M tile: how finely the multiply follows arrivals. Rounded to what the shape allows."""
    num_comm_ctas: int = 4
    """CTAs that only send. 0: a second memory warp in each compute CTA sends the lhs tiles it loads anyway."""
    num_in_tile_chunks: int = 0
    """With communication CTAs: last chunks that compute CTAs send instead, from lhs tiles they load anyway."""
    split_last_wave: bool = False
    """Compute the tiles of a last wave that is at most half full in halves, on twice the CTAs."""
    wait_ahead: bool = False
    """Poll the arrival counters ahead of the loads, in a warp of its own. Pays off where one wave does all the work."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_chunks", 1), ("num_comm_ctas", 0), ("num_in_tile_chunks", 0)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name}={value} must be at least {least}")
        half_n = self.tile_n // 2
        if self.split_last_wave and (half_n % self.swizzle_elems or half_n % self.epi_tile_n):
            raise ValueError(
                f"split_last_wave={self.split_last_wave} needs half of tile_n={self.tile_n} to be a multiple of "
                f"{self.swizzle_elems} (the swizzle) and of epi_tile_n={self.epi_tile_n}"
            )

    @property
    def num_block_slots(self) -> int:
        """Blocks a sending warp has room for: its share of the SMEM that is a compute CTA's pipeline, from 2 to 4."""
        share = pipeline_bytes(self) // (NUM_COMM_WARPS * COMM_BLOCK_BYTES)
        return min(max(share, MIN_BLOCK_SLOTS), MAX_BLOCK_SLOTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PpermuteConfig:
    """Config of ``ppermute``, the portable ring.

    Raises:
      ValueError: an option has another type than its default or breaks a law.
    """

    num_chunks: int = 1
    """Row pieces in which a shard is sent and multiplied; capped at the shard's rows."""

    def __post_init__(self) -> None:
        _validate_types(self)
        if self.num_chunks < 1:
            raise ValueError(f"num_chunks={self.num_chunks} must be at least 1")


Config = KernelConfig | SimpleKernelConfig | PpermuteConfig
# Config type of each implementation that takes one.
CONFIG_TYPES: dict[str, type[KernelConfig] | type[SimpleKernelConfig] | type[PpermuteConfig]] = {
    "mosaic_gpu": KernelConfig,
    "mosaic_gpu_simple": SimpleKernelConfig,
    "ppermute": PpermuteConfig,
}


def to_plain(config: Config) -> dict[str, bool | int | str]:
    """Options by name, with enums as their names: JSON can hold it, and ``from_plain`` reads it."""
    values = dataclasses.asdict(config)
    return {name: value.name if isinstance(value, MatmulDimension) else value for name, value in values.items()}


def from_plain(implementation: str, options: Mapping[str, Any]) -> Config:
    """Rebuild the config from the options that ``to_plain`` returned.

    Raises:
      ValueError: the implementation takes no config, an option is unknown, or a value breaks a law.
    """
    if (config_type := CONFIG_TYPES.get(implementation)) is None:
        raise ValueError(f"{implementation=} takes no config")
    defaults = {field.name: field.default for field in dataclasses.fields(config_type)}
    if unknown := set(options) - set(defaults):
        raise ValueError(f"{min(unknown)} is no option of {implementation}")
    values = dict(options)
    for name, value in options.items():
        if isinstance(defaults[name], MatmulDimension):
            if value not in MatmulDimension.__members__:
                raise ValueError(f"{name}={value!r} must be M or N")
            values[name] = MatmulDimension[value]
    return config_type(**values)


def _validate_types(config: Any) -> None:
    for field in dataclasses.fields(config):
        if type(value := getattr(config, field.name)) is not type(field.default):
            raise ValueError(f"{field.name}={value!r} must be of type {type(field.default).__name__}")


def pipeline_bytes(config: TileConfig) -> int:
    """Shared memory of the pipeline slots of one CTA, in bytes."""
    step = (config.cta_tile_m + config.cta_tile_n) * config.tile_k
    return config.max_concurrent_steps * step * OPERAND_BYTES


def block_bytes(config: TileConfig) -> int:
    """Shared memory of a communication CTA's blocks, in bytes. They take the place of the pipeline slots."""
    if not isinstance(config, KernelConfig) or config.num_comm_ctas == 0:
        return 0
    return NUM_COMM_WARPS * config.num_block_slots * COMM_BLOCK_BYTES


def smem_bytes(config: TileConfig) -> int:
    """Shared memory of one CTA, in bytes: pipeline slots, epilogue slots, and a reserve for barriers and alignment."""
    epilogue = NUM_COMPUTE_WARPGROUPS * config.num_epilogue_slots * config.epi_tile_m * config.epi_tile_n
    return max(pipeline_bytes(config), block_bytes(config)) + epilogue * OPERAND_BYTES + SMEM_RESERVE_BYTES


def validate_shape(config: SimpleKernelConfig, *, m_shard: int, k: int, n_shard: int) -> None:
    """Raise ``ValueError`` unless the tiles of ``config`` divide lhs ``[m_shard, k]`` and rhs ``[k, n_shard]``."""
    rules = (
        ("m_shard", m_shard, "cta_tile_m", config.cta_tile_m, "tile_m x warpgroups on M"),
        ("n_shard", n_shard, "cta_tile_n", config.cta_tile_n, "tile_n x warpgroups on N"),
        ("k", k, "tile_k", config.tile_k, "depth of a pipeline step"),
    )
    for dim, size, tile, tile_size, meaning in rules:
        if size % tile_size:
            raise ValueError(f"{dim}={size} must be a multiple of {tile}={tile_size} ({meaning})")
