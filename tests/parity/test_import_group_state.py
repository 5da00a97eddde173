"""The state of ``applyInPandasWithState`` becomes the states of a processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import pyspark_ckpt as ckpt
from tests.by_value import pickled_by_value
from tests.parity import importing
from tests.parity.engines import PROVIDER, ROCKSDB, configured
from tests.parity.importing import run
from tests.query.harness import Feed

pytestmark = pytest.mark.slow

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
OUTPUT = "k string, n long, words string"
LATER_MS = 4_000_000_000_000


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value() -> Iterator[None]:
    with pickled_by_value(importing):
        yield


def count(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n, words = state.get if state.exists else (0, "")
    values = sorted(v for frame in frames for v in frame["v"])
    n, words = n + len(values), " ".join([*words.split(), *map(str, values)])
    state.update((n, words))
    state.setTimeoutTimestamp(LATER_MS)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "words": [words]})


class Count(StatefulProcessor):
    """The same with states, and a timer in place of the timeout."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.words = handle.getListState("words", "word string")
        self.lengths = handle.getMapState("lengths", "word string", "length int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        values = sorted(row.v for row in rows)
        self.count.update(((self.count.get() or (0,))[0] + len(values),))
        for value in values:
            self.words.appendValue((str(value),))
        words = [word for (word,) in self.words.get()]
        assert list(self.handle.listTimers()) in ([], [LATER_MS]), key
        assert dict(self.lengths.iterator()) in ({}, {("1",): (1,), ("10",): (2,)}), key
        yield Row(k=key[0], n=self.count.get()[0], words=" ".join(words))

    def close(self) -> None: ...


def to_states(
    key: tuple[Any, ...], state: tuple[Any, ...] | None, timeout_ms: int | None
) -> ckpt.KeyState:
    assert state is not None
    n, words = state[0], state[1].split()
    lengths = {(word,): (len(word),) for word in words} if key == ("a",) else None
    states = {"count": (n,), "words": [(word,) for word in words], "lengths": lengths}
    return ckpt.KeyState(states, timers=[] if timeout_ms is None else [timeout_ms])


WRONG = {
    lambda key, state, timeout_ms: {"count": (1,)}: "returned dict: return a pyspark_ckpt.KeyState",
    lambda key, state, timeout_ms: ckpt.KeyState({"counts": (1,)}): "returned the states 'counts'",
    lambda key, state, timeout_ms: ckpt.KeyState({"count": 1}): "state 'count': the function retur",
}


@pytest.mark.soak
@pytest.mark.parametrize("provider", [HDFS, pytest.param(ROCKSDB, marks=pytest.mark.soak)])
def test_continued(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    feed = Feed(tmp_path / "in").add([("a", 1), ("b", 2)], [("a", 10), (None, 5)])

    def stream() -> DataFrame:
        times = F.timestamp_seconds("v").alias("ts")
        return feed.stream(spark).select("*", times).withWatermark("ts", "1 minute")

    def run_native(location: str = "native") -> list[Row]:
        timeout = GroupStateTimeout.EventTimeTimeout
        made = (
            stream()
            .groupBy("k")
            .applyInPandasWithState(count, OUTPUT, "n long, words string", "update", timeout)
        )
        with configured(spark, {PROVIDER: provider}):
            return run(made.writeStream, tmp_path / location)

    def imported(mapper: Any, time_mode: str | None = "EventTime") -> ckpt.results.Savepoint:
        return ckpt.location(str(tmp_path / "native")).import_checkpoint(
            str(tmp_path / "imported"),
            processor=Count(),
            uid="op",
            mapper=mapper,
            time_mode=time_mode,
            spark=spark,
        )

    earlier = run_native()
    with pytest.raises(ckpt.errors.PlanError, match="give a mapper"):
        imported(None)
    for mapper, message in WRONG.items():
        with pytest.raises(ckpt.errors.CkptError, match=message):
            imported(mapper)
    with pytest.raises(
        ckpt.errors.PlanError, match="returned timers, and with time_mode None they would"
    ):
        imported(to_states, time_mode=None)
    savepoint = imported(to_states)
    feed.add([("a", 3), ("b", 4), (None, 6), ("c", 7)])
    keyed = ckpt.key_by(stream(), "k")
    made = keyed.transformWithState(Count(), OUTPUT, "Update", "EventTime", uid="op")
    ours = run(ckpt.write_stream(made).restoreFrom(savepoint.path), tmp_path / "ours")
    assert ours == run_native()
    never_stopped = run_native("never_stopped")
    assert sorted(str(row[1:]) for row in never_stopped) == sorted(
        str(row[1:]) for row in [*earlier, *ours]
    )
    assert {row.k: row.words for row in ours} == {"a": "1 10 3", "b": "2 4", None: "5 6", "c": "7"}
