"""State of a subtask in whole queries: lists, broadcast and raw state, restored and forked."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, OFTEN, Feed, Job, drop_local_copies
from tests.query.session_conf import session_conf

PARALLELISM = 4
OUTPUT = "what string, subtask int, v long, rules string, seen string, epochs long"
RULE = pa.schema([("name", pa.string()), ("factor", pa.int64())])


class Ruled(StatefulProcessor):
    """Keep rules, all values that the subtask has seen, and the number of its epochs as raw state.

    It emits all of it for each rule and each row.
    """

    def init(self, handle: Any) -> None:
        self.seen = handle.getOperatorListState("seen", "v long")
        self.rules = handle.getBroadcastState("rules", "name string", "factor long")
        self.epochs = 0

    def restoreState(self, context: Any) -> None:
        for stream in context.getRawOperatorStateInputs():
            self.epochs = len(stream.read())

    def snapshotState(self, context: Any) -> None:
        with context.getRawOperatorStateOutput() as stream:
            stream.write(b"x" * (self.epochs + 1))

    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.factor is None:
                self.rules.removeKey((row.name,))
            else:
                self.rules.updateValue((row.name,), (row.factor,))
            yield self.tell("rule", row.factor)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.seen.appendValue((row.v,))
            yield self.tell("row", row.v)

    def tell(self, what: str, v: int | None) -> Row:
        context = TaskContext.get()
        assert context is not None
        rules = sorted((k[0], value[0]) for k, value in self.rules.iterator())
        seen = sorted(item[0] for item in self.seen.get())
        emitted = {"rules": json.dumps(rules), "seen": json.dumps(seen), "epochs": self.epochs}
        return Row(what=what, subtask=context.partitionId(), v=v, **emitted)

    def close(self) -> None:
        pass


@pytest.fixture
def rules(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "rules", RULE, "name string, factor long")


@pytest.fixture
def job(job: Job, rules: Feed) -> Iterator[Job]:
    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.stream(), "k").connectBroadcast(rules.stream(job.spark))
        return job.process(keyed)

    with session_conf(job.spark, {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
        yield job.but(processor=Ruled, output=OUTPUT, plan=plan).using(OFTEN)


RULES = [
    [("a", 1)],
    [("b", 2), ("a", 3)],
    [("a", None)],
    [("c", 4)],
]
RULES_AFTER = [[["a", 1]], [["a", 3], ["b", 2]], [["b", 2]], [["b", 2], ["c", 4]]]


def check(found: list[Row], first: int, last: int, earlier: list[Row]) -> None:
    """Check what the epochs from first to last emitted; `earlier` rows are those before them."""
    of_epoch = {epoch: [r for r in found if r.epochs == epoch] for epoch in range(first, last + 1)}
    assert sum(map(len, of_epoch.values())) == len(found)
    for epoch, rows in of_epoch.items():
        # Every subtask gets every rule in order, with or without rows.
        emitted = [(r.subtask, json.loads(r.rules)) for r in rows if r.what == "rule"]
        final = RULES_AFTER[epoch]
        for subtask in range(PARALLELISM):
            own = [rules for number, rules in emitted if number == subtask]
            assert len(own) == len(RULES[epoch])
            assert own[-1] == final
        # Keyed rows see all rules of their epoch.
        assert all(json.loads(r.rules) == final for r in rows if r.what == "row")
    values: dict[int, list[int]] = defaultdict(list)
    for row in [r for r in earlier if r.what == "row"]:
        values[row.subtask].append(row.v)
    in_order = sorted((r for r in found if r.what == "row"), key=lambda r: len(r.seen))
    for row in in_order:
        values[row.subtask].append(row.v)
        assert json.loads(row.seen) == sorted(values[row.subtask])


def rows_of(job: Job) -> list[Row]:
    return [Row(*OUTPUT_NAMES)(*row) for row in job.result()]


OUTPUT_NAMES = [column.split()[0] for column in OUTPUT.split(", ")]


@pytest.mark.slow
def test_list_broadcast_and_raw_state(job: Job, rules: Feed) -> None:
    """Every subtask has its own list and all rules, before rows, after a restart, in a fork."""
    # In between there are subtasks without keyed rows.
    epochs = [[(f"k{i}", 100 * e + i) for i in range((12, 1, 1, 12)[e])] for e in range(4)]
    job.feed.add(*epochs[:3])
    rules.add(*RULES[:3])
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(job.base / "savepoints")).path
    before = rows_of(job)
    assert {r.subtask for r in before if r.what == "row"} == set(range(PARALLELISM))
    check(before, 0, 2, [])
    assert drop_local_copies(job.spark)
    job.feed.add(epochs[3])
    rules.add(RULES[3])
    job.run()
    fork = job.but(location="loc2", out="out2").using({BACKEND: "heap"})
    fork.run(restore=savepoint)
    after = rows_of(fork)
    check(after, 3, 3, before)
    assert sorted(before + after, key=str) == sorted(rows_of(job), key=str)
