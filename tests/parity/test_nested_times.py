"""Times inside arrays, maps and structs of frames, where the worker's zone is not the session's."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql.streaming import StatefulProcessor

from tests.parity.engines import Both

pytestmark = pytest.mark.slow

SESSION_ZONE = "Asia/Tokyo"
WORKER_ZONE = "America/New_York"
NESTED = (
    "ts array<timestamp>, m map<timestamp,timestamp>, s struct<t:timestamp,n:timestamp_ntz>, "
    "d array<struct<t:timestamp>>, n array<timestamp_ntz>"
)
INPUT = f"k string, v int, t timestamp, {NESTED}"
NOON = dt.datetime(2024, 7, 1, 12, 0, 0, 1, tzinfo=dt.timezone.utc)
WALL = NOON.replace(tzinfo=None)
ROWS = [
    ("x", 0, NOON, [NOON, NOON], [(NOON, NOON)], {"t": NOON, "n": WALL}, [{"t": NOON}], [WALL]),
    ("x", 1, NOON, [], [], {"t": None, "n": None}, [{"t": None}], []),
    ("y", 2, NOON, None, None, None, None, None),
]


class InAnotherZone(StatefulProcessor):
    """Show the values that came in, and yield them, those that came back from state, and own."""

    OUTPUT = f"k string, what string, shown string, {NESTED}"
    COLUMNS = ("ts", "m", "s", "d", "n")

    def init(self, handle: Any) -> None:
        self.before = os.environ.get("TZ")
        self.move_to(WORKER_ZONE)
        self.kept = handle.getValueState("kept", "at timestamp")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for record in pd.concat(rows).sort_values("v").to_dict("records"):
            values = {name: record[name] for name in self.COLUMNS}
            yield self.frame(key, "as it came", values)
            naive = record["t"]
            kept = self.kept.get()
            self.kept.update((naive.to_pydatetime(),))
            if kept is not None:
                yield self.frame(key, "from state", self.of(kept[0]))
            yield self.frame(key, "of the column", self.of(naive))
            yield self.frame(key, "with a zone", self.of(NOON))
            yield self.frame(key, "nulls", {**self.of(naive), "ts": [naive, pd.NaT, None]})

    @staticmethod
    def of(time: Any) -> dict[str, Any]:
        wall = time.replace(tzinfo=None)
        return {
            "ts": [time, pd.Timestamp(time), None],
            "m": {time: time},
            "s": {"t": time, "n": wall},
            "d": [{"t": time}, {"t": None}],
            "n": np.array([wall, None], dtype=object),
        }

    @staticmethod
    def frame(key: Any, what: str, values: dict[str, Any]) -> pd.DataFrame:
        shown = repr(values) if what == "as it came" else ""
        return pd.DataFrame(
            {"k": key[0], "what": what, "shown": shown, **{n: [v] for n, v in values.items()}}
        )

    @staticmethod
    def move_to(zone: str | None) -> None:
        if zone is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = zone
        time.tzset()

    def close(self) -> None:
        self.move_to(self.before)


@pytest.mark.soak
def test_nested_times_are_in_the_zone_of_the_session(both: Callable[..., Both]) -> None:
    program = both(
        INPUT,
        ROWS,
        ROWS,
        processor=InAnotherZone,
        output=InAnotherZone.OUTPUT,
        pandas=True,
        conf={"spark.sql.session.timeZone": SESSION_ZONE},
    )
    rows = program.same()
    assert len(rows) == 2 * 4 * len(ROWS) + 4
