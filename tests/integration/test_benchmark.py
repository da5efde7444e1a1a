"""The benchmark over a real gang of two CPU ranks, without the preflight that would refuse what can't run there."""

import pytest

from jobs.config.problem import expand
from jobs.driver.benchmark import BENCH, Benchmark
from jobs.driver.plan import requests_of
from jobs.gang.gang import Gang
from jobs.results.terminal import table
from tests.integration.bench_process import QUICK
from tests.integration.measurements import Observed
from tests.jobs.composed import composed

pytestmark = pytest.mark.slow

SETTINGS = composed(
    *QUICK,
    *("cluster=local", "problem.m_shard=32", "kernel.num_chunks=4"),
    "timing.baselines=[jax_ring,xla,torch_fused,local,local_cublas]",
)


@pytest.fixture(scope="module")
def gang(local_ray):
    with Gang.start(local_ray, SETTINGS.cluster, 2) as gang:
        yield gang


def test_a_baseline_that_cannot_run_has_a_row_with_the_reason(gang):
    observed = Observed(gang, SETTINGS)
    messages, begun, requests = observed.messages, observed.begun, requests_of(SETTINGS)
    benchmark = Benchmark(observed.measurement, requests)
    (case,) = expand(SETTINGS.problem, 2)
    (rows,) = benchmark.run(case)
    assert [(row.implementation, row.requested) for row in rows] == [
        ("ppermute", "auto"),
        ("jax_ring", "baseline"),
        ("xla", "baseline"),
        ("torch_fused", "baseline"),
        ("local", "baseline"),
        ("local_cublas", "baseline"),
    ]
    assert rows[0].config == {"num_chunks": 1}
    assert f"{case}: kernel.num_chunks: of mosaic_gpu, so ppermute runs without" in messages
    for row in rows[1::2]:
        assert row.check is None
        assert not row.failed
        assert "platform='cpu' must be 'gpu'" in row.reason
        assert row.samples_us == {}
        assert f"{case}: {row.implementation} can't run: {row.reason}" in messages
    for row in rows[::2]:
        assert row.check.passed
        assert row.in_graph_us.max > 0
        # Ratios are to the one multiply that was measured.
        assert row.derived.ratio_to_local == pytest.approx(row.in_graph_us.max / rows[4].in_graph_us.max)
    footer = table.footer_lines(rows)
    assert f"# NOT RUN torch_fused on {case}" in footer
    assert "# Out of bounds values : 0 OK" in footer
    # Each step is in the plan, in this order, and the fastest implementation is reported once there is one.
    run = {"auto", "xla", "local"}
    plan = BENCH.steps(case, requests, SETTINGS, "cpu")
    assert [step for step, _, _ in begun] == [step for step in plan if step.implementation in {None, *run}]
    assert begun[1][1] == f"{case}: ppermute: check"
    assert begun[0][2] is None
    (last,) = {best.implementation for step, _, best in begun[-1:]}
    assert last in {"ppermute", "xla"}
    assert begun[-1][2].ratio_to_local > 0


def test_a_timeline_that_cannot_be_had_costs_nothing_else(gang):
    observed = Observed(gang, SETTINGS)
    benchmark = Benchmark(observed.measurement, requests_of(SETTINGS))
    (case,) = expand(SETTINGS.problem, 2)
    # No kernel is open on these ranks. On GPUs, one program too many for their memory has the same effect.
    assert benchmark.timeline(case, ["mosaic_gpu"]) == []
    assert observed.messages == [f"{case}: no timeline of mosaic_gpu: RuntimeError: no case is open"]
    assert gang.answers()
