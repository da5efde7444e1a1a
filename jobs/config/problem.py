"""Cases of a job: the lists and layers of its problem, expanded for a number of ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from jobs.config.schema import LayerSettings, ProblemSettings
from jobs.errors import UsageError
from jobs.records.case import Case

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


def expand(problem: ProblemSettings, num_ranks: int) -> tuple[Case, ...]:
    """Cases of ``problem``, in the order of the config.

    Raises:
      UsageError: a size isn't a positive integer, ``k`` breaks the 16-byte rule, a dtype is unknown, a layer's ``n``
        isn't a multiple of the number of ranks, or there is no case.
    """
    dtypes = [_dtype(value) for value in _as_list(problem.dtype or "bfloat16")]
    m_shards = _sizes("problem.m_shard", problem.m_shard)
    shapes: list[tuple[str, int, int, int]] = []
    if not problem.layers:
        ks, n_shards = _sizes("problem.k", problem.k), _sizes("problem.n_shard", problem.n_shard)
        shapes += [(problem.name, *sizes) for sizes in itertools.product(m_shards, ks, n_shards)]
    elif problem.k is not None or problem.n_shard is not None:
        option = "k" if problem.k is not None else "n_shard"
        raise UsageError(f"problem.{option}={getattr(problem, option)} can't be combined with problem.layers")
    for layer in problem.layers:
        n_shard = _layer_n_shard(layer, num_ranks)
        rows = m_shards or _sizes(f"problem.layers[{layer.name}].m_shard", layer.m_shard)
        shapes += [(layer.name, m_shard, layer.k, n_shard) for m_shard in rows]
    cases = tuple(
        Case(name=name, m_shard=m_shard, k=k, n_shard=n_shard, dtype=dtype, num_ranks=num_ranks)
        for name, m_shard, k, n_shard in shapes
        for dtype in dtypes
    )
    if not cases:
        raise UsageError(f"problem={problem.name} has no case: it needs m_shard, k and n_shard, or layers")
    for case in cases:
        if case.k % K_MULTIPLE:
            raise UsageError(
                f"problem.k={case.k} must be a multiple of {K_MULTIPLE}: a row of lhs is copied in 16-byte units"
            )
    return cases


def _layer_n_shard(layer: LayerSettings, num_ranks: int) -> int:
    if layer.n % num_ranks:
        raise UsageError(
            f"problem.layers[{layer.name}].n={layer.n} must be a multiple of the number of ranks, {num_ranks}"
        )
    return layer.n // num_ranks


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


def _dtype(name: Any) -> str:
    if not isinstance(name, str) or name not in DTYPES:
        raise UsageError(f"problem.dtype={name} must be one of {', '.join(DTYPES)}")
    return DTYPES[name]
