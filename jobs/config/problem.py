"""Cases of a job: the lists and layers of its problem, expanded for a number of ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jobs.config.schema import LayerSettings, ProblemSettings
from jobs.errors import UsageError
from jobs.records.case import Case
from jobs.records.op import Op

DTYPES = {name: name for name in ("bfloat16", "float16", "float32")} | {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
}
# A row of lhs must be a multiple of 16 bytes, the unit of the bulk copy engine: 8 elements of 2 bytes.
K_MULTIPLE = 8
# No operand with a larger size fits into a GPU's memory.
MAX_SIZE = 2**24


def config_dir() -> Path:
    """Folder of the config groups: beside the package in a checkout, inside the package in a wheel."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def resolve_problem(problem: ProblemSettings, *, on_gpus: bool) -> ProblemSettings:
    """Fill in the sizes of ``problem=auto``: ``article`` on GPUs, else ``tiny``; any other problem stays as it is."""
    if problem.name != "auto" or problem.layers:
        return problem
    stand_in = OmegaConf.to_container(
        OmegaConf.load(config_dir() / "problem" / f"{'article' if on_gpus else 'tiny'}.yaml")
    )
    assert isinstance(stand_in, dict)
    given = {key: value for key, value in vars(problem).items() if value is not None and key not in ("name", "layers")}
    return ProblemSettings(**{str(key): value for key, value in {**stand_in, **given}.items()})


def ops_of(problem: ProblemSettings) -> tuple[Op, ...]:
    """Operations of ``problem``, in the order of the config.

    Raises:
      UsageError: an operation is unknown.
    """
    ops = _as_list(Op.all_gather_matmul if problem.op is None else problem.op)
    for op in ops or [None]:
        if op not in tuple(Op):
            raise UsageError(f"problem.op={problem.op} must be one of {', '.join(Op)}, or a list of them")
    return tuple(map(Op, ops))


def expand(problem: ProblemSettings, num_ranks: int) -> tuple[Case, ...]:
    """Cases of ``problem``, in the order of the config.

    Raises:
      UsageError: a size isn't a positive integer, ``k`` breaks the 16-byte rule, a dtype or an operation is unknown, a
        layer's weight can't be split over the ranks, or there is no case.
    """
    dtypes = [_dtype(value) for value in _as_list(problem.dtype or "bfloat16")]
    cases = tuple(
        Case(name=name, op=op, **sizes, dtype=dtype, partial_dtype=partial_dtype, num_ranks=num_ranks)
        for op in ops_of(problem)
        for name, sizes in _shapes(problem, op, num_ranks)
        for dtype in dtypes
        for partial_dtype in _partial_dtypes(problem, op, dtype)
    )
    if not cases:
        raise UsageError(f"problem={problem.name} has no case: it needs m_shard, k and n_shard, or layers")
    for case in cases:
        if case.k % K_MULTIPLE:
            raise UsageError(
                f"problem.k={case.k} must be a multiple of {K_MULTIPLE}: a row of lhs is copied in 16-byte units"
            )
        if case.op.is_layer and case.n_shard % K_MULTIPLE:
            raise UsageError(
                f"problem.n_shard={case.n_shard} must be a multiple of {K_MULTIPLE} with problem.op={case.op}: rows of "
                "so many columns are copied in 16-byte units"
            )
    return cases


def _shapes(problem: ProblemSettings, op: Op, num_ranks: int) -> list[tuple[str, dict[str, int]]]:
    """Name and sizes of every case of an operation, whatever its types."""
    m_shards = _sizes("problem.m_shard", problem.m_shard)
    if not problem.layers:
        ks, n_shards = _sizes("problem.k", problem.k), _sizes("problem.n_shard", problem.n_shard)
        sizes = itertools.product(m_shards, ks, n_shards)
        return [(problem.name, {"m_shard": m_shard, "k": k, "n_shard": n_shard}) for m_shard, k, n_shard in sizes]
    for option in ("k", "n_shard"):
        if (value := getattr(problem, option)) is not None:
            raise UsageError(f"problem.{option}={value} can't be combined with problem.layers")
    layers = [layer for layer in problem.layers if layer.op is (Op.mlp if op.is_layer else op)]
    if not layers:
        raise UsageError(f"problem.op={op}: none of problem.layers is of that operation")
    return [
        (layer.name, {"m_shard": m_shard, **_weight_shard(layer, num_ranks)})
        for layer in layers
        for m_shard in m_shards or _sizes(f"problem.layers[{layer.name}].m_shard", layer.m_shard)
    ]


def _weight_shard(layer: LayerSettings, num_ranks: int) -> dict[str, int]:
    """Sizes of a rank's shard of a layer's weight: k is split for ``matmul_reduce_scatter``, else n."""
    split = "k" if layer.op is Op.matmul_reduce_scatter else "n"
    sizes = {"k": layer.k, "n": layer.n}
    if sizes[split] % num_ranks:
        raise UsageError(
            f"problem.layers[{layer.name}].{split}={sizes[split]} must be a multiple of the number of ranks, "
            f"{num_ranks}"
        )
    sizes[split] //= num_ranks
    return {"k": sizes["k"], "n_shard": sizes["n"]}


def _partial_dtypes(problem: ProblemSettings, op: Op, dtype: str) -> list[str | None]:
    """Types of the partial sums to measure; ``None`` where nothing is scattered or they are of ``dtype``."""
    known = [_dtype(value, "partial_dtype") for value in _as_list(problem.partial_dtype or dtype)]
    if op is Op.all_gather_matmul:
        return [None]
    for partial_dtype in known:
        if partial_dtype not in (dtype, "float32"):
            raise UsageError(
                f"problem.partial_dtype={partial_dtype} must be float32, or problem.dtype={dtype}: nothing narrower or "
                "of another kind"
            )
    return list(dict.fromkeys(None if partial_dtype == dtype else partial_dtype for partial_dtype in known))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _sizes(option: str, value: Any) -> list[int]:
    """Sizes that an option names; empty if it is null."""
    if value is None:
        return []
    sizes = _as_list(value)
    for size in sizes or [None]:
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_SIZE:
            raise UsageError(f"{option}={value} must be an integer of 1 to {MAX_SIZE}, or a list of them")
    return sizes


def _dtype(name: Any, option: str = "dtype") -> str:
    if not isinstance(name, str) or name not in DTYPES:
        raise UsageError(f"problem.{option}={name} must be one of {', '.join(DTYPES)}")
    return DTYPES[name]
