"""An epoch of any size runs in the memory that the setting gives it."""

from __future__ import annotations

import os
import random
import resource
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, INLINE, Job, drop_local_copies
from tests.query.model import sequences
from tests.query.session_conf import session_conf
from tests.query.worker_memory import MIB, watched_workers

LIMIT = "spark.ckpt.execution.memory-limit"
KEYS = 5_000
OUTPUT = "k long, n long, total long, longest int, grown long, spilled long"


class Measured(StatefulProcessor):
    """Number, sum and longest text of a key's rows; and the memory that the worker has used."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, total long, longest int")
        self.before, self.keys = peak(), 0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total, longest = self.totals.get() or (0, 0, 0)
        for row in rows:
            n, total, longest = n + 1, total + row.v, max(longest, len(row.text))
        self.totals.update((n, total, longest))
        emitted = {"n": n, "total": total, "longest": longest}
        yield Row(k=key[0], **emitted, grown=peak() - self.before, spilled=self.spilled())

    def spilled(self) -> int:
        """Return the number of files of rows in the executor's scratch directory, for some keys."""
        self.keys += 1
        root = Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0])
        found = root.glob("pyspark_ckpt/*/*/*/**/input-*/*.arrows") if self.keys % 500 == 1 else ()
        return len(list(found))

    def close(self) -> None:
        pass


def peak() -> int:
    """Return the most memory that this process ever had; the unit depends on the platform."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def rows_in(path: Path, rows: int) -> pa.Table:
    """Write a file of rows; return the frame that has them."""
    numbers = np.arange(rows)
    keys, values = (numbers * 7919) % KEYS, numbers % 1000
    # All different: equal ones would be one object in pandas.
    texts = pc.binary_join_element_wise(pa.array(numbers).cast(pa.string()), "x" * 400, "-")
    table = pa.table({"k": keys, "v": values, "text": texts})
    path.mkdir()
    pq.write_table(table, path / "rows.parquet", row_group_size=rows // 8)
    return table


def in_pandas(table: pa.Table) -> list[tuple[int, ...]]:
    by_key = table.to_pandas().assign(length=lambda df: df["text"].str.len()).groupby("k")
    counted = by_key.agg(n=("v", "size"), total=("v", "sum"), longest=("length", "max"))
    return [tuple(map(int, row)) for row in counted.reset_index().itertuples(index=False)]


def check_growth(
    job: Job, monkeypatch: pytest.MonkeyPatch, rows: int, small: str, share: float
) -> None:
    """Run one epoch under a small and under a large limit; compare output and memory.

    In a small epoch, much of a worker's growth is for the worker itself.
    """
    expected = in_pandas(rows_in(job.base / "rows", rows))

    def plan(job: Job) -> DataFrame:
        reader = job.spark.readStream.schema("k long, v long, text string")
        return job.process(ckpt.key_by(reader.parquet(str(job.base / "rows")), "k"))

    def run(limit: str) -> tuple[int, int]:
        """Return by how much the worker grew, and the number of spilled files."""
        # Another environment gives the query its own Python workers, which start small.
        environment = job.spark.sparkContext.environment
        monkeypatch.setitem(environment, "PYSPARK_CKPT_TEST", uuid.uuid4().hex)
        one = job.but(processor=Measured, output=OUTPUT, plan=plan).using({LIMIT: limit})
        one = one.but(location=f"loc-{limit}", out=f"out-{limit}")
        one.run()
        result = one.result()
        assert [row[:4] for row in result] == expected
        return max(row[4] for row in result), max(row[5] for row in result)

    grown, spilled = run(small)
    grown_by_all, not_spilled = run("100gb")
    print(f"grown by {grown} with a limit of {small}, by {grown_by_all} without one")
    assert spilled > 0
    assert not_spilled == 0
    assert grown < grown_by_all * share


@pytest.mark.soak
def test_an_epoch_beyond_the_limit(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """500,000 rows, of which a small part fits into memory."""
    check_growth(job, monkeypatch, 500_000, "16mb", 0.7)


@pytest.mark.soak
def test_a_large_epoch(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000,000 rows."""
    check_growth(job, monkeypatch, 5_000_000, "64mb", 0.2)


class SpilledInTemporary(Measured):
    """Emit how many files of rows there are; without a query they are in a temporary directory."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        del timerValues
        found = Path(tempfile.gettempdir()).glob("pyspark_ckpt-*/**/input-*/*.arrows")
        yield Row(k=key[0], n=sum(1 for _ in rows), spilled=len(list(found)))


@pytest.mark.slow
def test_a_batch_dataframe_keeps_to_the_limit_of_the_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spark.sparkContext.environment, "TMPDIR", str(tmp_path))
    rows = spark.range(20_000).selectExpr("id % 100 as k", "repeat('x', 200) as text")

    def spilled(limit: str) -> int:
        with session_conf(spark, {LIMIT: limit}):
            df = ckpt.key_by(rows, "k").transformWithState(
                SpilledInTemporary(), "k long, n long, spilled long", "Append", "None", uid="op"
            )
        found = df.collect()
        assert sorted((row.k, row.n) for row in found) == [(k, 200) for k in range(100)]
        return max(row.spilled for row in found)

    assert spilled("100gb") == 0
    assert spilled("1mb") > 0
    with pytest.raises(ckpt.errors.ConfigurationError, match=LIMIT):
        spilled("much")


BLOB_BYTES = 50_000
MOST_MIB = 300
"""Savepoint and restore came to 240, for 200 MB; all of it applied in one step, to 380."""


def blob(key: str, n: int) -> bytes:
    return random.Random(f"{key} {n}").randbytes(BLOB_BYTES)  # not compressible


class Blobs(StatefulProcessor):
    """Number of a key's rows, and 50 KB; emits whether they were as left."""

    def init(self, handle: Any) -> None:
        self.blob = handle.getValueState("blob", "n long, bytes binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, found = self.blob.get() or (0, None)
        is_right = found is None or bytes(found) == blob(key[0], n)
        n += len(list(rows))
        self.blob.update((n, blob(key[0], n)))
        yield Row(k=key[0], n=n, is_right=is_right)

    def close(self) -> None:
        pass


@pytest.fixture
def one_subtask(spark: SparkSession) -> Iterator[None]:
    """Return a job with all state in one worker."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, "1")
    yield
    spark.conf.set(name, before)


def check_epochs_after_a_backfill(job: Job, backend: str, keys: int) -> None:
    """Run a back-fill, small epochs, a rebuild and a restore, each in separate workers.

    The maximum of a worker is compared with epochs of a small state, in which it has opened a copy
    and imported everything.
    """
    options = {BACKEND: backend, LIMIT: "8mb", INLINE: "0b"}
    job = job.but(processor=Blobs, output="k string, n long, is_right boolean").using(options)
    peaks: dict[str, float] = {}

    def epochs(name: str, job: Job, *numbers: range, restore: str | None = None) -> None:
        job.feed.add(*([(f"{n:07}", n) for n in each] for each in numbers))
        with watched_workers(job.spark) as memory:
            job.run(restore)
        peaks[name] = memory.peak_mib

    few = range(0, keys, keys // 10)
    epochs("small", job, few)
    epochs("back-fill", job, range(keys))
    epochs("next", job, few, few)
    assert drop_local_copies(job.spark) > 0
    job.feed.add([(f"{n:07}", n) for n in few])
    with watched_workers(job.spark) as memory, job.running() as query:
        query.processAllAvailable()
        peaks["rebuild"] = memory.peak_mib
        savepoint = query.triggerSavepoint(str(job.base / "savepoints"))
    peaks["savepoint"] = memory.peak_mib
    fork = job.but(location="fork", out="out-fork")
    epochs("restore", fork, few, restore=savepoint.path)

    rows = [*job.result(), *fork.result()]
    assert all(row[2] for row in rows)
    times = Counter(key for key, _ in job.feed.rows)
    assert sequences(rows) == {key: [*range(1, n + 1)] for key, n in times.items()}
    grown = {name: peak - peaks["small"] for name, peak in peaks.items()}
    whole = keys * BLOB_BYTES / MIB
    print(f"{backend}, {whole:.0f} MiB:", {name: f"{mib:.0f}" for name, mib in grown.items()})
    assert max(grown.values()) < MOST_MIB


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.soak
@pytest.mark.usefixtures("one_subtask")
def test_epochs_after_one_beyond_the_limit(job: Job) -> None:
    """200 MB, against a limit of 8 MB."""
    check_epochs_after_a_backfill(job, "rocksdb", 4_000)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.soak
@pytest.mark.usefixtures("one_subtask")
@pytest.mark.parametrize("backend", BACKENDS)
def test_epochs_after_a_large_one(job: Job, backend: str) -> None:
    """1 GB."""
    check_epochs_after_a_backfill(job, backend, 20_000)
