"""Names, units and values of what W&B gets, and that docs/metrics.md says the same."""

import dataclasses
import re

from jobs.records.row import Row
from jobs.results.wandb import metrics
from jobs.results.wandb.charts import charts
from jobs.results.wandb.metrics import (
    OF_IMPLEMENTATION,
    OF_ROW,
    STEP,
    SUMMARY_OF_CASE,
    SUMMARY_OF_ISLANDS,
    SUMMARY_OF_RUN,
    SUMMARY_OF_SOAK,
)
from jobs.results.wandb.per_rank import lines
from tests.jobs.results.wandb.wandb_rows import CASE, MEMBERS, ROWS, WRONG, row
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()


def documented(section: str) -> list[list[str]]:
    """Cells of a section's table, below its head."""
    (text,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line] for line in lines]


def test_the_page_has_every_metric_with_its_unit():
    found = [(name, unit, drawn == "x") for name, unit, drawn, _ in documented("History")]
    assert sorted(found) == sorted(
        [
            *((f"<implementation>/{metric.name}", metric.unit, metric.is_drawn) for metric in OF_IMPLEMENTATION),
            (STEP, "", False),
            *((metric.name, metric.unit, metric.is_drawn) for metric in OF_ROW),
        ]
    )
    assert {name: unit for name, unit, _ in documented("Summary")} == {
        **{f"<case>/{name}": unit for name, unit in SUMMARY_OF_CASE.items()},
        **SUMMARY_OF_RUN,
        **SUMMARY_OF_ISLANDS,
        **SUMMARY_OF_SOAK,
    }


def test_units_stand_in_the_names():
    endings = {"us": "_us", "%": "_pct", "GB/s": "_gbps", "MHz": "_mhz", "W": "_w", "TFLOP/s": "tflops"}
    for metric in (*OF_IMPLEMENTATION, *OF_ROW):
        assert metric.name.endswith(endings.get(metric.unit, "")), metric.name


def test_a_baseline_that_could_not_run_has_no_figures():
    refused = Row(case=CASE, implementation="torch_fused", requested="baseline", check=None, reason="no torch")
    assert not any(name.startswith("torch_fused/") for name in metrics.history(refused, 1))
    assert metrics.case_summary({"torch_fused": refused}, passed=True) == {}


def test_the_best_is_the_fastest_that_passed_and_communicates():
    rows = {r.implementation: r for r in (WRONG, row("xla", 150.0), row("mosaic_gpu", 90.0), row("local", 50.0))}
    found = metrics.case_summary(rows, passed=False)
    prefix = "tiny_a/8x16x8/float32"
    assert found[f"{prefix}/best"] == "mosaic_gpu"
    assert (found[f"{prefix}/best_us"], found[f"{prefix}/best_ratio_to_local"]) == (90.0, 1.25)
    assert found[f"{prefix}/check_passed"] == 0, "ppermute's results are wrong"
    assert f"{prefix}/ppermute_in_graph_us" not in found
    assert "best" not in str(metrics.case_summary({"local": row("local", 50.0)}, passed=True))


def test_tags_name_the_device_and_what_the_job_is_about():
    assert metrics.tags(ROWS[0], MEMBERS) == ["NVIDIA H200", "ppermute"]
    assert metrics.tags(dataclasses.replace(ROWS[1], requested="baseline"), MEMBERS) == ["NVIDIA H200"]


def test_charts_have_the_data_of_the_pictures():
    larger = dataclasses.replace(CASE, m_shard=16)
    by_case = {
        CASE: {"ppermute": row("ppermute", 100.0), "local": row("local", 50.0), "xla": WRONG},
        larger: {"ppermute": row("ppermute", 200.0, larger)},
    }
    of_ranks = lines(row("ppermute", 100.0), MEMBERS)
    found = {chart.name: chart for chart in charts(by_case, [], of_ranks)}
    assert [line[:2] for line in found["time_against_bound"].lines] == [
        ["tiny_a/8x16x8/float32 ppermute", 100.0],
        ["tiny_a/8x16x8/float32 local", 50.0],
        ["tiny_a/8x16x8/float32 JAX tutorial's bound", 56.0],
        ["tiny_a/16x16x8/float32 ppermute", 200.0],
        ["tiny_a/16x16x8/float32 JAX tutorial's bound", 56.0],
    ]
    assert found["utilisation"].y == "tflops", "the peak isn't known"
    assert [line[0] for line in found["utilisation"].lines] == [8, 8, 16]
    deviations = [round(line[1], 3) for line in found["ranks"].lines]
    assert deviations == [-1.01, 1.01]
    assert [chart.name for chart in charts({CASE: {"xla": WRONG}}, [WRONG], [])] == []


def test_a_chart_of_the_configs_has_what_differs_between_them():
    rows = [
        dataclasses.replace(row("ppermute", time_us), config={"num_chunks": chunks, "same": 1})
        for chunks, time_us in ((4, 300.0), (1, 100.0), (2, 200.0))
    ]
    (chart,) = charts({}, rows, [])
    assert chart.name == "tuning_landscape"
    assert chart.lines == [
        [f"tiny_a/8x16x8/float32 ppermute num_chunks={chunks}", time_us]
        for chunks, time_us in ((1, 100.0), (2, 200.0), (4, 300.0))
    ]
    assert charts({}, rows[:2], []) == []
