"""States in the harness: looked into, set, aged, taken along in snapshots."""

from __future__ import annotations

import datetime
import gc
from typing import Any

import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import CrashStep, ProcessorHarness
from state_backends import BACKEND_TYPES
from tests.unit.testing.processors import (
    Aging,
    Count,
    Echo,
    Everything,
)


class TestTimeToLive:
    def test_in_processing_time(self) -> None:
        harness = ProcessorHarness(Aging(10), timeMode="ProcessingTime")
        harness.setProcessingTime(100)
        harness.test("ada", [Row(n=1)])
        harness.setProcessingTime(109)
        assert harness.peekValueState("seen", "ada") == (1,)
        harness.setProcessingTime(110)
        assert harness.peekValueState("seen", "ada") is None
        assert harness.test("ada", [Row(n=2)]) == [Row(before=None)]

    def test_in_event_time(self) -> None:
        ttl = ckpt.StateTtlConfig(10, time="event")
        harness = ProcessorHarness(Aging(ttl), eventTimeExtractor=lambda row: row.at)
        harness.test("ada", [Row(n=1, at=100), Row(n=2, at=90)])
        harness.setWatermark(109)
        assert harness.peek("seen", "ada") == (2,)
        harness.setWatermark(110)
        assert harness.peek("seen", "ada") is None

    def test_looking_does_not_make_an_entry_young(self) -> None:
        ttl = ckpt.StateTtlConfig(10, update="OnReadAndWrite")
        harness = ProcessorHarness(Aging(ttl), timeMode="ProcessingTime")
        harness.test("ada", [Row(n=1)])
        harness.setProcessingTime(9)
        assert harness.peek("seen", "ada") == (1,)
        harness.setProcessingTime(10)
        assert harness.peek("seen", "ada") is None

    def test_event_time_needs_an_extractor(self) -> None:
        with pytest.raises(ckpt.errors.PlanError, match="no watermark"):
            ProcessorHarness(Aging(ckpt.StateTtlConfig(10, time="event")))


class TestStates:
    @pytest.mark.parametrize("backend", BACKEND_TYPES)
    def test_every_kind_can_be_looked_into(self, backend: str) -> None:
        harness = ProcessorHarness(Everything(), timeMode="ProcessingTime", backend=backend)
        harness.test("ada", [Row(n=4), Row(n=7)])
        assert harness.peek("value", "ada") == (7,)
        assert harness.peek("list", "ada") == [(4,), (7,)]
        assert harness.peek("map", "ada") == {(1,): (7,)}
        assert harness.peek("sum", "ada") == (11,)
        assert harness.peek("mean", "ada") == 5.5
        assert harness.peek("log") == [("ada 4",), ("ada 7",)]
        assert harness.peek("rules") == {("limit",): (10,)}
        assert harness.peekTimers("ada") == [4, 7]

    def test_raw_state_goes_from_epoch_to_epoch(self) -> None:
        harness = ProcessorHarness(Everything(), timeMode="ProcessingTime")
        assert [harness.test("ada", [Row(n=9)])[0].epochs for _ in range(3)] == [0, 1, 2]

    def test_a_key_without_state(self) -> None:
        harness = ProcessorHarness(Everything(), timeMode="ProcessingTime")
        names = ("value", "list", "map", "sum", "mean")
        assert [harness.peek(name, "eve") for name in names] == [None, [], {}, None, None]

    def test_states_are_set_and_deleted(self) -> None:
        harness = ProcessorHarness(Everything(), timeMode="ProcessingTime")
        harness.updateValueState("value", "ada", (1,))
        harness.updateListState("list", "ada", iter([(2,), (3,)]))
        harness.updateMapState("map", "ada", {(4,): (5,)})
        harness.updateMapState("map", "ada", {(6,): (7,)})
        assert harness.peek("map", "ada") == {(6,): (7,)}
        for name, empty in (("value", None), ("list", []), ("map", {})):
            harness.deleteState(name, "ada")
            assert harness.peek(name, "ada") == empty

    def test_setting_a_state_fires_no_timer(self) -> None:
        harness = ProcessorHarness(
            Echo(), initialStateRow=[("ada", Row(n=5))], timeMode="ProcessingTime"
        )
        assert harness.peekTimers("ada") == [0]
        harness.updateValueState("n", "ada", (6,))
        assert harness.peekTimers("ada") == [0]
        assert harness.testMany({}) == [Row(what="timer", key=("ada",))]

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda h: h.peek("cuont", "ada"), r"no state 'cuont', only for \['count'\]"),
            (lambda h: h.peekListState("count", "ada"), "'count' is a ValueState and no ListState"),
            (lambda h: h.updateMapState("count", "ada", {}), "is a ValueState and no MapState"),
            (lambda h: h.deleteState("cuont", "ada"), "no state 'cuont'"),
        ],
    )
    def test_what_is_not_there_is_refused(self, call: Any, message: str) -> None:
        with pytest.raises(ckpt.errors.HarnessUseError, match=f"operator 'harness': .*{message}"):
            call(ProcessorHarness(Count()))

    def test_keyed_state_needs_a_key(self) -> None:
        with pytest.raises(ckpt.errors.StateError, match="outside a key"):
            ProcessorHarness(Count()).peek("count")

    def test_values_must_fit_their_schema(self) -> None:
        harness = ProcessorHarness(Count())
        with pytest.raises(
            ckpt.errors.StateValueError, match=r"state 'count': \('x',\) does not fit"
        ):
            harness.updateValueState("count", "ada", ("x",))
        assert harness.peek("count", "ada") is None


class TestSnapshots:
    @pytest.mark.slow
    @pytest.mark.parametrize("before", BACKEND_TYPES)
    @pytest.mark.parametrize("after", BACKEND_TYPES)
    def test_a_snapshot_outlives_its_harness(self, before: str, after: str) -> None:
        files = {"spark.ckpt.internal.execution.checkpointing.data-inline-threshold": "0b"}
        harness = ProcessorHarness(
            Everything(), timeMode="ProcessingTime", keyColumns=2, backend=before, conf=files
        )
        day = datetime.date(2024, 2, 29)
        harness.test((day, "x"), [Row(n=8), Row(n=50)])
        harness.setProcessingTime(20)
        snapshot = harness.snapshot()
        harness.test((day, "x"), [Row(n=1)])
        del harness
        gc.collect()
        again = ProcessorHarness.restored(Everything(), snapshot, backend=after)
        assert again.peek("sum", (day, "x")) == (58,)
        assert again.peekTimers((day, "x")) == [50]
        assert [row.key for row in again.setProcessingTime(50)] == [day]

    def test_going_back(self) -> None:
        harness = ProcessorHarness(Count(), timeMode="ProcessingTime")
        harness.test("ada", [Row(n=1)])
        snapshot = harness.snapshot()
        for _ in range(2):
            harness.setProcessingTime(5)
            assert harness.test("ada", [Row(n=1)]) == [Row(key="ada", n=2)]
            harness.restore(snapshot)

    def test_a_snapshot_of_nothing(self) -> None:
        snapshot = ProcessorHarness(Count()).snapshot()
        assert ProcessorHarness.restored(Count(), snapshot).test("a", [Row(n=1)]) == [
            Row(key="a", n=1)
        ]

    def test_another_operator_is_refused(self) -> None:
        harness = ProcessorHarness(Count(), uid="count")
        with pytest.raises(
            ckpt.errors.IncompatibleStateError, match="uid 'harness', the harness 'count'"
        ):
            harness.restore(ProcessorHarness(Count()).snapshot())

    def test_a_schema_that_evolves(self) -> None:
        harness = ProcessorHarness(Count())
        harness.test("ada", [Row(n=1)])
        wider = ProcessorHarness.restored(_Wider(), harness.snapshot())
        assert wider.peek("count", "ada") == (1, None)

    def test_a_schema_that_cannot(self) -> None:
        harness = ProcessorHarness(Count())
        harness.test("ada", [Row(n=1)])
        with pytest.raises(
            ckpt.errors.IncompatibleStateError, match="stored of 'count' does not fit"
        ):
            ProcessorHarness.restored(_Text(), harness.snapshot())
        changed = ProcessorHarness(_Text())
        with pytest.raises(ckpt.errors.IncompatibleStateError):
            changed.restore(harness.snapshot())
        assert changed.snapshot().handle.epoch == -1

    def test_a_migration(self) -> None:
        harness = ProcessorHarness(Count())
        harness.testMany({"ada": [Row(n=1)], "bob": [Row(n=2)]})
        text = ckpt.Migration(value=lambda row: (str(row.n),))
        migrated = ProcessorHarness.restored(
            _Text(), harness.snapshot(), migrations={"count": text}
        )
        assert migrated.peek("count", "ada") == ("1",)
        migrated.testMany({})
        migrated.loseLocalCopy()
        assert migrated.peek("count", "bob") == ("2",)

    @pytest.mark.parametrize("looks_first", [False, True])
    def test_a_migration_runs_once_per_entry(self, looks_first: bool) -> None:
        harness = ProcessorHarness(Count())
        harness.testMany({"ada": [Row(n=1)], "bob": [Row(n=2)]})
        migrated_from: list[int] = []

        def text(row: Row) -> tuple[str]:
            migrated_from.append(row.n)
            return (str(row.n),)

        migrated = ProcessorHarness.restored(
            _Text(), harness.snapshot(), migrations={"count": ckpt.Migration(value=text)}
        )
        assert migrated_from == []  # as at the start of a query
        if looks_first:
            assert migrated.peek("count", "ada") == ("1",)
            assert migrated.peek("count", "bob") == ("2",)
        migrated.testMany({})
        migrated.testMany({})
        assert migrated.peek("count", "bob") == ("2",)
        assert sorted(migrated_from) == [1, 2]

    def test_a_migration_of_an_epoch_that_crashed_runs_again(self) -> None:
        harness = ProcessorHarness(Count())
        harness.test("ada", [Row(n=1)])
        text = ckpt.Migration(value=lambda row: (str(row.n),))
        migrated = ProcessorHarness.restored(
            _Text(), harness.snapshot(), migrations={"count": text}
        )
        migrated.crashAt(CrashStep.AFTER_SEGMENT)
        with pytest.raises(ckpt.errors.CrashedError):
            migrated.testMany({})
        migrated.testMany({})
        assert migrated.peek("count", "ada") == ("1",)

    def test_a_state_to_rename_that_is_not_stored_is_refused(self) -> None:
        harness = ProcessorHarness(Count())
        harness.test("ada", [Row(n=1)])
        migrations = {"text": ckpt.Migration(renamed_from="total")}
        with pytest.raises(ckpt.errors.IncompatibleStateError, match="no state 'total' is stored"):
            ProcessorHarness.restored(_Renamed(), harness.snapshot(), migrations=migrations)


def test_raw_state_can_be_looked_at() -> None:
    harness = ProcessorHarness(Everything())
    assert harness.peekRawState() is None
    for epoch in (b"1", b"2"):
        harness.test("ada", [])
        assert harness.peekRawState() == epoch


class _Wider(Count):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, since date")


class _Renamed(Count):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("text", "n bigint")


class _Text(Count):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n string")
