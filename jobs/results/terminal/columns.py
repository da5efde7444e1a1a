"""The columns of the table: what each shows, what it means, and which of them fit a width."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from jobs.config.choices import Columns
from jobs.records.case import Case
from jobs.records.row import HEADLINE, TIMES, Row
from jobs.results.terminal.wrapping import LOG_WIDTH

NONE = "-"
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


@dataclasses.dataclass(frozen=True)
class View:
    """Settings of the table of one job."""

    columns: Columns = Columns.default
    width: int = LOG_WIDTH
    """Columns of the terminal. ``Columns.all`` may be wider."""
    has_ops: bool = False
    """True if the job measures anything but all-gather matmuls."""
    options: tuple[str, ...] = ()
    """Options of the config that the user set; each row of ``kernel.implementation`` repeats their values."""


DEFAULT_VIEW = View()


@dataclasses.dataclass(frozen=True)
class Column:
    """One column; ``text`` gets the row and the width at hand."""

    title: str
    unit: str
    width: int
    text: Callable[[Row, int], str]
    meaning: str = ""
    """One line of at most 80 characters; empty if the title says it all."""
    left: bool = False
    roomy: int = 0
    """Width if all columns are shown and this is larger."""

    def cell(self, text: str) -> str:
        """Return ``text`` at the column's width; what doesn't fit is cut, so that the columns stay aligned."""
        if len(text) > self.width:
            text = text[: self.width - 1] + "~"
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def _number(value: float | None, width: int, scale: float = 1.0, digits: int | None = None) -> str:
    """Format with about four digits, unless ``digits`` after the point are asked for; large values have no fraction."""
    if value is None:
        return NONE
    value *= scale
    if digits is None:
        digits = 4 if abs(value) < 1 else 2 if abs(value) < 1000 else 1
    text = f"{value:.{digits}f}"
    return text if len(text) <= width else f"{value:.{max(0, width - 7)}e}"


def _op(case: Case) -> str:
    return f"{case.op.short} {_DTYPES[case.partial_dtype]}" if case.partial_dtype else case.op.short


def _time(name: str, width: int, meaning: str) -> Column:
    def text(row: Row, width: int) -> str:
        if row.check is None or row.failed:
            return ("FAILED" if row.failed else "not run") if name == HEADLINE else NONE
        spread = getattr(row, name)
        return _number(spread.max if spread else None, width)

    return Column(name, "(us)", width, text, meaning)


def _fastest_rank(name: str, width: int, meaning: str) -> Column:
    def text(row: Row, width: int) -> str:
        spread = getattr(row, name)
        return _number(spread.min if spread else None, width)

    return Column("min", "(us)", width, text, meaning)


def _derived(
    title: str,
    unit: str,
    width: int,
    name: str,
    meaning: str,
    *,
    scale: float = 1.0,
    digits: int | None = None,
    roomy: int = 0,
) -> Column:
    def text(row: Row, width: int) -> str:
        fixed = None if roomy and width >= roomy else digits
        return _number(getattr(row.derived, name), width, scale, fixed) if row.derived else NONE

    return Column(title, unit, width, text, meaning, roomy=roomy)


ISLAND = Column("island", "", 12, lambda row, _: row.island or NONE, left=True)
COLUMNS = (
    Column("case", "", 11, lambda row, _: row.case.name, left=True, roomy=14),
    Column(
        "op",
        "",
        11,
        lambda row, _: _op(row.case),
        "operation; then the type that travels, where it isn't the operands'",
        left=True,
    ),
    Column("m_shard", "(rows)", 7, lambda row, _: str(row.case.m_shard)),
    Column("k", "", 5, lambda row, _: str(row.case.k), roomy=6),
    Column("n_shard", "(cols)", 7, lambda row, _: str(row.case.n_shard)),
    Column("type", "", 4, lambda row, _: _DTYPES.get(row.case.dtype, row.case.dtype)),
    Column("D", "", 3, lambda row, _: str(row.case.num_ranks), "number of ranks"),
    Column("implementation", "", 18, lambda row, _: row.implementation, left=True),
    _time("kernel_us", 9, "the multiply's kernel; torch_fused: all its kernels and copies"),
    _fastest_rank("kernel_us", 7, "kernel_us of the fastest rank"),
    _time("device_us", 9, "a call on the device, from its first kernel to its last"),
    _time("in_graph_us", 11, "a call inside a program of dependent calls"),
    _time("call_us", 9, "one jitted call from Python"),
    _derived("bound", "(us)", 8, "article_bound_us", "local + 6 us x (D-1), as in the JAX tutorial"),
    _derived("TF/s", "", 5, "tflops_per_gpu", "TFLOP/s of one GPU, from in_graph_us", digits=1, roomy=7),
    _derived("util", "(%)", 5, "utilisation", "TF/s over the GPU's peak", scale=100.0, digits=1, roomy=6),
    _derived("x local", "", 7, "ratio_to_local", "in_graph_us over that of the fastest local", digits=2),
    _derived(
        "speedup",
        "",
        7,
        "speedup_over_xla",
        "in_graph_us of the fastest xla over this one",
        digits=2,
    ),
    _derived("busbw", "(GB/s)", 7, "bus_bandwidth_gbps", "bus bandwidth of the exchange, as in nccl-tests"),
    _derived(
        "overlap",
        "(%)",
        7,
        "overlap_efficiency",
        "(xla - t) / (xla - local), where t is in_graph_us",
        scale=100.0,
        digits=1,
    ),
    Column(
        "#wrong",
        "(elem)",
        6,
        lambda row, _: str(row.check.num_wrong) if row.check else NONE,
        "elements out of tolerance",
        roomy=8,
    ),
)
# Shown only on request.
_EXTRA = {"min", "device_us", "call_us", "bound", "busbw", "overlap"}
# Left out, first to last, until the rest fits. The header has the sizes of each case, the footer the wrong elements.
_FIRST_TO_GO = ("#wrong", "util", "type", "D", "TF/s", "k", "n_shard", "kernel_us", "m_shard", "x local", "speedup")
assert set(TIMES) < {column.title for column in COLUMNS}


@functools.cache
def shown(view: View, *, islands: bool) -> tuple[Column, ...]:
    """Return the columns of ``view``, with the island's in front if there are ``islands``."""
    columns = [*([ISLAND] if islands else []), *COLUMNS]
    if view.columns is Columns.all:
        return tuple(dataclasses.replace(column, width=max(column.width, column.roomy)) for column in columns)
    hidden = _EXTRA if view.has_ops else _EXTRA | {"op"}
    columns = [column for column in columns if column.title not in hidden]
    for title in _FIRST_TO_GO:
        if len(line(columns, [""] * len(columns))) <= view.width:
            break
        columns = [column for column in columns if column.title != title]
    return tuple(columns)


def line(columns: Sequence[Column], texts: Sequence[str], *, mark: str = " ") -> str:
    """Put ``texts`` into their columns."""
    return f"{mark} " + " ".join(column.cell(text) for column, text in zip(columns, texts, strict=True))
