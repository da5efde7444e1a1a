"""Rows for the tests of W&B."""

import dataclasses

from jobs.records.case import Case
from jobs.records.check import Check
from jobs.records.row import Derived, Row, RowSummary, Telemetry
from jobs.records.statistics import Spread

CASE = Case(name="tiny.a", m_shard=8, k=16, n_shard=8, dtype="float32", num_ranks=2)
CHECK = Check(
    passed=True,
    calls=4,
    num_elements=512,
    num_wrong=0,
    max_error=1e-7,
    relative_error=1e-7,
    relative_tolerance=1e-6,
    integers_exact=True,
)


@dataclasses.dataclass(frozen=True)
class Rank:
    rank: int
    host: str = "hostA"
    device_kind: str = "NVIDIA H200"


MEMBERS = [Rank(0), Rank(1, "hostB")]


def row(implementation: str, time_us: float, case: Case = CASE) -> RowSummary:
    return Row(
        case=case,
        implementation=implementation,
        requested="auto",
        check=CHECK,
        in_graph_us=Spread(time_us - 2, time_us - 1, time_us),
        samples_us={"in_graph_us": [[[time_us - 3], [time_us - 2, time_us - 1]], [[time_us], [time_us, 1e9]]]},
        derived=Derived(
            tflops_per_gpu=12.5,
            utilisation=None,
            ratio_to_local=1.25,
            speedup_over_xla=1.5,
            bus_bandwidth_gbps=3.5,
            overlap_efficiency=0.5,
            article_bound_us=56.0,
        ),
        telemetry=(
            Telemetry(
                rank=1,
                num_samples=9,
                sm_clock_mhz=1800.0,
                sm_clock_min_mhz=1500.0,
                power_w=600.0,
                power_max_w=690.0,
                temperature_c=50.0,
                throttle_reasons=("sw_power_cap",),
            ),
        ),
    ).summary()


WRONG = Row(
    case=CASE,
    implementation="ppermute",
    requested="auto",
    check=dataclasses.replace(CHECK, passed=False, num_wrong=7, max_error=float("inf"), failed_ranks=(1,)),
).summary()
ROWS = [row("ppermute", 100.0), row("xla", 150.0), row("ppermute", 200.0, dataclasses.replace(CASE, m_shard=16)), WRONG]

_ALL = row("mosaic_gpu", 90.0)
_SPREAD = Spread(80.0, 81.0, 82.0)
FULL = dataclasses.replace(
    _ALL,
    derived=dataclasses.replace(_ALL.derived, utilisation=0.5),
    kernel_us=_SPREAD,
    device_us=_SPREAD,
    call_us=_SPREAD,
)
"""All that a row can have."""
