"""Operations: what a rank holds, computes and compares. Each module has one kind."""

from jobs.measure.operations.gather import Gather
from jobs.measure.operations.mlp import Mlp, MlpGrad
from jobs.measure.operations.operation import Functions, Operation
from jobs.measure.operations.scatter import Scatter
from jobs.records.op import Op

__all__ = ["OPERATIONS", "Functions", "Operation"]

OPERATIONS: dict[Op, Operation] = {
    Op.all_gather_matmul: Gather(),
    Op.matmul_reduce_scatter: Scatter(),
    Op.mlp: Mlp(),
    Op.mlp_grad: MlpGrad(),
}
"""The operation of each kind of case."""
