"""The table on standard output, in the manner of nccl-tests: one line a row, everything else behind ``#``."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cmkernel.cost import ExpectedTime, peak_tflops
from jobs.records.case import Case
from jobs.records.layout import Layout
from jobs.records.row import HEADLINE, TIMES, AnyRow, Row

MAX_WIDTH = 180
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_NONE = "-"


@dataclasses.dataclass(frozen=True)
class _Column:
    title: str
    unit: str
    width: int
    text: Callable[[Row], str]
    left: bool = False

    def cell(self, text: str) -> str:
        """``text`` at the column's width; what doesn't fit is cut, so that the columns stay in line."""
        if len(text) > self.width:
            text = text[: self.width - 1] + "~"
        return text.ljust(self.width) if self.left else text.rjust(self.width)


def _number(value: float | None, width: int, scale: float = 1.0) -> str:
    """About four digits; large values without a fraction."""
    if value is None:
        return _NONE
    value *= scale
    digits = 4 if abs(value) < 1 else 2 if abs(value) < 1000 else 1
    text = f"{value:.{digits}f}"
    return text if len(text) <= width else f"{value:.{max(0, width - 7)}e}"


def _time(name: str, width: int) -> _Column:
    def text(row: Row) -> str:
        if row.check is None or row.failed:
            return ("FAILED" if row.failed else "not run") if name == HEADLINE else _NONE
        spread = getattr(row, name)
        return _number(spread.max if spread else None, width)

    return _Column(name, "(us)", width, text)


def _fastest_rank(name: str, width: int) -> _Column:
    def text(row: Row) -> str:
        spread = getattr(row, name)
        return _number(spread.min if spread else None, width)

    return _Column("min", "(us)", width, text)


def _derived(title: str, unit: str, width: int, name: str, scale: float = 1.0) -> _Column:
    def text(row: Row) -> str:
        return _number(getattr(row.derived, name), width, scale) if row.derived else _NONE

    return _Column(title, unit, width, text)


_ISLAND = _Column("island", "", 12, lambda row: row.island or _NONE, left=True)
_TIME_WIDTHS = {"in_graph_us": 11}
_COLUMNS = (
    _Column("case", "", 14, lambda row: row.case.name, left=True),
    _Column("m_shard", "(rows)", 7, lambda row: str(row.case.m_shard)),
    _Column("k", "", 6, lambda row: str(row.case.k)),
    _Column("n_shard", "(cols)", 7, lambda row: str(row.case.n_shard)),
    _Column("type", "", 4, lambda row: _DTYPES.get(row.case.dtype, row.case.dtype)),
    _Column("D", "", 3, lambda row: str(row.case.num_ranks)),
    _Column("implementation", "", 18, lambda row: row.implementation, left=True),
    _time("kernel_us", 9),
    _fastest_rank("kernel_us", 7),
    *(_time(name, _TIME_WIDTHS.get(name, 9)) for name in TIMES if name != "kernel_us"),
    _derived("bound", "(us)", 8, "article_bound_us"),
    _derived("TF/s", "", 7, "tflops_per_gpu"),
    _derived("util", "(%)", 6, "utilisation", 100.0),
    _derived("/local", "", 6, "ratio_to_local"),
    _derived("xla/", "", 6, "speedup_over_xla"),
    _derived("busbw", "(GB/s)", 7, "bus_bandwidth_gbps"),
    _derived("overlap", "(%)", 7, "overlap_efficiency", 100.0),
    _Column("#wrong", "(elem)", 8, lambda row: str(row.check.num_wrong) if row.check else _NONE),
)


def header_lines(
    *,
    members: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
    links: str,
    cases: Sequence[tuple[Case, ExpectedTime | None]],
    island: str | None = None,
) -> list[str]:
    """What runs where.

    Args:
      members: one per rank, in rank order: ``rank``, ``host``, ``pid``, ``device_kind`` and, on GPUs, ``gpu_index``,
        ``gpu_uuid`` and ``driver_version``.
      versions: of the software, by name.
      links: how the devices are connected.
      cases: what will be measured, each with its modelled times where there is a model of the device.
      island: whose ranks these are, where they aren't all.
    """
    hosts = list(dict.fromkeys(str(member["host"]) for member in members))
    drivers = sorted({str(member["driver_version"]) for member in members if member.get("driver_version")})
    named = [f"{name} {version}" for name, version in versions.items()] + [f"driver {driver}" for driver in drivers]
    modelled = any(expected is not None for _, expected in cases)
    lines = [
        f"# Ring all-gather matmul: {_count(len(members), 'rank')} on {_count(len(hosts), 'host')}"
        + (" in each island" if island else ""),
        *device_lines(members, island),
        f"# Versions : {', '.join(named)}",
        f"# Links    : {links or _NONE}",
        f"# Cases    : {len(cases)}"
        + (
            "; expected from the datasheet's peak and link; bound: the article's D x local + 6 us x (D-1)"
            if modelled
            else ""
        ),
    ]
    lines += [f"#   {case}{_expected(expected) if expected else ''}" for case, expected in cases]
    return lines


def device_lines(members: Sequence[Mapping[str, Any]], island: str | None = None) -> list[str]:
    """Where the ranks are, those of an ``island`` or all; ``members`` as in ``header_lines``."""
    return [f"# Devices of island {island}" if island else "# Devices", *(_member_line(member) for member in members)]


def host_lines(hosts: Layout, cases: Sequence[Case], device_kind: str) -> list[str]:
    """What the cost model expects of both portable rings on each case; nothing where all ranks are on one host."""
    if hosts.num_hosts == 1:
        return []
    if (refusal := hosts.two_level_refusal) is not None:
        return [f"# Hosts    : the two-level ring {refusal}"]
    links, unknown = hosts.links, any(peak_tflops(device_kind, case.dtype) is None for case in cases)
    return [
        f"# Hosts    : {hosts.num_hosts} of {_count(hosts.ranks_per_host[0], 'rank')}; modelled with "
        f"{links.link_gbytes_per_s:g} GB/s within a host and {links.nics_per_host} x {links.nic_gbytes_per_s:g} GB/s "
        "to the others" + ("; the multiply counts as nothing where its peak isn't known" if unknown else ""),
        *(f"#   {case}  {hosts.expected_rings(case, device_kind)}" for case in cases),
    ]


def column_lines(*, islands: bool = False) -> list[str]:
    """What the columns mean, and their titles; in front of them the island's, where there are ``islands``."""
    columns = (_ISLAND, *_COLUMNS) if islands else _COLUMNS
    return [
        "#",
        "# Times: maximum over ranks of each rank's median (min: minimum over ranks); - where not measured.",
        "# kernel_us: the multiply's kernel (torch_fused: the span of its kernels and copies); device_us: a call on",
        "# the device, from first kernel's start to the last end; in_graph_us: a call inside a program of dependent",
        "# calls; call_us: one jitted call. From",
        "# t = in_graph_us: bound = local + 6 us x (D-1); TF/s of one GPU; util of its peak; /local = t / local, the",
        "# multiply without communication, the faster of local and local_cublas; xla/ = xla / t, all-gather then dot;",
        "# busbw as in nccl-tests; overlap = (xla - t) / (xla - local). #wrong: elements out of tolerance.",
        "#",
        "# " + " ".join(column.cell(column.title) for column in columns),
        ("# " + " ".join(column.cell(column.unit) for column in columns)).rstrip(),
    ]


def row_line(row: Row) -> str:
    """One row; in the place of its times a failed check has ``FAILED``, a baseline that can't run ``not run``."""
    columns = _COLUMNS if row.island is None else (_ISLAND, *_COLUMNS)
    return "  " + " ".join(column.cell(column.text(row)) for column in columns)


def titles() -> list[tuple[str, str]]:
    """Title and unit of each column, for other tables of the same."""
    return [(column.title, column.unit) for column in _COLUMNS]


def cells(row: Row) -> list[str]:
    """A row's text in each column, uncut."""
    return [column.text(row) for column in _COLUMNS]


def footer_lines(rows: Sequence[AnyRow]) -> list[str]:
    """The verdict over all rows, what each failed check found, and why baselines could not run."""
    failed = [row for row in rows if row.failed]
    lines = ["#"]
    not_run = [row for row in rows if row.check is None]
    for row in not_run:
        lines += [
            f"# NOT RUN {row.implementation} on {row.case}{_of_island(row)}",
            "#   " + textwrap.shorten(row.reason or "", MAX_WIDTH - 4, placeholder=" ..."),
        ]
    for check, row in [(row.check, row) for row in failed if row.check]:
        ranks = ", ".join(map(str, check.failed_ranks))
        lines += [
            f"# FAILED {row.implementation} on {row.case}{_of_island(row)}",
            f"#   rank {ranks}: {check.num_wrong} of {check.num_elements} elements wrong, largest error "
            f"{check.max_error:.3g}, relative error {check.relative_error:.3g} (tolerance "
            f"{check.relative_tolerance:.3g}), integers {'exact' if check.integers_exact else 'not exact'}",
        ]
    # nccl-tests' own words: scripts look for them.
    if len(rows) > len(not_run):
        num_wrong = sum(row.check.num_wrong for row in rows if row.check)
        lines.append(f"# Out of bounds values : {num_wrong} {'FAILED' if failed else 'OK'}")
    lines.append(
        f"# Rows : {len(rows)}"
        + (f", {len(failed)} of them FAILED" if failed else "")
        + (f", {len(not_run)} of them not run" if not_run else "")
    )
    return lines


def _expected(expected: ExpectedTime) -> str:
    return (
        f"  expected: ring {expected.overlapped_us:.1f} us, all-gather then dot {expected.serial_us:.1f} us; "
        f"bound {expected.article_bound_us:.1f} us"
    )


def _of_island(row: AnyRow) -> str:
    return f", island {row.island}" if row.island is not None else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _member_line(member: Mapping[str, Any]) -> str:
    line = f"#   Rank {member['rank']:2d} on {member['host']} pid {member['pid']:6d} {member['device_kind']}"
    if member.get("gpu_uuid"):
        index = member.get("gpu_index")
        line += f" device {_NONE if index is None else index} {member['gpu_uuid']}"
    return line
