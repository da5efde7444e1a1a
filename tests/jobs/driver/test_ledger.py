"""Path of rows through the driver, from 64 islands at once: memory that a row keeps, and work that it takes."""

import contextlib
import dataclasses
import gc
import io
import itertools
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from jobs.config.choices import WandbMode
from jobs.config.schema import WandbSettings
from jobs.driver.ledger import Ledger
from jobs.driver.outcome import Outcome
from jobs.results.analysis.standings import standings
from jobs.results.disk.journal import Journal, read
from jobs.results.terminal import table
from jobs.results.terminal.progress import Progress
from jobs.results.terminal.steps import Step
from jobs.results.wandb.sink import WandbSink
from tests.jobs.comparison.simulated_runs import row
from tests.jobs.results.wandb.leet import inspect

pytestmark = pytest.mark.slow

ISLANDS, RANKS, PER_ISLAND = 64, 8, 2
ROWS = ISLANDS * PER_ISLAND
# Samples on each rank, as many as a job takes by default: about 750 a row.
COUNTS = {"kernel_us": 20, "device_us": 20, "in_graph_us": 12, "call_us": 60}
SLOW = 17
# Modules that loop over the samples of a row, however many rows there are.
OF_SAMPLES = ("json_safe.py", "statistics.py", "row.py")


def members():
    return [SimpleNamespace(rank=rank, host="h", device_kind="NVIDIA H200") for rank in range(RANKS)]


def bring(ledger, number, rng, first, last):
    for m_shard in range(first, last):
        time_us = 100 + m_shard + (40 if number == SLOW else 0)
        samples = {name: rng.normal(time_us, 1, (RANKS, 1, count)).tolist() for name, count in COUNTS.items()}
        measured = row(samples, m_shard=m_shard)
        case = dataclasses.replace(measured.case, num_ranks=RANKS)
        ledger.expect([Step(case, "inputs")], f"h{number}")
        ledger.begin(Step(case, "inputs"), f"h{number}: {case}", None, f"h{number}")
        ledger.take([dataclasses.replace(measured, case=case, island=f"h{number}")], MEMBERS[number])


MEMBERS = [members() for _ in range(ISLANDS)]


@contextlib.contextmanager
def counted_steps():
    """Count calls and turns of loops in ``jobs``, apart from those over a row's samples."""
    counter, monitoring = itertools.count(), sys.monitoring
    steps = []

    def count(code, *_):
        if "/jobs/" not in code.co_filename or code.co_filename.endswith(OF_SAMPLES):
            return monitoring.DISABLE
        next(counter)
        return None

    monitoring.use_tool_id(monitoring.PROFILER_ID, "steps")
    for event in (monitoring.events.PY_START, monitoring.events.JUMP):
        monitoring.register_callback(monitoring.PROFILER_ID, event, count)
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START | monitoring.events.JUMP)
    try:
        yield steps
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
        steps.append(next(counter))


def all_islands(ledger, first, last):
    """Bring rows of each island, one thread an island; returns steps taken, and bytes that stay."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    threads = [
        threading.Thread(target=bring, args=(ledger, n, np.random.default_rng(n), first, last)) for n in range(ISLANDS)
    ]
    with counted_steps() as steps:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    gc.collect()
    return steps[0], tracemalloc.get_traced_memory()[0] - before


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    """N rows, then 3 N more, through an offline W&B run."""
    run_dir = tmp_path_factory.mktemp("run")
    outcome, stream = Outcome(), io.StringIO()
    settings = WandbSettings(mode=WandbMode.offline)
    outcome.wandb = WandbSink.start(settings, run_dir=run_dir, config={}, group=None, tags=[])
    tracemalloc.start()
    with Journal(run_dir / "results.jsonl") as journal, Progress(stream) as progress:
        ledger = Ledger(journal, outcome, progress)
        first = all_islands(ledger, 0, PER_ISLAND)
        second = all_islands(ledger, PER_ISLAND, 4 * PER_ISLAND)
    tracemalloc.stop()
    wandb_dir = outcome.wandb.dir
    outcome.wandb.finish(exit_code=0, status="ok")
    return SimpleNamespace(
        run_dir=run_dir, outcome=outcome, text=stream.getvalue(), first=first, second=second, wandb_dir=wandb_dir
    )


def test_memory_and_work_are_flat(fed):
    """A row's samples would take 28 kB; a summary takes less than half, and later rows take no more work."""
    (first_steps, _), (second_steps, second_bytes) = fed.first, fed.second
    print(f"{second_bytes / 3 / ROWS:.0f} bytes stay of a row; {first_steps / ROWS:.0f} steps a row, then", end=" ")
    print(f"{second_steps / 3 / ROWS:.0f}")
    assert second_bytes / (3 * ROWS) < 12_000
    # Later rows have five times as many rows before them: any work on those would show.
    assert second_steps / 3 < 1.3 * first_steps


def test_every_row_is_in_the_journal_once_with_all_samples(fed):
    rows = read(fed.run_dir / "results.jsonl")
    keys = {(row.island, row.case.m_shard) for row in rows}
    assert len(rows) == len(keys) == 4 * ROWS == len(fed.outcome.rows)
    assert all(len(row.samples_us[name][rank][0]) == n for row in rows for name, n in COUNTS.items() for rank in (0, 7))


def test_every_row_is_a_line_of_the_table_and_a_step_of_the_run(fed):
    lines = [line for line in fed.text.splitlines() if not line.startswith("#")]
    assert len(lines) == 4 * ROWS
    assert {line.split()[0] for line in lines} == {f"h{number}" for number in range(ISLANDS)}
    titles = next(line for line in table.column_lines(islands=True) if line.startswith("# island"))
    end = titles.index("in_graph_us") + len("in_graph_us")
    assert all(float(line[:end].split()[-1]) > 90 for line in lines), "the columns are in line with their titles"
    steps = [r["history"]["item"] for r in inspect(fed.wandb_dir) if r["type"] == "history"]
    assert len([item for item in steps if "island" in item and "mosaic_gpu/in_graph_us" in item]) == 4 * ROWS


def test_the_verdict_is_that_of_all_samples(fed):
    condensed = standings(fed.outcome.rows, outlier_z=3.5)
    assert [s.name for s in condensed.islands if s.is_outlier] == [f"h{SLOW}"]
    assert condensed.num_islands == ISLANDS
    full = standings(read(fed.run_dir / "results.jsonl"), outlier_z=3.5)
    assert [s.name for s in full.outliers] == [s.name for s in condensed.outliers]
