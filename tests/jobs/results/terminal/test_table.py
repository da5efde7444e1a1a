import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmkernel.cost import ExpectedTime, default_links
from jobs.config.choices import Columns
from jobs.records.case import Case
from jobs.records.layout import Layout
from jobs.records.op import Op
from jobs.records.row import TIMES, Derived, Row
from jobs.records.statistics import Spread
from jobs.results.terminal import table
from jobs.results.terminal.columns import View, shown
from jobs.results.terminal.wrapping import LOG_WIDTH
from tests.jobs.run_rows import PASSED

CASE = Case(name="70b_qkv", m_shard=1024, k=8192, n_shard=5120, dtype="bfloat16", num_ranks=2)
FAILED = dataclasses.replace(
    PASSED, passed=False, num_wrong=12, relative_error=float("inf"), integers_exact=False, failed_ranks=(0, 1)
)
EXPECTED = ExpectedTime(local_us=70.0, exchange_us=18.1, serial_us=88.1, overlapped_us=70.0, article_bound_us=86.04)
DERIVED = Derived(
    tflops_per_gpu=687.19,
    utilisation=0.6946,
    ratio_to_local=1.25,
    speedup_over_xla=1.6,
    bus_bandwidth_gbps=83.886,
    overlap_efficiency=0.75,
    article_bound_us=86.0,
)


def row(**changes) -> Row:
    spread = Spread(90.0, 95.0, 100.0)
    passed = Row(
        case=CASE, implementation="mosaic_gpu", requested="auto", check=PASSED, in_graph_us=spread, derived=DERIVED
    )
    return dataclasses.replace(passed, **changes)


ALL = View(Columns.all)


def cells(line: str, view: View = ALL) -> dict[str, str]:
    """The columns of a row, found by the places of the titles."""
    titles = next(line for line in table.column_lines(view) if line.startswith("# case "))
    found, start = {}, 2
    for column in shown(view, islands=False):
        found[column.title] = line[start : start + column.width].strip()
        assert titles[start : start + column.width].strip() == column.title
        start += column.width + 1
    return found


def row_line(row: Row, view: View = ALL) -> str:
    (line,) = table.row_lines(row, view)
    return line


def test_row_has_the_maximum_over_ranks_and_dashes_where_nothing_was_measured():
    found = cells(row_line(row(call_us=Spread(1.0, 2.0, 1234567.89), kernel_us=Spread(89.0, 90.0, 91.0))))
    assert found == {
        "case": "70b_qkv",
        "op": "AG-GEMM",
        "m_shard": "1024",
        "k": "8192",
        "n_shard": "5120",
        "type": "bf16",
        "D": "2",
        "implementation": "mosaic_gpu",
        "kernel_us": "91.00",
        "min": "89.00",
        "device_us": "-",
        "in_graph_us": "100.00",
        "call_us": "1234567.9",
        "bound": "86.00",
        "TF/s": "687.19",
        "util": "69.46",
        "x local": "1.25",
        "speedup": "1.60",
        "busbw": "83.89",
        "overlap": "75.0",
        "#wrong": "0",
    }


def test_failed_check_withholds_everything():
    found = cells(row_line(row(check=FAILED, in_graph_us=None, derived=None)))
    assert found["in_graph_us"] == "FAILED"
    assert found["#wrong"] == "12"
    assert {found[name] for name in TIMES if name != "in_graph_us"} == {"-"}
    assert found["TF/s"] == found["busbw"] == found["util"] == "-"


NOT_RUN = {
    "check": None,
    "reason": "torch can't be imported: " + "no module " * 50,
    "in_graph_us": None,
    "derived": None,
}


def test_baseline_that_could_not_run_says_so():
    found = cells(row_line(row(implementation="torch_fused", **NOT_RUN)))
    assert found["in_graph_us"] == "not run"
    assert found["#wrong"] == found["call_us"] == found["TF/s"] == "-"
    lines = table.footer_lines([row(), row(implementation="torch_fused", **NOT_RUN)])
    assert lines[1] == f"# NOT RUN torch_fused on {CASE}"
    assert lines[2].startswith("#   torch can't be imported: no module")
    assert lines[3:5] == ["# Out of bounds values : 0 OK", "# Rows : 2, 1 of them not run"]
    assert "torch_fused could not run" in lines[5]
    on_a_terminal = table.footer_lines([row(), row(implementation="torch_fused", **NOT_RUN)], 80)
    assert all(len(line) <= 80 for line in on_a_terminal)


times = st.none() | st.builds(lambda value: Spread(value, value, value), st.floats(1e-6, 1e12))


@given(
    name=st.text("abc_.", min_size=1, max_size=40),
    size=st.integers(1, 10**9),
    measured=st.lists(times, min_size=4, max_size=4),
    figures=st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=6),
    view=st.builds(View, st.sampled_from(Columns), st.integers(60, 250)),
)
def test_lines_keep_their_width_whatever_the_values(name, size, measured, figures, view):
    case = Case(name=name, m_shard=size, k=size, n_shard=size, dtype="bfloat16", num_ranks=size)
    fields = dict(zip([field.name for field in dataclasses.fields(Derived)], [*figures, None], strict=True))
    line = row_line(
        row(
            case=case,
            **dict(zip(TIMES, measured, strict=True)),
            derived=Derived(**fields),
            check=dataclasses.replace(PASSED, num_wrong=size),
        ),
        view,
    )
    titles = next(line for line in table.column_lines(view) if line.startswith("# case "))
    assert len(line) == len(titles)
    assert view.columns is Columns.all or len(line) <= min(view.width, LOG_WIDTH)


def titles_of(view: View, *, islands: bool = False) -> list[str]:
    return [column.title for column in shown(view, islands=islands)]


def test_the_operation_has_a_column_in_a_job_that_has_several():
    assert "op" not in titles_of(View())
    titles = titles_of(View(has_ops=True))
    assert titles[:3] == ["case", "op", "m_shard"]
    assert len(table.column_lines(View(has_ops=True))[-2]) <= LOG_WIDTH
    case = dataclasses.replace(CASE, op=Op.matmul_reduce_scatter, partial_dtype="float32")
    line = row_line(dataclasses.replace(row(), case=case), View(has_ops=True))
    assert line.split()[:3] == ["70b_qkv", "GEMM-RS", "f32"]


def test_default_columns_fit_a_log_and_say_what_is_left_out():
    assert titles_of(View()) == [
        *("case", "m_shard", "k", "n_shard", "type", "D", "implementation", "kernel_us", "in_graph_us"),
        *("TF/s", "util", "x local", "speedup", "#wrong"),
    ]
    text = " ".join(table.column_lines())
    assert "Not shown: min, device_us, call_us, bound, busbw, overlap; results.columns=all shows them." in text
    assert "Not shown" not in " ".join(table.column_lines(ALL))


@pytest.mark.parametrize("islands", [False, True])
def test_a_narrow_terminal_keeps_what_identifies_a_row_and_its_time(islands):
    left_out = set(titles_of(View())) - set(titles_of(View(width=80), islands=islands))
    assert {"#wrong", "util", "type"} <= left_out
    assert left_out.isdisjoint({"case", "implementation", "in_graph_us", "x local", "speedup"})
    for width in (60, 80, 100, 120):
        lines = table.column_lines(View(width=width), islands=islands)
        assert max(map(len, lines)) <= width
        # Only the columns that are there are explained.
        explained = {line[2:].split(":")[0] for line in lines if ": " in line} - {"Times", "Not shown"}
        assert explained <= set(titles_of(View(width=width), islands=islands))


def test_no_explanation_of_a_column_is_wider_than_a_narrow_terminal():
    lines = table.column_lines(ALL)[:-2]
    assert max(map(len, lines)) <= 80
    assert {name for name in TIMES if any(line.startswith(f"# {name}: ") for line in lines)} == set(TIMES)


TUNED = {"tile_m": 64, "tile_n": 256, "wait_ahead": False}


def test_candidates_are_named_by_what_differs_from_the_heuristics_config():
    reference = row(requested="tune:1/1:heuristic", config=TUNED)
    other = row(requested="tune:1/1", config={**TUNED, "tile_n": 128})
    round_ = [other, reference]
    assert table.row_lines(other, beside=round_)[1:] == ["#   tile_n=128"]
    assert table.row_lines(reference, beside=round_)[1:] == [
        "#   the heuristic's config: tile_m=64 tile_n=256 wait_ahead=False"
    ]
    # A gang was lost with it, and its round has no other row.
    assert table.row_lines(other, beside=[other])[1:] == ["#   tile_m=64 tile_n=128 wait_ahead=False"]


def test_options_that_a_sweep_sets_are_named_but_not_beside_a_baseline():
    view = View(options=("tile_n", "tile_m"))
    assert table.row_lines(row(config=TUNED), view)[1:] == ["#   tile_n=256 tile_m=64"]
    assert table.row_lines(row(config=TUNED, requested="baseline"), view)[1:] == []
    assert table.row_lines(row(config=None), view)[1:] == []


def test_every_line_that_is_no_row_is_a_comment():
    rows = [row(), row(check=FAILED, in_graph_us=None, derived=None)]
    members = [
        {
            "rank": rank,
            "host": f"host{rank}",
            "pid": 4_000_000 + rank,
            "device_kind": "NVIDIA H200",
            "gpu_index": rank,
            "gpu_uuid": "GPU-7eec7d4f-6b3d-5a3d-0a52-5d1b1a0e5d11",
            "driver_version": "580.159.03",
        }
        for rank in range(2)
    ]
    lines = table.header_lines(
        members=members,
        versions={"jax": "0.11.2", "NCCL": "2.30.7"},
        links="NV18",
        cases=[(CASE, EXPECTED), (CASE, None)],
    )
    lines += table.column_lines() + table.footer_lines(rows)
    assert all(line.startswith("#") and "\n" not in line for line in lines)
    text = "\n".join(lines)
    assert "# Ring all-gather matmul: 2 ranks on 2 hosts" in text
    assert "Rank  1 on host1 pid 4000001 NVIDIA H200 device 1 GPU-7eec7d4f-6b3d-5a3d-0a52-5d1b1a0e5d11" in text
    assert "jax 0.11.2, NCCL 2.30.7, driver 580.159.03" in text
    assert "NV18" in text
    assert "bfloat16 D=2  expected: ring 70.0 us, all-gather then dot 88.1 us; bound 86.0 us" in text
    assert text.count("bound 86.0 us") == 1


def test_hosts_have_the_expected_times_of_both_rings():
    case = dataclasses.replace(CASE, num_ranks=16)
    layout = Layout((8, 8), default_links("NVIDIA H200"))
    lines = table.host_lines(layout, [case], "NVIDIA H200")
    assert lines[0] == "# Hosts    : 2 of 8 ranks; modelled with 450 GB/s within a host and 8 x 50 GB/s to the others"
    assert lines[1].startswith(f"#   {case}  expected: flat ring ")
    # A shard takes 335.5 us over a card and 86.8 us to multiply: 15 * 335.5 + 86.8, and 16 * 86.8.
    assert "flat ring 5120.0 us, two-level ring 1389.1 us" in lines[1]
    (_, *more) = table.host_lines(Layout((2, 2), default_links("cpu")), [case, case], "cpu")
    assert len(more) == 2
    assert "counts as nothing" in table.host_lines(Layout((2, 2), default_links("cpu")), [case], "cpu")[0]


def test_hosts_that_differ_have_one_ring():
    lines = table.host_lines(Layout((3, 1), default_links("cpu")), [CASE], "cpu")
    assert lines == [
        "# Hosts    : the two-level ring needs the same number of ranks on each host, and the 2 hosts have 3, 1"
    ]
    assert table.host_lines(Layout((4,), default_links("cpu")), [CASE], "cpu") == []


def test_header_of_cpu_ranks():
    member = {"rank": 0, "host": "vm", "pid": 7, "device_kind": "cpu", "gpu_uuid": None, "driver_version": None}
    lines = table.header_lines(members=[member], versions={"jax": "0.11.2"}, links="", cases=[])
    assert lines[0] == "# Ring all-gather matmul: 1 rank on 1 host"
    assert lines[2].split() == ["#", "Rank", "0", "on", "vm", "pid", "7", "cpu"]


def test_footer_of_right_results():
    lines = table.footer_lines([row(), row(implementation="xla")])
    assert lines[:3] == ["#", "# Out of bounds values : 0 OK", "# Rows : 2"]
    assert lines[3].startswith(f"# {CASE}: mosaic_gpu is fastest, 100.00 us")


def test_footer_names_each_failure():
    lines = table.footer_lines([row(), row(check=FAILED, in_graph_us=None, derived=None)])
    assert "# Out of bounds values : 12 FAILED" in lines
    assert lines[1] == f"# FAILED mosaic_gpu on {CASE}"
    text = " ".join(line.removeprefix("#").strip() for line in lines)
    assert "rank 0, 1: 12 of 1024 elements wrong" in text
    assert "relative error inf (tolerance 0.002), integers not exact" in text


def test_failure_without_a_wrong_element_is_a_failure():
    check = dataclasses.replace(PASSED, passed=False, integers_exact=False, failed_ranks=(1,))
    assert "# Out of bounds values : 0 FAILED" in table.footer_lines([row(check=check, in_graph_us=None, derived=None)])


def test_footer_of_nothing_does_not_say_ok():
    assert table.footer_lines([]) == ["#", "# Rows : 0"]


@pytest.mark.parametrize(("dtype", "short"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_types_are_short(dtype, short):
    assert cells(row_line(row(case=dataclasses.replace(CASE, dtype=dtype))))["type"] == short
