"""Backend, parallelism, max_parallelism and uid change in one restore; all kinds of state stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, INLINE, Feed, Job, digests
from tests.query.session_conf import session_conf
from tests.query.stored import metadata_of

pytestmark = pytest.mark.slow

KEYS = [f"k{i}" for i in range(12)]
RULES = [["a", 1], ["b", 2]]
OUTPUT = "k string, what string, v long, n long, emitted string"


class Keeping(StatefulProcessor):
    """Keep values in states of the key and of the subtask, and emit all of them at each row.

    Each row sets a timer that is due in the next epoch.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long")
        self.lasting = handle.getListState("lasting", "v long", 3_600_000)
        self.short = handle.getListState("short", "v long", 1)
        self.dealt = handle.getOperatorListState("dealt", "v long")
        self.united = handle.getOperatorListState("united", "v long", "union")
        self.rules = handle.getBroadcastState("rules", "name string", "factor long")

    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.rules.updateValue((row.name,), (row.factor,))
        yield from ()

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        context = TaskContext.get()
        assert context is not None
        for row in rows:
            n = (self.n.get() or (0,))[0] + 1
            emitted = {
                "subtask": context.partitionId(),
                "rules": sorted([k[0], value[0]] for k, value in self.rules.iterator()),
            }
            for name in ("lasting", "short", "dealt", "united"):
                emitted[name] = sorted(item[0] for item in getattr(self, name).get())
                getattr(self, name).appendValue((row.v,))
            self.n.update((n,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            yield Row(k=key[0], what="row", v=row.v, n=n, emitted=json.dumps(emitted))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(k=key[0], what="timer", v=None, n=self.n.get()[0], emitted=None)

    def close(self) -> None:
        pass


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Keeping, output=OUTPUT, time_mode="ProcessingTime").using(
        {INLINE: "0b"}
    )


def with_rules(rules: Feed, maximum: int) -> Any:
    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.stream(), "k", max_parallelism=maximum)
        return job.process(keyed.connectBroadcast(rules.stream(job.spark)))

    return plan


@pytest.mark.everywhere
def test_all_kinds_of_state_through_several_changes(job: Job) -> None:
    """Scenarios 30, 37 and 41: timers and time to live in processing time, lists, broadcast."""
    rules = Feed(
        job.base / "rules",
        pa.schema([("name", pa.string()), ("factor", pa.int64())]),
        "name string, factor long",
    )
    rules.add([tuple(rule) for rule in RULES])
    job.feed.add(*([(k, 100 * epoch + i) for i, k in enumerate(KEYS)] for epoch in range(2)))
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "2"}):
        query = job.but(plan=with_rules(rules, 128)).run()
        savepoint = query.stopWithSavepoint(str(job.base / "savepoints"), format="NATIVE").path
    before = digests(Path(savepoint))
    renamed = ckpt.location(savepoint).rename_uid({"op": "renamed"}, str(job.base / "renamed")).path
    job.feed.add([(k, 200 + i) for i, k in enumerate(KEYS)])
    fork = job.but(uid="renamed", location="loc2", out="out2", plan=with_rules(rules, 50))
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "3"}):
        query = fork.using({BACKEND: "heap"}).run(renamed)
        last = query.stopWithSavepoint(str(job.base / "savepoints")).path
    assert digests(Path(savepoint)) == before
    (operator,) = metadata_of(last).operators
    assert (operator.uid, operator.backend) == ("renamed", "heap")
    assert (operator.parallelism, operator.max_parallelism) == (3, 50)
    _check_fork(fork.result(), [row[2] for row in job.result() if row[1] == "row"])


def _check_fork(emitted: list[Any], earlier: list[int]) -> None:
    timers = sorted((k, n) for k, what, _, n, _ in emitted if what == "timer")
    # Those of the original's last epoch, each once, after the rows of this one.
    assert timers == sorted((k, 3) for k in KEYS)
    rows = {v: (k, n, json.loads(text)) for k, what, v, n, text in emitted if what == "row"}
    assert {(k, n) for k, n, _ in rows.values()} == {(k, 3) for k in KEYS}
    last_dealt: dict[int, list[int]] = {}
    seen: dict[int, list[int]] = {}
    in_order = sorted(rows.items(), key=lambda item: len(item[1][2]["united"]))
    for v, (_, _, known) in in_order:
        i = v - 200
        assert (known["lasting"], known["short"]) == ([i, 100 + i], [])
        assert known["rules"] == RULES
        own = seen.setdefault(known["subtask"], [])
        assert known["united"] == sorted(earlier + own)
        own.append(v)
        last_dealt[known["subtask"]] = [*known["dealt"], v]
    assert set(seen) == {0, 1, 2}
    assert sorted(v for dealt in last_dealt.values() for v in dealt) == sorted([*earlier, *rows])
