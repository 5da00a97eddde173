"""Initial state: what the processor gets, and when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from tests.parity.engines import ENDS, Both

pytestmark = pytest.mark.slow

OUTPUT = "k string, what string, seen string"
INITIAL = [("a", 1, "x"), ("a", 2, "y"), ("a", 3, None), ("only", 4, "z"), (None, 5, "null")]
EPOCHS = [[("a", 10), ("b", 20), (None, 30)], [("only", 40), ("a", 50)], [("only", 60)]]


class Begun(StatefulProcessor):
    """Keep everything that it gets, and a timer for each key that has initial state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "v long")
        self.seen = handle.getListState("seen", "what string")
        self.words = handle.getMapState("words", "word string", "v long")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        kind = [type(key).__name__, type(initialState).__name__, initialState.__fields__]
        self.note("initial", [*kind, *initialState], initialState.v, timerValues)
        self.words.updateValue((initialState.word,), (initialState.v,))
        self.register(timerValues)

    def register(self, times: Any) -> None:
        if times.getCurrentProcessingTimeInMs() > 0:
            self.handle.registerTimer(times.getCurrentProcessingTimeInMs())
            self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 1)

    def note(self, what: str, found: list[Any], v: int, times: Any) -> None:
        known = times.getCurrentProcessingTimeInMs() > 0
        found = [*found, known, times.getCurrentWatermarkInMs()]
        self.sum.update(((self.sum.get() or (0,))[0] + int(v),))
        self.seen.appendValue((json.dumps([what, *found]),))

    def tell(self, key: Any, what: str) -> Row:
        words = sorted(map(str, self.words.iterator()))
        seen = [*sorted(item[0] for item in self.seen.get()), self.sum.get(), words]
        return Row(k=key[0], what=what, seen=json.dumps(seen))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.note("row", list(row), row.v, timerValues)
        yield self.tell(key, "rows")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield self.tell(key, "timer")

    def close(self) -> None:
        pass


class PandasBegun(Begun):
    """The same, for transformWithStateInPandas."""

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        frame = initialState.sort_values("v")
        kind = [type(key).__name__, list(frame.columns), len(frame), sorted(initialState.index)]
        dtypes = list(map(str, frame.dtypes))
        found = [*kind, *dtypes, *map(list, frame.astype(object).values.tolist())]
        self.note("initial", found, frame["v"].sum(), timerValues)
        for word, v in zip(frame["word"], frame["v"], strict=True):
            self.words.updateValue((word,), (int(v),))
        self.register(timerValues)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for k, v in zip(frame["k"], frame["v"], strict=True):
                self.note("row", [k, int(v)], v, timerValues)
        yield self.framed(key, "rows")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        yield self.framed(key, "timer")

    def framed(self, key: Any, what: str) -> pd.DataFrame:
        return pd.DataFrame([self.tell(key, what).asDict()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "time_mode", [pytest.param("None", marks=pytest.mark.soak), "ProcessingTime"]
)
@pytest.mark.parametrize("processor", [Begun, PandasBegun])
def test_initial_state(
    both: Callable[..., Both], spark: SparkSession, processor: type[Begun], time_mode: str
) -> None:
    """A key's initial state comes before its rows, once, also for keys that have no rows yet."""
    initial = spark.createDataFrame(INITIAL, "name string, v long, word string")
    program = both(
        "k string, v long",
        *EPOCHS,
        processor=processor,
        output=OUTPUT,
        time_mode=time_mode,
        pandas=processor is PandasBegun,
        initial=(initial, "name"),
        conf=ENDS,
    )
    # The initial state is made just before the time of epoch 0, so its second timer is due then.
    rows = program.same(but_for="timer")
    emitted = [(row.k, json.loads(row.seen)[-2]) for row in rows if row.what == "rows"]
    sums = [("a", [16]), ("b", [20]), (None, [35]), ("only", [44]), ("a", [66]), ("only", [104])]
    assert sorted(emitted, key=str) == sorted(sums, key=str)
    fired = sorted(str(row.k) for row in rows if row.what == "timer")
    # in epoch 0; in Spark one of them in the next epoch
    assert fired == ([] if time_mode == "None" else sorted(["a", "only", "None"] * 2))
