"""The harness's additions to PySpark's TwsTester, and where it behaves as a query."""

from __future__ import annotations

import datetime
import gc
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.testing import CrashStep, ProcessorHarness
from state_backends import BACKEND_TYPES
from tests.unit.testing.processors import (
    Alarm,
    BatchCount,
    BatchRules,
    Collect,
    Count,
    Echo,
    PandasCount,
    Processor,
    Rules,
)

ATOMIC = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3),
    st.binary(max_size=3), st.floats(allow_nan=False), st.dates(),
    st.datetimes(timezones=st.just(datetime.timezone.utc)),
    st.decimals(-(10**19), 10**19, places=18),
)  # fmt: skip


NO_TIMES = [5.5, "50", b"5", True, math.nan, 2**63, datetime.datetime(2026, 1, 1)]  # noqa: DTZ001


class TestKeys:
    @given(st.tuples(ATOMIC) | st.tuples(ATOMIC, ATOMIC))
    def test_a_key_comes_to_the_processor_as_it_is_given(self, key: tuple[Any, ...]) -> None:
        harness = ProcessorHarness(Echo(), timeMode="ProcessingTime", keyColumns=len(key))
        given = key if len(key) > 1 else key[0]
        assert harness.test(given, [Row(n=1)]) == [Row(what="rows", key=key)]
        assert harness.setProcessingTime(1) == [Row(what="timer", key=key)]
        assert harness.peek("n", given) == (1,)

    @pytest.mark.parametrize(
        "key",
        [
            "ada",
            None,
            1,
            ("ada",),
            ("ada", 1),
            datetime.date(2024, 1, 1),
            (None, datetime.date(2024, 1, 1)),
        ],
    )
    def test_any_value_is_a_whole_key(self, key: Any) -> None:
        harness = ProcessorHarness(Count())
        harness.test(key, [Row(n=1)])
        assert harness.test(key, [Row(n=1)]) == [Row(key=key, n=2)]

    @pytest.mark.parametrize("key", ["ada", ("ada",), ("ada", 1, 2)])
    def test_a_key_of_two_columns_is_a_tuple_of_two(self, key: Any) -> None:
        harness = ProcessorHarness(Count(), keyColumns=2)
        assert harness.test(("ada", 1), [Row(n=1)]) == [Row(key="ada", n=1)]
        with pytest.raises(ckpt.errors.PlanError, match="not a tuple of 2 values"):
            harness.test(key, [Row(n=1)])

    def test_equal_keys_are_one(self) -> None:
        harness = ProcessorHarness(Count())
        for a, b in [(0.0, -0.0), (float("nan"), float("nan")), (7, np.int64(7))]:
            harness.test(a, [Row(n=1)])
            assert harness.peek("count", b) == (1,)

    def test_a_key_has_the_value_that_a_column_has(self) -> None:
        at = datetime.datetime(2024, 2, 29, 12)  # noqa: DTZ001  # a local time
        conf = {"spark.sql.session.timeZone": "Asia/Tokyo"}
        for key, seen in [
            (at, at.astimezone(ZoneInfo("Asia/Tokyo"))),
            (Row(a=1), {"a": 1}),
            ([1, 2], [1, 2]),
            (np.datetime64("2024-02-29"), datetime.datetime(2024, 2, 29).astimezone()),
        ]:
            harness = ProcessorHarness(Count(), conf=conf)
            assert harness.test(key, [Row(n=1)]) == [Row(key=seen, n=1)]
            assert harness.peek("count", key) == (1,)

    @pytest.mark.parametrize("key", [{"a": 1}, object()])
    def test_what_cannot_be_a_key_is_refused(self, key: Any) -> None:
        with pytest.raises(ckpt.errors.PlanError, match=r"cannot be .*key|give values as to"):
            ProcessorHarness(Count()).test(key, [Row(n=1)])

    def test_keys_have_one_type(self) -> None:
        harness = ProcessorHarness(Count())
        harness.test(1, [Row(n=1)])
        with pytest.raises(
            ckpt.errors.StateValueError, match=r"key column 'key1': .*str is not an int"
        ):
            harness.test("ada", [Row(n=1)])


class TestManyKeys:
    def test_many_keys_are_one_epoch(self) -> None:
        harness = ProcessorHarness(Count())
        output = harness.testMany({"ada": [Row(n=1), Row(n=2)], "bob": [Row(n=3)], "eve": []})
        assert sorted(output) == [Row(key="ada", n=3), Row(key="bob", n=3), Row(key="eve", n=0)]
        assert harness.snapshot().handle.epoch == 0
        assert harness.peek("count", "eve") == (0,)

    def test_a_key_of_late_rows_only_is_not_called(self) -> None:
        harness = ProcessorHarness(
            Count(), timeMode="EventTime", eventTimeExtractor=lambda row: row.at
        )
        harness.setWatermark(5)
        assert harness.testMany({"ada": [Row(n=1, at=5)], "bob": []}) == [Row(key="bob", n=0)]

    def test_an_event_time_that_is_no_number_is_refused(self) -> None:
        harness = ProcessorHarness(
            Count(), timeMode="EventTime", eventTimeExtractor=lambda row: row.at
        )
        at = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
        with pytest.raises(HarnessUseError, match=r"returned a datetime: return milliseconds"):
            harness.test("ada", [Row(n=1, at=at)])
        assert harness.test("ada", [Row(n=1, at=7)]) == [Row(key="ada", n=1)]

    def test_a_key_in_two_forms_is_one(self) -> None:
        harness = ProcessorHarness(Count())
        nan, other = float("nan"), float("nan")
        (row,) = harness.testMany({nan: [Row(n=1)], other: [Row(n=2)]})
        assert row.n == 3

    def test_with_frames(self) -> None:
        harness = ProcessorHarness(PandasCount())
        frames = {"ada": pd.DataFrame({"n": [1, 2]}), "bob": pd.DataFrame({"n": [5]})}
        output = harness.testMany(frames)
        assert dict(zip(output["key"], output["n"], strict=True)) == {"ada": 3, "bob": 5}
        assert list(frames["ada"].columns) == ["n"]

    def test_rows_and_frames_do_not_mix(self) -> None:
        harness = ProcessorHarness(Count())
        with pytest.raises(ckpt.errors.PlanError, match="all keys lists of rows, or all frames"):
            harness.testMany({"ada": [Row(n=1)], "bob": pd.DataFrame({"n": [1]})})

    def test_frames_are_cut_as_in_a_query(self) -> None:
        harness = ProcessorHarness(_FrameSizes())
        output = harness.testInPandas("ada", pd.DataFrame({"n": range(25_000)}))
        assert output["rows"].tolist() == [10_000, 10_000, 5_000]
        assert output["first_index"].tolist() == [0, 0, 0]

    def test_no_keys_is_an_epoch_without_rows(self) -> None:
        harness = ProcessorHarness(Count())
        assert harness.testMany({}) == []
        assert harness.snapshot().handle.epoch == 0

    def test_key_groups_spread_keys(self) -> None:
        one, many = ProcessorHarness(_Order(), max_parallelism=1), ProcessorHarness(_Order())
        rows = {f"k{n:02}": [Row()] for n in range(30)}
        assert [row.key for row in one.testMany(rows)] == sorted(rows)
        in_groups = [row.key for row in many.testMany(rows)]
        assert sorted(in_groups) == sorted(rows)
        assert in_groups != sorted(rows)


class TestBatches:
    def test_a_batch_processor(self) -> None:
        harness = ProcessorHarness(BatchCount(), outputStructType="user string, day date, n long")
        day = datetime.date(2024, 2, 29)
        frame = pd.DataFrame({"n": [1, 2, 4], "user": ["ada", "bob", "ada"], "day": [day] * 3})
        harness.testInBatches(frame, "user", "day")
        output = harness.testInBatches(frame, "user", "day")
        assert dict(zip(output["user"], output["n"], strict=True)) == {"ada": 10, "bob": 4}
        assert harness.peek("count", ("ada", day)) == (10,)

    def test_late_rows_are_dropped(self) -> None:
        harness = ProcessorHarness(
            BatchCount(), timeMode="EventTime", eventTimeExtractor=lambda row: int(row["at"])
        )
        assert harness.setWatermark(5).empty
        frame = pd.DataFrame({"user": ["ada", "ada"], "n": [1, 2], "at": [5, 6]})
        assert harness.testInBatches(frame, "user")["n"].tolist() == [2]

    def test_what_a_batch_writes_ages_from_its_newest_row(self) -> None:
        processor = BatchCount(ckpt.StateTtlConfig(10, "event"))
        harness = ProcessorHarness(
            processor, timeMode="EventTime", eventTimeExtractor=lambda row: int(row["at"])
        )
        harness.testInBatches(pd.DataFrame({"user": ["ada"], "n": [1], "at": [100]}), "user")
        harness.setWatermark(109)
        frame = pd.DataFrame({"user": ["ada"], "n": [2], "at": [110]})
        assert harness.testInBatches(frame, "user")["n"].tolist() == [3]
        harness.setWatermark(120)
        frame = pd.DataFrame({"user": ["ada"], "n": [4], "at": [121]})
        assert harness.testInBatches(frame, "user")["n"].tolist() == [4]

    @pytest.mark.parametrize(("columns", "named"), [((), r"\[\]"), (("day",), "day")])
    def test_key_columns_must_be_there(self, columns: tuple[str, ...], named: str) -> None:
        harness = ProcessorHarness(BatchCount())
        with pytest.raises(ckpt.errors.PlanError, match=rf"{named}.*'user'"):
            harness.testInBatches(pd.DataFrame({"user": ["ada"], "n": [1]}), *columns)

    def test_each_kind_of_processor_has_its_calls(self) -> None:
        with pytest.raises(ckpt.errors.PlanError, match="tested by testInBatches"):
            ProcessorHarness(BatchCount()).test("ada", [Row(n=1)])
        with pytest.raises(ckpt.errors.PlanError, match="needs a BatchProcessor"):
            ProcessorHarness(Count()).testInBatches(pd.DataFrame({"user": ["ada"]}), "user")


class TestTime:
    def test_timers_fire_in_the_order_of_time(self) -> None:
        harness = ProcessorHarness(Alarm(), timeMode="ProcessingTime")
        harness.testMany({"ada": [Row(at=3), Row(at=1)], "bob": [Row(at=2), Row(at=9)]})
        fired = harness.setProcessingTime(5)
        assert [(row.key, row.at) for row in fired] == [("ada", 1), ("bob", 2), ("ada", 3)]
        assert harness.peekTimers("ada") == []
        assert harness.peekTimers("bob") == [9]

    def test_a_timer_in_the_past_fires_in_the_same_epoch(self) -> None:
        harness = ProcessorHarness(
            Alarm(), timeMode="EventTime", eventTimeExtractor=lambda row: 100
        )
        harness.setWatermark(50)
        output = harness.test("ada", [Row(at=50), Row(at=-1), Row(at=51)])
        assert [row.at for row in output if row.what == "fired"] == [-1, 50]

    def test_both_times_are_shown_where_there_is_a_watermark(self) -> None:
        harness = ProcessorHarness(
            Alarm(), timeMode="ProcessingTime", eventTimeExtractor=lambda row: 0
        )
        harness.setProcessingTime(7)
        harness.setWatermark(5)
        (row,) = harness.test("ada", [Row(at=8)])
        assert (row.processing, row.watermark) == (7, 5)

    def test_rows_without_event_time_are_not_late(self) -> None:
        harness = ProcessorHarness(
            Count(), timeMode="EventTime", eventTimeExtractor=lambda row: row.at
        )
        harness.setWatermark(10)
        assert harness.test("ada", [Row(n=1, at=None), Row(n=2, at=10)]) == [Row(key="ada", n=1)]

    def test_a_key_with_late_rows_only_is_not_called(self) -> None:
        harness = ProcessorHarness(Count(), timeMode="EventTime", eventTimeExtractor=lambda row: 0)
        assert harness.test("ada", [Row(n=1)]) == []
        assert harness.peek("count", "ada") is None

    @pytest.mark.parametrize("new_ms", [5, 4])
    def test_time_moves_forward(self, new_ms: int) -> None:
        harness = ProcessorHarness(
            Count(), timeMode="ProcessingTime", eventTimeExtractor=lambda row: 0
        )
        harness.setProcessingTime(5)
        harness.setWatermark(5)
        with pytest.raises(ckpt.errors.ClockError, match=f"processing time is 5 ms .* {new_ms} ms"):
            harness.setProcessingTime(new_ms)
        with pytest.raises(ckpt.errors.ClockError, match=f"watermark is 5 ms .* {new_ms} ms"):
            harness.setWatermark(new_ms)

    @pytest.mark.parametrize("wrong", [None, *NO_TIMES])
    def test_what_is_no_time_moves_no_clock(self, wrong: Any) -> None:
        harness = ProcessorHarness(
            Alarm(), timeMode="ProcessingTime", eventTimeExtractor=lambda row: row.of
        )
        with pytest.raises(ckpt.errors.HarnessUseError, match="processing time cannot become"):
            harness.setProcessingTime(wrong)
        with pytest.raises(ckpt.errors.HarnessUseError, match="watermark cannot become"):
            harness.setWatermark(wrong)
        (row,) = harness.test("ada", [Row(at=7, of=1)])
        assert (row.processing, row.watermark) == (0, 0)

    @pytest.mark.parametrize("wrong", NO_TIMES)
    def test_an_event_time_is_an_instant(self, wrong: Any) -> None:
        harness = ProcessorHarness(
            Alarm(), timeMode="EventTime", eventTimeExtractor=lambda row: row.of
        )
        with pytest.raises(ckpt.errors.HarnessUseError, match="eventTimeExtractor returned"):
            harness.test("ada", [Row(at=1, of=wrong)])
        assert harness.test("ada", [Row(at=7, of=None)]) != []

    def test_clocks_take_an_instant_in_any_form(self) -> None:
        harness = ProcessorHarness(
            Alarm(), timeMode="ProcessingTime", eventTimeExtractor=lambda row: row.of
        )
        minute = datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.timezone.utc)
        harness.setProcessingTime(minute)
        harness.setWatermark(np.datetime64("1970-01-01T00:00:59"))
        (row,) = harness.test("ada", [Row(at=70_000, of=np.int64(60_000))])
        assert (row.processing, row.watermark) == (60_000, 59_000)

    def test_a_timer_without_a_clock_is_pysparks_error(self) -> None:
        harness = ProcessorHarness(Echo())
        with pytest.raises(
            ckpt.errors.TimeModeError, match="registerTimer needs a clock"
        ) as raised:
            harness.test("ada", [Row(n=1)])
        assert isinstance(raised.value, PySparkValueError)
        assert isinstance(raised.value, PySparkRuntimeError)
        assert raised.value.getCondition() == "UNSUPPORTED_OPERATION"

    @pytest.mark.parametrize(
        ("mode", "move"),
        [
            ("None", "setProcessingTime"),
            ("None", "setWatermark"),
            ("ProcessingTime", "setWatermark"),
            ("EventTime", "setProcessingTime"),
        ],
    )
    def test_a_clock_that_the_operator_does_not_have(self, mode: str, move: str) -> None:
        event_time = (lambda row: 0) if mode == "EventTime" else None
        harness = ProcessorHarness(Count(), timeMode=mode, eventTimeExtractor=event_time)
        with pytest.raises(ckpt.errors.TimeModeError, match=f"UNSUPPORTED_OPERATION.*{move}"):
            getattr(harness, move)(5)

    def test_output_of_timers_is_of_the_kind_of_the_last_call(self) -> None:
        harness = ProcessorHarness(PandasCount(), timeMode="ProcessingTime")
        harness.testInPandas("ada", pd.DataFrame({"n": [1]}))
        assert isinstance(harness.setProcessingTime(1), pd.DataFrame)


class TestAsInAQuery:
    def test_attributes_do_not_outlive_an_epoch(self) -> None:
        processor = _Forgetful()
        harness = ProcessorHarness(processor)
        assert [harness.test("ada", [Row()])[0].calls for _ in range(2)] == [1, 1]
        assert processor.calls == 0

    def test_an_error_has_the_key_and_changes_nothing(self) -> None:
        harness = ProcessorHarness(Count())
        harness.test("ada", [Row(n=1)])
        with pytest.raises(
            ckpt.errors.ProcessorError, match=r"handleInputRows, key \('ada',\)"
        ) as raised:
            harness.test("ada", [Row(n=1), Row(n="x")])
        assert isinstance(raised.value.__cause__, TypeError)
        assert harness.peek("count", "ada") == (1,)
        assert re.search(r'File ".*processors.py", line \d+, in handleInputRows', str(raised.value))

    def test_an_output_that_does_not_fit_has_the_key_and_the_method(self) -> None:
        harness = ProcessorHarness(Count(), outputStructType="key string, n tinyint")
        rows = {key: [Row(n=1)] for key in "abcdefgh"}
        with pytest.raises(
            ckpt.errors.StateValueError, match=r"by handleInputRows, key .'e',.*\n"
        ) as no:
            harness.testMany({**rows, "e": [Row(n=1)] * 300})
        assert re.search(r'File ".*processors.py", line \d+, in handleInputRows', str(no.value))

    @pytest.mark.parametrize(
        "initial",
        [
            {"initialStateRow": [("a", Row(m=1))]},
            {"initialStatePandas": [("a", pd.DataFrame({"m": [1]}))]},
        ],
    )
    def test_an_error_in_initial_state(self, initial: dict[str, Any]) -> None:
        with pytest.raises(
            ckpt.errors.ProcessorError, match=r"key .'a',.: Echo raised \w*Attr.*\n.*File"
        ):
            ProcessorHarness(Echo(), **initial)

    def test_init_runs_when_the_harness_is_made(self) -> None:
        with pytest.raises(ckpt.errors.PlanError, match="asks for the state 'twice' twice"):
            ProcessorHarness(_Twice())

    def test_writes_beyond_the_memory_limit_are_spilled(self) -> None:
        harness = ProcessorHarness(Collect(), conf={"spark.ckpt.execution.memory-limit": "1mb"})
        harness.test("ada", [Row(n=n) for n in range(5_000)])
        assert len(harness.peekMapState("map", "ada")) == 5_000
        assert harness.peekListState("list", "ada") == [(n,) for n in range(5_000)]

    def test_the_directory_goes_with_the_harness(self) -> None:
        harness = ProcessorHarness(Count())
        harness.test("ada", [Row(n=1)])
        directory: Path = harness._subtask._local
        assert directory.is_dir()
        del harness
        gc.collect()
        assert not directory.parent.exists()


class TestBroadcast:
    @pytest.mark.parametrize("backend", BACKEND_TYPES)
    def test_broadcast_rows_reach_the_processor_and_its_state(self, backend: str) -> None:
        harness = ProcessorHarness(Rules(), timeMode="ProcessingTime", backend=backend)
        assert harness.test("ada", [Row()]) == [Row(key="ada", n=None, at=-1)]
        limits = [Row(key="ada", n=1), Row(key="bob", n=2), Row(key="ada", n=3)]
        assert harness.testBroadcast(limits) == [Row(**row.asDict(), at=0) for row in limits]
        assert harness.peek("limits") == {("ada",): (3,), ("bob",): (2,)}
        assert harness.test("ada", [Row()]) == [Row(key="ada", n=3, at=-1)]
        assert harness.setProcessingTime(5) == [Row(key="ada", n=None, at=5)]
        assert harness.testBroadcast([]) == []

    def test_due_timers_fire_after_broadcast_rows(self) -> None:
        harness = ProcessorHarness(Rules(), timeMode="ProcessingTime")
        harness.test("ada", [Row()])
        assert harness.setProcessingTime(9) == [Row(key="ada", n=None, at=5)]
        assert harness.testBroadcast([Row(key="x", n=1)]) == [
            Row(key="x", n=1, at=9), Row(key="ada", n=None, at=6),
        ]  # fmt: skip

    @pytest.mark.parametrize("step", [CrashStep.AFTER_FIRST_KEY, CrashStep.AFTER_SEGMENT])
    def test_a_crash_loses_broadcast_rows(self, step: CrashStep) -> None:
        harness = ProcessorHarness(Rules())
        harness.crashAt(step)
        with pytest.raises(ckpt.errors.CrashedError):
            harness.testBroadcast([Row(key="ada", n=1)])
        assert harness.peek("limits") == {}

    def test_frames(self) -> None:
        harness = ProcessorHarness(BatchRules())
        frame = pd.DataFrame({"key": ["a"], "n": [1]})
        pd.testing.assert_frame_equal(harness.testBroadcast(frame), frame)
        with pytest.raises(ckpt.errors.PlanError, match="gets frames"):
            harness.testBroadcast([Row(key="a", n=1)])

    def test_a_processor_must_take_them(self) -> None:
        with pytest.raises(
            ckpt.errors.PlanError, match="'harness': Count has no handleBroadcastRows"
        ):
            ProcessorHarness(Count()).testBroadcast([Row(n=1)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeMode": "Lunar"}, "timeMode is 'Lunar'"),
        ({"outputMode": "Never"}, "outputMode is 'Never'"),
        ({"uid": " "}, "uid is ' '"),
        ({"max_parallelism": 0}, "max_parallelism is 0"),
        ({"outputStructType": "n lnog"}, "'n lnog' cannot be parsed"),
        ({"initialStateRow": [], "initialStatePandas": []}, "not both"),
        ({"migrations": {"count": 1}}, "migration of state 'count'"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ckpt.errors.PlanError, match=message):
        ProcessorHarness(Count(), **arguments)


@pytest.mark.parametrize(
    ("migrations", "message"),
    [
        ({"total": ckpt.Migration(renamed_from="sum")}, "is for none that init asks for"),
        ({"count": ckpt.Migration(key=tuple)}, "has key=, but a value state has none"),
        ({"count": ckpt.Migration(renamed_from="count")}, "renames from 'count', which init asks"),
    ],
)
def test_migrations_are_checked_as_a_query_checks_them(
    migrations: dict[str, ckpt.Migration], message: str
) -> None:
    with pytest.raises(ckpt.errors.PlanError, match=message):
        ProcessorHarness(Count(), migrations=migrations)


def test_a_batch_processor_has_no_quarantine_as_in_a_query() -> None:
    with pytest.raises(
        ckpt.errors.PlanError, match="quarantines single keys, and handleInputBatch gets all"
    ):
        ProcessorHarness(BatchCount(), onError="quarantine")


def test_a_processor_and_a_backend_must_be_one() -> None:
    with pytest.raises(ckpt.errors.PlanError, match="int does not extend StatefulProcessor"):
        ProcessorHarness(1)  # type: ignore[arg-type]
    with pytest.raises(ckpt.errors.ConfigurationError, match="'paper'"):
        ProcessorHarness(Count(), backend="paper")


class _Order(Processor):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(key=key[0])


class _FrameSizes(Processor):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            yield pd.DataFrame({"rows": [len(frame)], "first_index": [frame.index[0]]})


class _Forgetful(Processor):
    calls = 0

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.calls += 1
        yield Row(calls=self.calls)


class _Twice(Processor):
    def init(self, handle: Any) -> None:
        handle.getValueState("twice", "n long")
        handle.getValueState("twice", "n long")
