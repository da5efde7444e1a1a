"""Ring all-gather matmul for JAX: ``AllGather(lhs) @ rhs`` with the communication hidden behind the multiply."""

from cmkernel.api import all_gather_matmul
from cmkernel.choice import Choice, choose_implementation
from cmkernel.config import KernelConfig, MatmulDimension, PpermuteConfig, SimpleKernelConfig
from cmkernel.cost import Links
from cmkernel.tuned import Table

__all__ = [
    "Choice",
    "KernelConfig",
    "Links",
    "MatmulDimension",
    "PpermuteConfig",
    "SimpleKernelConfig",
    "Table",
    "all_gather_matmul",
    "choose_implementation",
]
