"""An epoch of any size runs in the memory that the setting gives it."""

from __future__ import annotations

import os
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import Job

LIMIT = "spark.ckpt.execution.memory-limit"
KEYS = 5_000
OUTPUT = "k long, n long, total long, longest int, grown long, spilled long"


class Measured(StatefulProcessor):
    """Number, sum and longest text of a key's rows; and what the worker has used up to then."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, total long, longest int")
        self.before, self.keys = peak(), 0

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total, longest = self.totals.get() or (0, 0, 0)
        for row in rows:
            n, total, longest = n + 1, total + row.v, max(longest, len(row.text))
        self.totals.update((n, total, longest))
        told = {"n": n, "total": total, "longest": longest}
        yield Row(k=key[0], **told, grown=peak() - self.before, spilled=self.spilled())

    def spilled(self) -> int:
        """How many files of rows there are in the executor's scratch directory, for some keys."""
        self.keys += 1
        root = Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0])
        found = root.glob("pyspark_ckpt/*/*/*/**/input-*/*.arrows") if self.keys % 500 == 1 else ()
        return len(list(found))

    def close(self) -> None:
        pass


def peak() -> int:
    """The most memory that this process ever had, in a unit that depends on the platform."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def rows_in(path: Path, rows: int) -> pa.Table:
    """Write a file of rows; return what they are to be counted from."""
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

    What a worker allocates for itself is a good part of its growth in a small epoch.
    """
    expected = in_pandas(rows_in(job.base / "rows", rows))

    def plan(job: Job) -> DataFrame:
        reader = job.spark.readStream.schema("k long, v long, text string")
        return job.process(ckpt.key_by(reader.parquet(str(job.base / "rows")), "k"))

    def run(limit: str) -> tuple[int, int]:
        """Return by how much the worker grew, and the number of spilled files."""
        # Another environment gives the query Python workers of its own, which start small.
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


def test_an_epoch_beyond_the_limit(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """500,000 rows, of which a small part fits into memory."""
    check_growth(job, monkeypatch, 500_000, "16mb", 0.7)


@pytest.mark.soak
def test_a_large_epoch(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000,000 rows."""
    check_growth(job, monkeypatch, 5_000_000, "64mb", 0.2)
