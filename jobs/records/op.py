"""Operations that a job measures."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from cmkernel.config import Op as FunctionName


class Op(StrEnum):
    """Operation of a case: one of ``cmkernel``'s two functions, or a layer made of both."""

    all_gather_matmul = "all_gather_matmul"
    matmul_reduce_scatter = "matmul_reduce_scatter"
    mlp = "mlp"
    """The MLP of a Llama layer: gather, gate and up in one multiply, silu(gate) * up, down, reduce-scatter."""
    mlp_grad = "mlp_grad"
    """Its forward and backward pass: the result, and the gradients of input and weights."""

    @property
    def short(self) -> str:
        """Name for a narrow column, as FLUX and Triton-distributed call these kernels."""
        return {"all_gather_matmul": "AG-GEMM", "matmul_reduce_scatter": "GEMM-RS"}.get(self, self.value)

    @property
    def is_layer(self) -> bool:
        """True if both functions take part."""
        return self in (Op.mlp, Op.mlp_grad)

    @property
    def function(self) -> FunctionName:
        """Function of cmkernel that the operation is; a layer has none."""
        assert not self.is_layer
        return cast("FunctionName", self.value)

    @property
    def alone(self) -> str:
        """Words for the bound, ``local``: the same work without communication."""
        return "the layer without communication" if self.is_layer else "the multiply alone"

    @property
    def in_turn(self) -> str:
        """Words for ``xla``: communication and multiply one after the other."""
        words = {"all_gather_matmul": "all-gather then dot", "matmul_reduce_scatter": "dot then reduce-scatter"}
        return words.get(self, "the layer with XLA's collectives")
