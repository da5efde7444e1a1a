"""Rows for the tests of pictures and reports: those under benchmarks/, and what may stand beside them."""

import dataclasses

from jobs.records.check import Check
from jobs.records.row import Row
from jobs.results.disk.recorded_run import RecordedRun, read_run
from tests.paths import ROOT

PASSED = Check(
    passed=True,
    calls=4,
    num_elements=1024,
    num_wrong=0,
    max_error=0.01,
    relative_error=1e-3,
    relative_tolerance=2e-3,
    integers_exact=True,
)
"""The check of a row that is right."""

BENCHMARKS = ROOT / "benchmarks"
ARTICLE = BENCHMARKS / "2026-11-29_article_2xH200"
LLAMA3 = BENCHMARKS / "2026-11-29_llama3_2xH200"
H200 = "NVIDIA H200"
_NO_TIMES = {
    "samples_us": {},
    "kernels_us": {},
    "kernel_us": None,
    "device_us": None,
    "in_graph_us": None,
    "call_us": None,
    "derived": None,
}


def article_rows(dtype: str = "float16") -> list[Row]:
    """One case: mosaic_gpu, mosaic_gpu_simple, ppermute, xla, local."""
    return [row for row in read_run(ARTICLE).rows if row.case.dtype == dtype]


def failed(row: Row) -> Row:
    """The same row, had its check failed on rank 1."""
    assert row.check
    check = dataclasses.replace(row.check, passed=False, num_wrong=123, failed_ranks=(1,), relative_error=float("inf"))
    return dataclasses.replace(row, check=check, **_NO_TIMES)


def not_run(row: Row, reason: str) -> Row:
    """The same row, had it been a baseline that can't run."""
    return dataclasses.replace(
        row, implementation="torch_fused", requested="baseline", check=None, config=None, reason=reason, **_NO_TIMES
    )


def with_time(row: Row, time_us: float, **config) -> Row:
    """The same row with another time on all ranks, and other options of its config."""
    spread = dataclasses.replace(row.in_graph_us, min=time_us, median=time_us, max=time_us)
    return dataclasses.replace(row, in_graph_us=spread, config={**(row.config or {}), **config})


def run_of(rows: list[Row], **changes) -> RecordedRun:
    """The article's run with other rows."""
    return dataclasses.replace(read_run(ARTICLE), rows=tuple(rows), **changes)
