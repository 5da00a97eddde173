"""A test written for PySpark's TwsTester gives the same results with ProcessorHarness."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from pyspark_ckpt.testing import ProcessorHarness
from state_backends import BACKEND_TYPES
from tests.unit.testing.processors import Alarm, Collect, Count, PandasCount

Scenario = Callable[[Any], Any]

KEYS = st.sampled_from(["ada", "bob", None])
NUMBERS = st.lists(st.integers(-3, 3), min_size=1, max_size=4)
AT = st.lists(st.integers(51, 99), min_size=1, max_size=3)


def rows(numbers: list[int]) -> list[Row]:
    return [Row(n=n) for n in numbers]


def at_row(row: Row) -> int:
    return row.event_time


class TestBothTesters:
    """Each scenario is a test body; its results must not depend on the class."""

    def both(self, scenario: Scenario, processor: Any, backend: str = "heap", **named: Any) -> Any:
        ours = scenario(ProcessorHarness(processor, backend=backend, **named))
        assert ours == scenario(TwsTester(processor, **named))
        return ours

    @pytest.mark.parametrize("backend", BACKEND_TYPES)
    def test_value_state_and_initial_state(self, backend: str) -> None:
        def scenario(tester: Any) -> Any:
            return [
                tester.test("ada", rows([1, 2])),
                tester.test("bob", rows([5])),
                tester.peekValueState("count", "ada"),
                tester.peekValueState("count", "eve"),
                tester.updateValueState("count", "ada", (10,)),
                tester.test("ada", rows([1])),
                tester.deleteState("count", "ada"),
                tester.peekValueState("count", "ada"),
                tester.test("ada", rows([1])),
            ]

        initial = [("ada", Row(n=4)), ("ada", Row(n=1))]
        seen = self.both(scenario, Count(), backend, initialStateRow=initial)
        assert seen[0] == [Row(key="ada", n=8)]
        assert seen[-1] == [Row(key="ada", n=1)]

    @pytest.mark.parametrize("backend", BACKEND_TYPES)
    def test_pandas(self, backend: str) -> None:
        def scenario(tester: Any) -> Any:
            return [
                tester.testInPandas("ada", pd.DataFrame({"n": [1, 2]})).to_dict("list"),
                tester.testInPandas("bob", pd.DataFrame({"n": [3]})).to_dict("list"),
                tester.peekValueState("count", "ada"),
            ]

        seen = self.both(
            scenario,
            PandasCount(),
            backend,
            initialStatePandas=[("ada", pd.DataFrame({"n": [7, 1]}))],
        )
        assert seen[0] == {"key": ["ada"], "n": [11]}

    @pytest.mark.slow
    @given(st.lists(st.tuples(KEYS, NUMBERS), max_size=8))
    def test_lists_and_maps(self, calls: list[tuple[Any, list[int]]]) -> None:
        def scenario(tester: Any) -> Any:
            tester.updateListState("list", "bob", [(8,), (9,)])
            tester.updateMapState("map", "bob", {(8,): (1, "x"), (9,): (2, None)})
            seen = []
            for key, numbers in calls:
                seen.append(tester.test(key, rows(numbers)))
                seen.append(tester.peekListState("list", key))
                seen.append(tester.peekMapState("map", key))
            return seen

        self.both(scenario, Collect())

    @given(st.lists(st.tuples(KEYS, AT), max_size=4), st.lists(st.integers(1, 30), max_size=4))
    @pytest.mark.parametrize("mode", ["ProcessingTime", "EventTime"])
    def test_timers(self, mode: str, calls: list[tuple[Any, list[int]]], moves: list[int]) -> None:
        """All timers are set before the first is due; the order across keys is not compared."""

        def scenario(tester: Any) -> Any:
            seen = []
            for key, times in calls:
                seen += tester.test(key, [Row(at=at, event_time=1_000) for at in times])
            now = 0
            for move in moves:
                now += move
                set_time = tester.setWatermark if mode == "EventTime" else tester.setProcessingTime
                seen += sorted(set_time(now), key=lambda row: (row.at, str(row.key)))
                seen += [tester.peekValueState("fired", key) for key in ("ada", "bob", None)]
            return seen

        self.both(
            scenario,
            _AlarmAsTheTesterShowsIt(),
            timeMode=mode,
            eventTimeExtractor=at_row if mode == "EventTime" else None,
        )

    @pytest.mark.slow
    @given(st.lists(st.integers(0, 40), min_size=1), st.integers(1, 40))
    def test_late_rows_are_dropped(self, times: list[int], watermark: int) -> None:
        times = [*times, watermark + 1]  # a key without rows in time is not called by us

        def scenario(tester: Any) -> Any:
            tester.setWatermark(watermark)
            return tester.test("ada", [Row(n=1, event_time=time) for time in times])

        (row,) = self.both(scenario, Count(), timeMode="EventTime", eventTimeExtractor=at_row)
        assert row.n == sum(time > watermark for time in times)

    def test_late_rows_are_dropped_in_pandas(self) -> None:
        def scenario(tester: Any) -> Any:
            tester.setWatermark(10)
            frame = pd.DataFrame({"n": [1, 2, 4], "event_time": [11, 10, 12]})
            return tester.testInPandas("ada", frame).to_dict("list")

        seen = self.both(scenario, PandasCount(), timeMode="EventTime", eventTimeExtractor=at_row)
        assert seen == {"key": ["ada"], "n": [5]}


class _AlarmAsTheTesterShowsIt(Alarm):
    """A processor without the output in which only PySpark's tester differs.

    Left out are the key's timers while one fires, and the watermark of a stream without one.
    """

    def row(self, what: str, key: Any, times: Any, at: int) -> Row:
        row = super().row(what, key, times, at).asDict()
        if what == "fired":
            del row["timers"]
        if times.getCurrentWatermarkInMs() <= 0:
            del row["watermark"]
        return Row(**row)


@pytest.mark.parametrize(
    "call",
    [
        lambda make: make(Alarm(), timeMode="EventTime"),
        lambda make: make(Alarm()).setWatermark(1),
        lambda make: make(Alarm(), timeMode="ProcessingTime").setWatermark(1),
    ],
    ids=["no extractor", "no time mode", "another time mode"],
)
@pytest.mark.parametrize("tester", [TwsTester, ProcessorHarness])
def test_what_the_tester_refuses_we_refuse_as_a_value_error(tester: Any, call: Any) -> None:
    with pytest.raises(ValueError, match=r"EventTime|watermark"):
        call(tester)


def test_every_method_of_the_tester_is_there_with_its_parameters() -> None:
    public = {name for name in vars(TwsTester) if not name.startswith("_")} | {"__init__"}
    for name in public:
        theirs = list(inspect.signature(getattr(TwsTester, name)).parameters)
        ours = list(inspect.signature(getattr(ProcessorHarness, name)).parameters)
        assert ours[: len(theirs)] == theirs, name
