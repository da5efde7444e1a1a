"""Which kernel config a shape gets when the caller names none."""

from __future__ import annotations

from cmkernel.config import KernelConfig, MatmulDimension, validate_shape

# Best first for large problems; smaller tiles fit smaller shapes.
_CANDIDATES = (
    KernelConfig(),
    KernelConfig(tile_m=64, tile_n=256, wg_dimension=MatmulDimension.M),
    KernelConfig(tile_n=64),
    KernelConfig(tile_m=64, tile_n=128),
    KernelConfig(tile_m=64, tile_n=64),
    KernelConfig(tile_m=64, tile_n=64, wg_dimension=MatmulDimension.M),
    KernelConfig(tile_m=64, tile_n=32, tile_k=32, epi_tile_n=32),
)


def heuristic_config(*, m_shard: int, k: int, n_shard: int) -> KernelConfig:
    """The first candidate whose tiles divide the shape.

    Raises:
      ValueError: none does; the message is the rule that the smallest candidate breaks.
    """
    for config in _CANDIDATES:
        try:
            validate_shape(config, m_shard=m_shard, k=k, n_shard=n_shard)
        except ValueError as error:
            last_error = error
        else:
            return config
    raise last_error
