"""A table of tuned configs that several jobs write at the same time."""

import dataclasses
import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cmkernel import Table
from jobs.config.tuned_table import add_entry
from jobs.errors import InfrastructureError, UsageError
from tests.jobs.config.tuned_entry import ENTRY

NUM_WRITERS, NUM_ENTRIES = 4, 10


def test_no_entry_is_lost_where_several_jobs_add_to_one_table(tmp_path):
    """The lock belongs to the open file, so threads compete for it as processes do."""
    path = tmp_path / "tuned.jsonl"
    start = threading.Barrier(NUM_WRITERS)

    def write(writer):
        start.wait()
        for number in range(NUM_ENTRIES):
            shape = dataclasses.replace(ENTRY.shape, m_shard=1 + writer, k=1 + number)
            add_entry("tuning.table", path, dataclasses.replace(ENTRY, shape=shape))

    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        list(pool.map(write, range(NUM_WRITERS)))
    written = {(entry.shape.m_shard, entry.shape.k) for entry in Table.read(path).entries}
    assert written == {(1 + writer, 1 + number) for writer in range(NUM_WRITERS) for number in range(NUM_ENTRIES)}
    assert [file.name for file in tmp_path.iterdir()] == ["tuned.jsonl"]


def test_a_table_that_stays_locked_is_an_error_and_no_hang(tmp_path):
    path = tmp_path / "tuned.jsonl"
    add_entry("tuning.table", path, ENTRY)
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    started_s = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"tuning.table=.*tuned.jsonl: another process keeps it locked"):
        add_entry("tuning.table", path, dataclasses.replace(ENTRY, us=90.0), lock_s=0.1)
    assert time.monotonic() - started_s >= 0.1
    assert Table.read(path) == Table((ENTRY,))
    os.close(fd)


def test_what_is_no_table_is_left_as_it_is(tmp_path):
    path = tmp_path / "tuned.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UsageError, match=r"tuning.table=.*tuned.jsonl:1: no entry of a table"):
        add_entry("tuning.table", path, ENTRY)
    assert path.read_text() == "{}\n"
    with pytest.raises(InfrastructureError, match=r"tuning.table=.*can't be written \(No such file or directory\)"):
        add_entry("tuning.table", tmp_path / "nowhere" / "tuned.jsonl", ENTRY)
