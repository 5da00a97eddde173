"""Large states of every kind in whole queries: right results in bounded memory.

Scenario 28. What workers allocate is measured from outside, from before they open a local copy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from tests.query.harness import (
    BACKEND,
    BACKENDS,
    INLINE,
    Feed,
    Job,
    completed,
    drop_local_copies,
    newest_checkpoint,
)
from tests.query.model import Count, counted, sequences
from tests.query.stored import handles_of
from tests.query.worker_memory import watched_workers

LIMIT = "spark.ckpt.execution.memory-limit"
MIB = 1 << 20
BLOB_BYTES = 10 * MIB
LISTED = 100_000

COUNTED = "k string, n long"

pytestmark = pytest.mark.soak
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def blob(key: str, v: int) -> bytes:
    text = f"{key} {v} ".encode()
    return text * (BLOB_BYTES // len(text))


class Large(StatefulProcessor):
    """A value of 10 MB and a list of 100,000 for each key; emits whether both were as left."""

    def init(self, handle: Any) -> None:
        self.blob = handle.getValueState("blob", "bytes binary")
        self.last = handle.getValueState("last", "v long")
        self.numbers = handle.getListState("numbers", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        is_right = True
        for row in rows:
            last = self.last.get()
            if last is None:
                self.numbers.put([(n,) for n in range(LISTED)])
            else:
                listed = [n for (n,) in self.numbers.get()]
                is_right &= listed == [*range(LISTED), *range(last[0])]
                is_right &= self.blob.get() == (blob(key[0], last[0]),)
                self.numbers.appendValue((last[0],))
            self.last.update((row.v,))
            self.blob.update((blob(key[0], row.v),))
        yield Row(k=key[0], v=row.v, is_right=is_right)

    def close(self) -> None:
        pass


@pytest.fixture
def job(job: Job) -> Job:
    return job.using({LIMIT: "64mb", INLINE: "0b"})


def least_mib(job: Job) -> float:
    """Return the memory that a worker takes for an epoch of one row."""
    few = job.but(processor=Count, output=COUNTED, feed=Feed(job.base / "few").add([("k", 1)]))
    with watched_workers(job.spark) as memory:
        few.but(location="loc-few", out="out-few").run()
    return memory.peak_mib


@needs_proc
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_of_ten_megabytes_and_lists_of_a_hundred_thousand(job: Job, backend: str) -> None:
    """20 keys, 200 MB: four epochs, a rebuilt copy, and a fork on the other backend."""
    keys = [f"key {n}" for n in range(20)]
    least = least_mib(job)
    output = "k string, v long, is_right boolean"
    job = job.but(processor=Large, output=output).using({BACKEND: backend})
    for v in range(3):
        job.feed.add([(key, v) for key in keys])
    with watched_workers(job.spark) as first:
        job.run()
    drop_local_copies(job.spark)
    job.feed.add([(key, 3) for key in keys])
    with watched_workers(job.spark) as rebuilt, job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints"))
    other = next(each for each in BACKENDS if each != backend)
    fork = job.but(location="loc2", out="out2").using({BACKEND: other})
    job.feed.add([(key, 4) for key in keys])
    with watched_workers(job.spark) as restored:
        fork.run(restore=savepoint.path)
    rows = [*job.result(), *fork.result()]
    assert sorted(map(tuple, rows)) == sorted((k, v, True) for v in range(5) for k in keys)
    peaks = {"epochs": first, "rebuild, savepoint": rebuilt, "restore": restored}
    grown = {name: each.peak_mib - least for name, each in peaks.items()}
    print(f"{backend}: grown by", {name: f"{mib:.0f} MiB" for name, mib in grown.items()})
    assert max(grown.values()) < 400


@needs_proc
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_million_keys(job: Job, backend: str) -> None:
    """Epochs of a few keys take little memory, and so does a rebuilt copy."""
    keys = 1_000_000
    least, grown = least_mib(job), 0.0
    job = job.but(processor=Count, output=COUNTED).using({BACKEND: backend})
    job.feed.add([(f"{n:07}", n) for n in range(keys)])
    job.run()
    for number in range(3):
        if number == 2:
            drop_local_copies(job.spark)
        job.feed.add([(f"{n:07}", n) for n in range(number, keys, 5000)])
        with watched_workers(job.spark) as memory:
            job.run()
        grown = max(grown, memory.peak_mib - least)
    found = job.result()
    assert sequences(found) == counted(job.feed.rows)
    print(f"{backend}: grown by {grown:.0f} MiB at most after the first epoch")
    assert grown < 200


def test_a_thousand_small_subtasks(job: Job) -> None:
    """Checkpoint and restart of 1,000 subtasks, some of them empty."""
    conf, name = job.spark.conf, "spark.sql.shuffle.partitions"
    before = conf.get(name)
    conf.set(name, "1000")
    process = psutil.Process()
    began = process.memory_info().rss
    job = job.but(processor=Count, output=COUNTED)
    try:
        for number in range(2):
            job.feed.add([(f"{n}", n) for n in range(number, 2000)])
            query = job.run()
        assert sequences(job.result()) == counted(job.feed.rows)
        assert len(completed(query)) == 2
        handles = handles_of(newest_checkpoint(query))
        assert 800 < len(handles) <= 1000
        assert {handle.parallelism for handle in handles} == {1000}
        grown = (process.memory_info().rss - began) / MIB
        print(f"{len(handles)} handles; the driver has grown by {grown:.0f} MiB")
        assert grown < 300
    finally:
        conf.set(name, before)
