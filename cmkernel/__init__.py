"""Tensor-parallel matmuls for JAX, with the communication hidden behind the multiply.

``all_gather_matmul`` is ``AllGather(lhs) @ rhs``; ``matmul_reduce_scatter`` is ``ReduceScatter(lhs @ rhs)``.
"""

from cmkernel.api import all_gather_matmul, matmul_reduce_scatter
from cmkernel.choice import Choice, choose_implementation
from cmkernel.config import KernelConfig, MatmulDimension, PpermuteConfig, ScatterKernelConfig, SimpleKernelConfig
from cmkernel.cost import Links
from cmkernel.tuned import Table

__all__ = [
    "Choice",
    "KernelConfig",
    "Links",
    "MatmulDimension",
    "PpermuteConfig",
    "ScatterKernelConfig",
    "SimpleKernelConfig",
    "Table",
    "all_gather_matmul",
    "choose_implementation",
    "matmul_reduce_scatter",
]
