"""Several operators in one query: one checkpoint for all of them, and the same result as alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, OFTEN, Job, drop_local_copies, newest_checkpoint, refused
from tests.query.model import Count, in_order
from tests.query.stored import metadata_of

SUM = "key string, n long, total long"
KEYS_OF_STAGES = ("k", "bucket", "size")


class Sum(StatefulProcessor):
    """Emit for each key and epoch how many epochs had rows, and the sum of `v` so far."""

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self.sum.get() or (0, 0)
        n, total = n + 1, total + sum(row.v for row in rows)
        self.sum.update((n, total))
        yield Row(key=key[0], n=n, total=total)

    def close(self) -> None:
        pass


def stages(job: Job, number: int) -> DataFrame:
    """Each stage sums up the output of the stage before, by another key."""
    df, column = job.stream(), "k"
    for stage in range(1, number + 1):
        keyed = ckpt.key_by(df, column)
        df = keyed.transformWithState(Sum(), SUM, "Append", "None", uid=f"stage {stage}")
        if stage < number:
            column = KEYS_OF_STAGES[stage]
            key = F.expr("concat('b', total % 3)" if stage == 1 else "concat('s', length(total))")
            df = df.select(key.alias(column), F.col("total").alias("v"))
    return df


def in_pandas(epochs: list[list[Any]], number: int) -> list[Any]:
    """Compute the same stage by stage, without state."""
    rows = [(epoch, *row) for epoch, file in enumerate(epochs) for row in file]
    frame = pd.DataFrame(rows, columns=["epoch", "key", "v"])
    for stage in range(1, number + 1):
        sums = frame.groupby(["epoch", "key"])["v"].sum().groupby("key")
        frame = pd.DataFrame({"n": sums.cumcount() + 1, "total": sums.cumsum()}).reset_index()
        if stage < number:
            buckets = "b" + (frame["total"] % 3).astype(str)
            sizes = "s" + frame["total"].astype(str).str.len().astype(str)
            frame = pd.DataFrame(
                {
                    "epoch": frame["epoch"],
                    "key": buckets if stage == 1 else sizes,
                    "v": frame["total"],
                }
            )
    return in_order(frame[["key", "n", "total"]].itertuples(index=False))


EPOCHS = [[(f"k{(e * 5 + i * i) % 7}", e * 10 + i) for i in range(12)] for e in range(5)]
SCOPED = [
    "spark.sql.streaming.unsupportedOperationCheck",
    "spark.sql.streaming.statefulOperator.allowMultiple",
]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_chained(job: Job, number: int) -> None:
    """Restarted, and forked onto the other backend, they give the same as the single stages."""
    job = job.but(plan=lambda job: stages(job, number), output=SUM).using(OFTEN)
    conf = {key: job.spark.conf.get(key) for key in SCOPED}
    job.feed.add(*EPOCHS[:2])
    with job.running() as query:
        query.processAllAvailable()
        assert {key: job.spark.conf.get(key) for key in SCOPED} == conf
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    for path in (savepoint, newest_checkpoint(query)):
        metadata = metadata_of(path)
        # The last one of the chain is nearest the sink and has Spark's first operator id.
        stored = {op.uid: (op.operator_id, len(op.handles)) for op in metadata.operators}
        expected = {f"stage {i}": number - i for i in range(1, number + 1)}
        assert {uid: operator_id for uid, (operator_id, _) in stored.items()} == expected
        assert all(handles for _, handles in stored.values())
        assert metadata.epoch == 1
        assert max(h.epoch for op in metadata.operators for h in op.handles) == 1
    assert job.result() == in_pandas(EPOCHS[:2], number)
    assert drop_local_copies(job.spark)
    job.feed.add(*EPOCHS[2:4])
    job.run()
    fork = job.but(location="loc2", out="out2").using({BACKEND: "heap"})
    fork.run(restore=savepoint)
    job.feed.add(EPOCHS[4])
    job.run()
    fork.run()
    assert job.result() == in_pandas(EPOCHS, number)
    assert in_order(fork.result() + in_pandas(EPOCHS[:2], number)) == job.result()


def side_by_side(job: Job, uids: str) -> DataFrame:
    """An operator for each letter, in a union: by key, and by whether the value is odd."""
    df = job.stream()
    even = df.withColumn("even", F.expr("if(v % 2 = 0, 'even', 'odd')"))
    keyed = {"k": ckpt.key_by(df, "k"), "v": ckpt.key_by(even, "even")}
    branches = [
        keyed[uid].transformWithState(Sum(), SUM, "Append", "None", uid=uid) for uid in uids
    ]
    return reduce(DataFrame.union, branches)


@pytest.mark.soak
def test_side_by_side(job: Job) -> None:
    """Two operators over one input, each with its own state; none may be added or removed."""
    job = job.but(plan=lambda job: side_by_side(job, "kv"), output=SUM)
    job.feed.add(EPOCHS[0])
    checkpoint = newest_checkpoint(job.run())
    job.feed.add(EPOCHS[1])
    for uids in ("k", "v", "vk"):
        other = job.but(plan=lambda job, uids=uids: side_by_side(job, uids))
        with refused(ckpt.errors.IncompatibleStateError, "'v'", "uid", unchanged=job.base):
            other.start()
    job.run()
    by_parity = [[("odd" if v % 2 else "even", v) for _, v in file] for file in EPOCHS[:2]]
    both = in_order(in_pandas(EPOCHS[:2], 1) + in_pandas(by_parity, 1))
    assert job.result() == both
    fork = job.but(location="loc3", out="out3")
    fork.run(restore=checkpoint)
    assert in_order(fork.result() + in_pandas(EPOCHS[:1], 1) + in_pandas(by_parity[:1], 1)) == both
    one = job.but(plan=lambda job: side_by_side(job, "k"), location="loc2", out="out2")
    one.run()
    with refused(ckpt.errors.IncompatibleStateError, "'v'", "uid", unchanged=job.base):
        job.but(location="loc2", out="out2").start()


@pytest.mark.slow
def test_operators_of_another_program(job: Job) -> None:
    """One operator more, one less, or another order is refused before the query starts."""
    job = job.but(plan=lambda job: stages(job, 2), output=SUM)
    job.feed.add(EPOCHS[0])
    job.run()
    job.feed.add(EPOCHS[1])
    for number in (1, 3):
        other = job.but(plan=lambda job, n=number: stages(job, n))
        with refused(ckpt.errors.IncompatibleStateError, "stage", "uid", unchanged=job.base):
            other.start()
    job.run()
    assert job.result() == in_pandas(EPOCHS[:2], 2)


def test_operators_that_are_refused(job: Job) -> None:
    """Refused are two with one uid, and Spark's own stateful operators next to several of these."""
    twice = job.but(processor=Count, output="k string, n long")
    with refused(ckpt.errors.PlanError, "uid", "'op'", unchanged=job.base):
        twice.but(plan=lambda job: twice.df().union(twice.df())).start()
    with refused(ckpt.errors.NotBuiltYetError, "stage", "dedupe", unchanged=job.base):
        job.but(plan=lambda job: stages(job, 2).dropDuplicates(["key", "n"])).start()
