"""Configurations of the rings: the tile sizes of the Mosaic GPU kernels, and the laws they must obey."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

# Largest dynamic shared memory a block may ask for on sm_90 (CUDA C++ Programming Guide, "Compute Capability 9.x").
SMEM_LIMIT_BYTES = 232_448
# The kernel's operands are f16 or bf16 and its result has their type.
OPERAND_BYTES = 2
# A warpgroup is 128 threads; its accumulator tile lives in their registers, beside addresses and the epilogue's values.
WARPGROUP_THREADS = 128
MAX_ACCUMULATOR_REGISTERS = 192
NUM_COMPUTE_WARPGROUPS = 2
# What Mosaic takes: mbarriers in a group, which are one for each slot; and rows of a copy, which it counts in eights.
MAX_CONCURRENT_STEPS = 32
MAX_CTA_TILE_M = 8 * 256
# Mbarriers (8 bytes each) and the padding that the 1024-byte alignment of swizzled tiles can cost.
SMEM_RESERVE_BYTES = 2_048
# What a communication CTA copies at a time: 16 KiB. Large enough for the copy engine, small enough that many fit.
COMM_BLOCK_ROWS, COMM_BLOCK_COLUMNS = 64, 128
COMM_BLOCK_BYTES = COMM_BLOCK_ROWS * COMM_BLOCK_COLUMNS * OPERAND_BYTES
# Sending warps of a communication CTA: while one waits for its copies to land, the other keeps the link busy.
NUM_COMM_WARPS = 2
MIN_BLOCK_SLOTS, MAX_BLOCK_SLOTS = 2, 4


class MatmulDimension(enum.Enum):
    """A dimension of the output tile."""

    M = "M"
    N = "N"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileConfig:
    """Tiles that both ring kernels have; names follow jax's ``pallas/ops/gpu``. Invalid values raise ``ValueError``.

    The two compute warpgroups of a block (CTA) lie side by side along ``wg_dimension``, so a CTA computes
    ``cta_tile_m x cta_tile_n`` outputs.
    """

    tile_m: int = 128
    """Output rows of one warpgroup: a multiple of 64 (the wgmma instruction's M)."""
    tile_n: int = 128
    """Output columns of one warpgroup: a multiple of the swizzle's elements, at most 256 (wgmma's N)."""
    tile_k: int = 64
    """Depth of one pipeline step: 16, 32, 64 or 128 elements."""
    max_concurrent_steps: int = 4
    """Pipeline depth: SMEM slots of lhs and rhs tiles. 2, as a sent slot is released one step late, to 32."""
    epi_tile_m: int = 64
    """Rows that the epilogue stores at a time; divides ``tile_m``."""
    epi_tile_n: int = 64
    """Columns that the epilogue stores at a time, half as many of a float32 result; divides ``tile_n``."""
    grid_tile_width: int = 8
    """Width of a raster group in tiles: tiles of one group share operands in the L2."""
    wg_dimension: MatmulDimension = MatmulDimension.N
    """Dimension along which the two compute warpgroups split the CTA's tile."""

    def __post_init__(self) -> None:
        _validate_types(self)
        for name in (
            "tile_m",
            "tile_n",
            "tile_k",
            "max_concurrent_steps",
            "epi_tile_m",
            "epi_tile_n",
            "grid_tile_width",
        ):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value} must be at least 1")
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
                f"{MAX_CONCURRENT_STEPS}, the barriers that Mosaic has in a group"
            )
        if self.cta_tile_m > MAX_CTA_TILE_M:
            raise ValueError(
                f"tile_m={self.tile_m} with wg_dimension={self.wg_dimension.name} gives a block {self.cta_tile_m} "
                f"rows; at most {MAX_CTA_TILE_M} fit in a copy"
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
        """Elements in a row of the shared-memory swizzle: what ``tile_k`` covers, at most 128 bytes."""
        return min(self.tile_k, 128 // OPERAND_BYTES)

    @property
    def num_epilogue_slots(self) -> int:
        """Epilogue buffers a warpgroup alternates between."""
        return min(2, (self.tile_m // self.epi_tile_m) * (self.tile_n // self.epi_tile_n))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleKernelConfig(TileConfig):
    """Configuration of ``mosaic_gpu_simple``; the defaults are the article's example."""

    grid_minor_dim: MatmulDimension = MatmulDimension.N
    """Dimension that the raster order walks fastest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfig(TileConfig):
    """Configuration of ``mosaic_gpu``: the tiles, and how the shard travels while it is multiplied.

    Raster groups are ``grid_tile_width`` tiles of M, walked M first.
    """

    tile_m: int = 64
    tile_n: int = 256
    wg_dimension: MatmulDimension = MatmulDimension.M
    num_chunks: int = 4
    """Arrival counters per M tile: how finely the multiply follows what arrives. Rounded to what the shape allows."""
    num_comm_ctas: int = 4
    """CTAs that only send. 0: a second memory warp of each compute CTA sends the lhs tiles that are loaded anyway."""
    num_in_tile_chunks: int = 0
    """Beside communication CTAs: how many of the last chunks the compute CTAs send, of lhs tiles loaded anyway."""
    split_last_wave: bool = False
    """Whether tiles left for a last wave that they fill by half at most are computed in halves, by twice the CTAs."""
    wait_ahead: bool = False
    """Whether a warp of its own polls the arrival counters ahead of the loads: pays where one wave does it all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_chunks < 1:
            raise ValueError(f"num_chunks={self.num_chunks} must be at least 1")
        if self.num_comm_ctas < 0:
            raise ValueError(f"num_comm_ctas={self.num_comm_ctas} must be at least 0")
        if self.num_in_tile_chunks < 0:
            raise ValueError(f"num_in_tile_chunks={self.num_in_tile_chunks} must be at least 0")
        half_n = self.tile_n // 2
        if self.split_last_wave and (half_n % self.swizzle_elems or half_n % self.epi_tile_n):
            raise ValueError(
                f"split_last_wave={self.split_last_wave} needs half of tile_n={self.tile_n} to be a multiple of "
                f"{self.swizzle_elems} (the swizzle) and of epi_tile_n={self.epi_tile_n}"
            )

    @property
    def num_block_slots(self) -> int:
        """Blocks that a sending warp has room for: its share of what a compute CTA uses as pipeline, but at least 2."""
        share = pipeline_bytes(self) // (NUM_COMM_WARPS * COMM_BLOCK_BYTES)
        return min(max(share, MIN_BLOCK_SLOTS), MAX_BLOCK_SLOTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PpermuteConfig:
    """Configuration of ``ppermute``, the portable ring. Invalid values raise ``ValueError``."""

    num_chunks: int = 1
    """Pieces of rows in which a shard is sent and multiplied; at most as many as it has rows."""

    def __post_init__(self) -> None:
        _validate_types(self)
        if self.num_chunks < 1:
            raise ValueError(f"num_chunks={self.num_chunks} must be at least 1")


Config = KernelConfig | SimpleKernelConfig | PpermuteConfig
# The config that each implementation takes, by its name; the others have none.
CONFIG_TYPES: dict[str, type[KernelConfig] | type[SimpleKernelConfig] | type[PpermuteConfig]] = {
    "mosaic_gpu": KernelConfig,
    "mosaic_gpu_simple": SimpleKernelConfig,
    "ppermute": PpermuteConfig,
}


def to_plain(config: Config) -> dict[str, bool | int | str]:
    """The options by name, enums by theirs: what JSON can hold, and ``from_plain`` takes."""
    values = dataclasses.asdict(config)
    return {name: value.name if isinstance(value, MatmulDimension) else value for name, value in values.items()}


def from_plain(implementation: str, options: Mapping[str, Any]) -> Config:
    """The config that ``to_plain`` made the options of.

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
    """Shared memory of the pipeline slots of one CTA in bytes."""
    step = (config.cta_tile_m + config.cta_tile_n) * config.tile_k
    return config.max_concurrent_steps * step * OPERAND_BYTES


def block_bytes(config: TileConfig) -> int:
    """Shared memory of the blocks of a communication CTA in bytes, in the place of the pipeline slots."""
    if not isinstance(config, KernelConfig) or config.num_comm_ctas == 0:
        return 0
    return NUM_COMM_WARPS * config.num_block_slots * COMM_BLOCK_BYTES


def smem_bytes(config: TileConfig) -> int:
    """Shared memory of one CTA in bytes: pipeline slots, epilogue slots and the reserve for barriers and alignment."""
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
