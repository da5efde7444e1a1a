"""Table on standard output, like that of nccl-tests: one line per row; every other line begins with ``#``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from cmkernel.cost import ExpectedTime, peak_tflops
from jobs.config.choices import Columns
from jobs.config.schema import TuningSettings
from jobs.records.case import Case
from jobs.records.layout import Layout
from jobs.records.op import Op
from jobs.records.row import AnyRow, Row
from jobs.results.analysis.answers import answers
from jobs.results.analysis.rounds import REFERENCE, changes
from jobs.results.terminal.columns import COLUMNS, DEFAULT_VIEW, NONE, View, line, shown
from jobs.results.terminal.wrapping import wrapped

# A reason may hold a whole traceback; the journal has it.
_MAX_REASON = 400


def header_lines(
    *,
    members: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
    links: str,
    cases: Sequence[tuple[Case, ExpectedTime | None]],
    island: str | None = None,
) -> list[str]:
    """Ranks, devices, versions, links and cases.

    Args:
      members: one for each rank, in rank order: ``rank``, ``host``, ``pid``, ``device_kind`` and, on GPUs,
        ``gpu_index``, ``gpu_uuid`` and ``driver_version``.
      versions: software versions by name.
      links: connection of the devices.
      cases: the cases, each with its modelled times if the device has a model.
      island: name of the ranks' island; ``None``: these are all ranks.
    """
    hosts = list(dict.fromkeys(str(member["host"]) for member in members))
    drivers = sorted({str(member["driver_version"]) for member in members if member.get("driver_version")})
    named = [f"{name} {version}" for name, version in versions.items()] + [f"driver {driver}" for driver in drivers]
    modelled = any(expected is not None for _, expected in cases)
    lines = [
        f"# {_title(cases)}: {_count(len(members), 'rank')} on {_count(len(hosts), 'host')}"
        + (" in each island" if island else ""),
        *device_lines(members, island),
        f"# Versions : {', '.join(named)}",
        f"# Links    : {links or NONE}",
        f"# Cases    : {len(cases)}"
        + (
            "; expected from the datasheet's peak and link; bound: the JAX tutorial's D x local + 6 us x (D-1)"
            if modelled
            else ""
        ),
    ]
    lines += [f"#   {case}{_expected(case, expected) if expected else ''}" for case, expected in cases]
    return lines


def device_lines(members: Sequence[Mapping[str, Any]], island: str | None = None) -> list[str]:
    """Host and device of each rank of an ``island`` or of the job; ``members`` as in ``header_lines``."""
    return [f"# Devices of island {island}" if island else "# Devices", *(_member_line(member) for member in members)]


def host_lines(hosts: Layout, cases: Sequence[Case], device_kind: str) -> list[str]:
    """Expected times of both portable rings on each case, by the cost model; empty if all ranks share a host."""
    if hosts.num_hosts == 1:
        return []
    if (refusal := hosts.two_level_refusal) is not None:
        return [f"# Hosts    : the two-level ring {refusal}"]
    links, unknown = hosts.links, any(peak_tflops(device_kind, case.dtype) is None for case in cases)
    return [
        f"# Hosts    : {hosts.num_hosts} of {_count(hosts.ranks_per_host[0], 'rank')}; modelled with "
        f"{links.link_gbytes_per_s:g} GB/s within a host and {links.nics_per_host} x {links.nic_gbytes_per_s:g} GB/s "
        "to the others" + ("; a multiply of unknown peak counts as nothing" if unknown else ""),
        *(
            f"#   {case}  {hosts.expected_rings(case, device_kind)}"
            for case in cases
            if case.op is Op.all_gather_matmul
        ),
    ]


def column_lines(view: View = DEFAULT_VIEW, *, islands: bool = False) -> list[str]:
    """Meaning of the columns that ``view`` shows, and their titles; ``islands``: the first one is the island."""
    columns = shown(view, islands=islands)
    titles = [column.title for column in columns]
    explained = ["Times: the slowest rank's median in microseconds; - if not measured."]
    explained += [f"{column.title}: {column.meaning}" for column in columns if column.meaning]
    # A job with one operation needs no column for it.
    if hidden := [column.title for column in COLUMNS if column.title not in (*titles, "op")]:
        explained.append(f"Not shown: {', '.join(hidden)}; results.columns=all shows them.")
    return [
        "#",
        *wrapped([f"# {text}" for text in explained], view.width),
        "#",
        line(columns, titles, mark="#").rstrip(),
        line(columns, [column.unit for column in columns], mark="#").rstrip(),
    ]


def row_lines(row: Row, view: View = DEFAULT_VIEW, *, beside: Sequence[Row] = ()) -> list[str]:
    """Format one row, followed by a comment with its config if the tuner or the user chose it.

    Instead of times a failed check has ``FAILED``, and a baseline that can't run has ``not run``.

    Args:
      row: what to show.
      view: how the job shows its table.
      beside: the rows that were measured together with it; a tuner's rows are named by how they differ.
    """
    columns = shown(view, islands=row.island is not None)
    text = line(columns, [column.text(row, column.width) for column in columns])
    config = _config(row, view, beside)
    return [text, *wrapped([f"#   {config}"] if config else [], view.width)]


def _config(row: Row, view: View, beside: Sequence[Row]) -> str:
    if not row.is_candidate:
        known = {} if row.is_baseline else row.config or {}
        return " ".join(f"{name}={known[name]}" for name in view.options if name in known)
    if row.requested.endswith(REFERENCE):
        return f"the heuristic's config: {changes(row.config, None)}"
    references = [other for other in beside if other.case == row.case and other.requested.endswith(REFERENCE)]
    return changes(row.config, references[0].config if references else None)


def titles() -> list[tuple[str, str]]:
    """Title and unit of each column, for other tables with the same columns."""
    return [(column.title, column.unit) for column in COLUMNS]


def cells(row: Row) -> list[str]:
    """A row's text in each column, uncut."""
    return [column.text(row, column.width) for column in shown(View(Columns.all), islands=False)]


def footer_lines(
    rows: Sequence[AnyRow], width: int | None = None, *, min_gain: float = TuningSettings.min_gain
) -> list[str]:
    """The verdict on all rows: failed checks, baselines that could not run, and the answer for each case."""
    failed = [row for row in rows if row.failed]
    lines = ["#"]
    not_run = [row for row in rows if row.check is None]
    for row in not_run:
        lines += [
            f"# NOT RUN {row.implementation} on {row.case}{_of_island(row)}",
            "#   " + textwrap.shorten(row.reason or "", _MAX_REASON, placeholder=" ..."),
        ]
    for check, row in [(row.check, row) for row in failed if row.check]:
        ranks = ", ".join(map(str, check.failed_ranks))
        lines += [
            f"# FAILED {row.implementation} on {row.case}{_of_island(row)}",
            f"#   rank {ranks}: {check.num_wrong} of {check.num_elements} elements wrong, largest error "
            f"{check.max_error:.3g}, relative error {check.relative_error:.3g} (tolerance "
            f"{check.relative_tolerance:.3g}), integers {check.integers}",
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
    lines += [f"# {answer.sentence}" for answer in answers(rows, min_gain=min_gain)]
    return wrapped(lines, width)


def _expected(case: Case, expected: ExpectedTime) -> str:
    bound = f"; bound {expected.article_bound_us:.1f} us" if case.op is Op.all_gather_matmul else ""
    return f"  expected: ring {expected.overlapped_us:.1f} us, {case.op.in_turn} {expected.serial_us:.1f} us{bound}"


def _title(cases: Sequence[tuple[Case, ExpectedTime | None]]) -> str:
    titles = {
        Op.all_gather_matmul: "Ring all-gather matmul",
        Op.matmul_reduce_scatter: "Ring matmul reduce-scatter",
        Op.mlp: "MLP",
        Op.mlp_grad: "MLP with gradients",
    }
    return ", ".join(dict.fromkeys(titles[case.op] for case, _ in cases)) or titles[Op.all_gather_matmul]


def _of_island(row: AnyRow) -> str:
    return f", island {row.island}" if row.island is not None else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _member_line(member: Mapping[str, Any]) -> str:
    line = f"#   Rank {member['rank']:2d} on {member['host']} pid {member['pid']:6d} {member['device_kind']}"
    if member.get("gpu_uuid"):
        index = member.get("gpu_index")
        line += f" device {NONE if index is None else index} {member['gpu_uuid']}"
    return line
