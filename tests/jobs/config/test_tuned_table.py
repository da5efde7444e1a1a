"""A table of tuned configs that several jobs write: real processes on one file."""

import dataclasses
import fcntl
import os
import subprocess
import sys
import time

import pytest

from cmkernel import Table
from jobs.config.tuned_table import add_entry
from jobs.errors import InfrastructureError, UsageError
from tests.jobs.config.tuned_entry import ENTRY

NUM_WRITERS, NUM_ENTRIES = 4, 20
WRITER = """
import dataclasses, sys
from pathlib import Path
from jobs.config.tuned_table import add_entry
from tests.jobs.config.tuned_entry import ENTRY

path, writer, num_entries = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(num_entries):
    shape = dataclasses.replace(ENTRY.shape, m_shard=1 + writer, k=1 + number)
    add_entry("tuning.table", path, dataclasses.replace(ENTRY, shape=shape))
"""


def test_no_entry_is_lost_where_several_processes_add_to_one_table(tmp_path):
    path = tmp_path / "tuned.jsonl"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number), str(NUM_ENTRIES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(NUM_WRITERS)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.wait(timeout=60) for writer in writers] == [0] * NUM_WRITERS
    for writer in writers:
        writer.stdin.close()
        writer.stdout.close()
    found = {(entry.shape.m_shard, entry.shape.k) for entry in Table.read(path).entries}
    assert found == {(1 + writer, 1 + number) for writer in range(NUM_WRITERS) for number in range(NUM_ENTRIES)}
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
