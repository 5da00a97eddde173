"""Every kind of state of every type reads back as what the processor saw."""

from __future__ import annotations

import datetime
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.snapshot.columns import python_rows
from pyspark_ckpt.values.nesting import holds
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.unit.operator.spark_values import TYPES, struct
from tests.unit.operator.subtask_epochs import IN_MEMORY
from tests.unit.snapshot.made_savepoint import TIME_MS, UID, Key, MadeSavepoint

NAMES = T.StructType().add("name", "string")
NUMBER = T.StructType().add("n", "long")
RATE = T.StructType().add("x", "double")
UTC = datetime.timezone.utc


@contextmanager
def made(keys: list[Key], schema: T.StructType = NAMES, parallelism: int = 2) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        savepoint = MadeSavepoint(Path(directory), schema, keys, parallelism)
        yield savepoint
        savepoint.close()


def seen(data_type: T.DataType, value: Any) -> Any:
    """Return a value of a processor in a form that can be compared."""
    if value is None:
        return None
    if isinstance(data_type, T.FloatType | T.DoubleType):
        # The rows are sorted by their text, and the key 0.0 is also -0.0.
        return "nan" if math.isnan(value) else float(value) + 0.0
    if isinstance(data_type, T.TimestampType):
        return data_type.toInternal(value)
    if isinstance(data_type, T.VariantType):
        return bytes(value.value), bytes(value.metadata)
    if isinstance(data_type, T.ArrayType):
        return [seen(data_type.elementType, item) for item in value]
    if isinstance(data_type, T.MapType):
        pairs = value.items() if isinstance(value, dict) else value
        return {seen(data_type.keyType, k): seen(data_type.valueType, v) for k, v in pairs}
    if isinstance(data_type, T.StructType):
        return [seen(f.dataType, v) for f, v in zip(data_type.fields, value, strict=True)]
    if isinstance(data_type, T.YearMonthIntervalType | T.DecimalType):
        return value if isinstance(value, Decimal) else int(value)
    return bytes(value) if isinstance(value, bytearray) else value


def read(data_type: T.DataType, value: Any) -> Any:
    """Return a value of a table in the same form."""
    if value is None:
        return None
    if isinstance(data_type, T.TimestampType):
        age = value - datetime.datetime(1970, 1, 1, tzinfo=UTC)
        return (age.days * 86_400 + age.seconds) * 1_000_000 + age.microseconds
    if isinstance(data_type, T.VariantType):
        return value["value"], value["metadata"]
    if isinstance(data_type, T.StructType):
        return [read(f.dataType, v) for f, v in zip(data_type.fields, value.values(), strict=True)]
    if isinstance(data_type, T.ArrayType):
        return [read(data_type.elementType, item) for item in value]
    if isinstance(data_type, T.MapType):
        return {read(data_type.keyType, k): read(data_type.valueType, v) for k, v in value}
    return seen(data_type, value)


def rows_of(
    view: ckpt.results.TableView, types: list[T.DataType], **options: Any
) -> list[list[Any]]:
    table = view.to_arrow(**options).read_all()
    assert len(table.schema) == len(types)
    columns = [column.to_pylist() for column in table.columns]
    return [
        [read(t, v) for t, v in zip(types, row, strict=True)] for row in zip(*columns, strict=True)
    ]


def each_seen(types: list[T.DataType], values: tuple[Any, ...]) -> list[Any]:
    return [seen(t, v) for t, v in zip(types, values, strict=True)]


KEY_TYPES = TYPES.filter(lambda one: not holds(one[0], (T.MapType, T.VariantType, *TIME_OF_DAY)))


@pytest.mark.slow
@given(st.data(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_all_kinds_and_types(data: st.DataObject, canonical: bool) -> None:
    key_type, key_values = data.draw(KEY_TYPES)
    map_key_type, map_keys = data.draw(KEY_TYPES)
    value_type, values = data.draw(TYPES)
    key_schema, map_key_schema, schema = map(struct, (key_type, map_key_type, value_type))
    one = st.tuples(st.none() | values)
    drawn = data.draw(st.lists(st.tuples(key_values), min_size=1, max_size=4, unique_by=repr))
    keys = list({repr(seen(key_type, key[0])): key for key in drawn}.values())
    content = {
        repr(key): (
            data.draw(one),
            data.draw(st.lists(one, max_size=3)),
            data.draw(st.lists(st.tuples(st.tuples(st.none() | map_keys), one), max_size=3)),
        )
        for key in keys
    }

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "value": handle.getValueState("value", schema),
            "list": handle.getListState("list", schema),
            "map": handle.getMapState("map", map_key_schema, schema),
        }

    def write(states: dict[str, Any], key: Key) -> None:
        value, items, entries = content[repr(key)]
        states["value"].update(value)
        states["list"].put(items[:1])
        states["list"].appendList(items[1:])
        for map_key, entry in entries:
            states["map"].updateValue(map_key, entry)

    found: dict[str, list[list[Any]]] = {"value": [], "list": [], "map": []}
    by_key: dict[str, Any] = {}

    def note(states: dict[str, Any], key: Key) -> None:
        shown = each_seen([key_type], key)
        of_key = {
            "value": [each_seen([value_type], states["value"].get())],
            "list": [
                [position, *each_seen([value_type], item)]
                for position, item in enumerate(states["list"].get())
            ],
            "map": [
                [*each_seen([map_key_type], k), *each_seen([value_type], v)]
                for k, v in states["map"].iterator()
            ],
        }
        by_key[repr(key)] = of_key
        for name, rows in of_key.items():
            found[name] += [[*shown, *row] for row in rows]

    with made(keys, key_schema) as savepoint:
        savepoint.epoch(init, write)
        path = savepoint.save("savepoint", canonical=canonical)
        savepoint.epoch(init, note)
        with ckpt.location(path).state() as snapshot:
            types = {
                "value": [key_type, value_type],
                "list": [key_type, T.LongType(), value_type],
                "map": [key_type, map_key_type, value_type],
            }
            for name, expected in found.items():
                view = snapshot.state(UID, name)
                assert sorted(rows_of(view, types[name]), key=repr) == sorted(expected, key=repr)
                for key in keys:
                    got = view.get(*key)
                    rows = [] if got is None else got if isinstance(got, list) else [got]
                    read_rows = [
                        [read(t, v) for t, v in zip(types[name][1:], row.values(), strict=True)]
                        for row in rows
                    ]
                    assert read_rows == by_key[repr(key)][name]


@pytest.mark.parametrize("canonical", [False, True])
def test_entries_that_expired_are_left_out(canonical: bool) -> None:
    keys = [(f"k{number}",) for number in range(20)]
    config = StateTtlConfig(1000)

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "value": handle.getValueState("value", NUMBER, config),
            "list": handle.getListState("list", NUMBER, config),
            "map": handle.getMapState("map", NUMBER, NUMBER, config),
        }

    def write(numbers: range) -> Any:
        def work(states: dict[str, Any], key: Key) -> None:
            if int(key[0][1:]) in numbers:
                states["value"].update((1,))
                states["list"].appendValue((savepoint.time_ms,))
                states["map"].updateValue((savepoint.time_ms,), (1,))

        return work

    with made(keys) as savepoint:
        savepoint.epoch(init, write(range(20)))
        savepoint.time_ms += 999
        savepoint.epoch(init, write(range(5)))
        before = savepoint.save("before", canonical=canonical)
        savepoint.time_ms += 1  # now the first entries expire
        after = savepoint.save("after", canonical=canonical)
        with ckpt.location(before).state() as snapshot:
            counts = {
                name: snapshot.state(UID, name).to_pandas() for name in ("value", "list", "map")
            }
            assert {name: len(frame) for name, frame in counts.items()} == {
                "value": 20,
                "list": 25,
                "map": 25,
            }
            times = set(counts["map"]["expires_at"].astype("int64"))
            assert times == {TIME_MS + 1000, TIME_MS + 1999}
        with ckpt.location(after).state() as snapshot:
            young = [f"k{number}" for number in range(5)]
            for name in ("value", "list", "map"):
                view = snapshot.state(UID, name)
                assert sorted(view.to_pandas()["name"]) == young
                assert len(view.to_pandas(include_expired=True)) == len(counts[name])
                assert view.get("k9") is None
                assert view.get("k9", include_expired=True) is not None
            assert [row["position"] for row in snapshot.state(UID, "list").get("k1")] == [0]


def test_schemas_that_changed_in_some_subtasks() -> None:
    """Entries of all schemas read as the newest one, also where a subtask has not seen it."""
    keys = [(f"k{number}",) for number in range(12)]
    wider = T.StructType().add("n", "long").add("s", "string")
    ids: set[int] = set()

    def init(schema: T.StructType, *first: str) -> Any:
        def of(handle: ProcessorHandle) -> dict[str, Any]:
            for name in first:
                handle.getValueState(name, NUMBER)
            return {
                "value": handle.getValueState("value", schema),
                "list": handle.getListState("list", schema),
            }

        return of

    def write(width: int, *chosen: str) -> Any:
        def work(states: dict[str, Any], key: Key) -> None:
            if not chosen or key[0] in chosen:
                row = (int(key[0][1:]), "new")[:width]
                states["value"].update(row)
                states["list"].appendValue(row)

        return work

    with made(keys) as savepoint:
        savepoint.epoch(init(NUMBER), write(1), subtasks=[0])
        savepoint.epoch(init(NUMBER, "before"), write(1), subtasks=[1])  # other ids
        some = savepoint.keys[1][0][0]
        savepoint.epoch(init(wider, "before"), write(2, some), subtasks=[1])
        paths = [
            savepoint.save(f"s{canonical}", canonical=canonical) for canonical in (True, False)
        ]
        for number in range(2):
            ids.add([state.name for state in savepoint.states(number)].index("value"))
        assert len(ids) == 2
        for path in paths:
            with ckpt.location(path).state() as snapshot:
                assert snapshot.state(UID, "value").schema.names == ["name", "n", "s"]
                rows = {
                    name: (n, None if pd.isna(s) else s)  # NaN from pandas 3 on
                    for name, n, s in snapshot.state(UID, "value")
                    .to_pandas()
                    .itertuples(index=False)
                }
                assert rows == {
                    key: (int(key[1:]), "new" if key == some else None) for (key,) in keys
                }
                items = snapshot.state(UID, "list").get(some)
                assert items == [
                    {"position": 0, "n": int(some[1:]), "s": None},
                    {"position": 1, "n": int(some[1:]), "s": "new"},
                ]


def test_operator_states_timers_and_raw_state() -> None:
    keys = [(f"k{number}",) for number in range(8)]

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "handle": handle,
            "dealt": handle.getOperatorListState("dealt", NUMBER),
            "rules": handle.getBroadcastState("rules", NAMES, NUMBER),
            "value": handle.getValueState("value", NUMBER),
        }

    def outside(states: dict[str, Any], subtask: int) -> None:
        states["dealt"].put([(10 * subtask + number,) for number in range(3)])
        for number in range(3):
            states["rules"].updateValue((f"r{number}",), (number,))

    def work(states: dict[str, Any], key: Key) -> None:
        for time_ms in (-5, TIME_MS + int(key[0][1:])):
            states["handle"].registerTimer(time_ms)

    with made(keys) as savepoint:
        savepoint.epoch(init, work, outside=outside)
        paths = [
            savepoint.save(f"s{canonical}", canonical=canonical) for canonical in (True, False)
        ]
        for path in paths:
            with ckpt.location(path).state() as snapshot:
                dealt = snapshot.state(UID, "dealt")
                assert dealt.schema.names == ["subtask", "position", "n"]
                assert dealt.to_pandas().to_numpy().tolist() == [
                    [subtask, number, 10 * subtask + number]
                    for subtask in range(2)
                    for number in range(3)
                ]
                rules = snapshot.state(UID, "rules").to_pandas()
                assert rules.to_numpy().tolist() == [["r0", 0], ["r1", 1], ["r2", 2]]
                timers = snapshot.timers(UID).to_arrow().read_all()
                found = sorted(
                    zip(
                        timers["name"].to_pylist(),
                        timers["fires_at"].cast("int64").to_pylist(),
                        strict=True,
                    )
                )
                assert found == sorted(
                    (key, time_ms) for (key,) in keys for time_ms in (-5, TIME_MS + int(key[1:]))
                )
                assert snapshot.state(UID, "value").to_pandas().empty
                with pytest.raises(ckpt.errors.StateUseError, match="belongs to no key"):
                    snapshot.state(UID, "rules").get("r0")
                with pytest.raises(
                    ckpt.errors.StateUseError, match="no state 'x': it has 'dealt', 'rules'"
                ):
                    snapshot.state(UID, "x")
                with pytest.raises(ckpt.errors.StateUseError, match="no operator 'x': it has 'op'"):
                    snapshot.state("x", "rules")
            with pytest.raises(ckpt.errors.StateUseError, match="is closed"):
                snapshot.state(UID, "value").to_pandas()


def test_names_that_stand_twice_and_other_readers() -> None:
    keys = [("a",), ("b",)]
    schema = T.StructType().add("Name", "string").add("position", "long")

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "list": handle.getListState("list", schema),
            "map": handle.getMapState("map", NAMES, schema),
        }

    def work(states: dict[str, Any], key: Key) -> None:
        states["list"].appendValue(("x", 7))
        states["map"].updateValue(key, ("y", 8))

    with made(keys, parallelism=1) as savepoint:
        savepoint.epoch(init, work)
        with ckpt.location(savepoint.save("s", canonical=True)).state() as snapshot:
            items, entries = snapshot.state(UID, "list"), snapshot.state(UID, "map")
            assert items.schema.names == ["name", "_position", "value_Name", "position"]
            assert entries.schema.names == ["name", "map_key_name", "value_Name", "position"]
            assert items.get("a") == [{"_position": 0, "value_Name": "x", "position": 7}]
            frame = items.to_polars()
            assert isinstance(frame, polars.DataFrame)
            assert sorted(frame["name"]) == ["a", "b"]
            stream = entries.to_arrow()  # DuckDB finds it by the name of the variable
            assert duckdb.sql("select sum(position) from stream").fetchall() == [(16,)]
            assert stream.schema == entries.schema


class Mean(ckpt.AggregateFunction):
    """The sum and the number of values; the result is their mean."""

    def create(self) -> tuple[Any, ...]:
        return (0, 0)

    def add(self, value: Any, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        return (accumulator[0] + value[0], accumulator[1] + 1)

    def getResult(self, accumulator: tuple[Any, ...]) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (a[0] + b[0], a[1] + b[1])


@pytest.mark.parametrize("canonical", [False, True])
def test_reducing_and_aggregating_state(canonical: bool) -> None:
    """Reducing state has the reduced value, aggregating state its accumulator."""
    keys: list[Key] = [(f"key {number}",) for number in range(8)]
    pair = T.StructType().add("total", "long").add("count", "long")

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "most": handle.getReducingState("most", NUMBER, max),
            "mean": handle.getAggregatingState("mean", pair, Mean()),
        }

    def write(states: dict[str, Any], key: Key) -> None:
        number = int(key[0].split()[1])
        for value in (number, 2 * number, 1):
            states["most"].add((value,))
            states["mean"].add((value,))

    with made(keys) as savepoint:
        savepoint.epoch(init, write)
        with ckpt.location(savepoint.save("savepoint", canonical=canonical)).state() as snapshot:
            kinds = snapshot.states().set_index("state")["kind"].to_dict()
            assert kinds == {"most": "reducing", "mean": "aggregating"}
            for place, (key,) in enumerate(keys):
                most = {"n": max(2 * place, 1)}
                mean = {"total": 3 * place + 1, "count": 3}
                assert snapshot.state(UID, "most").get(key) == most
                assert snapshot.state(UID, "mean").get(key) == mean
            for name in ("most", "mean"):
                table = snapshot.state(UID, name).to_arrow().read_all()
                for row in table.to_pylist():
                    assert row == {
                        "name": row["name"],
                        **snapshot.state(UID, name).get(row["name"]),
                    }
                assert table.num_rows == len(keys)


def test_times_that_python_lacks_and_numbers_that_are_none() -> None:
    """A time to live may be as good as endless, a timer never due, and a rule not a number."""
    keys = [("k0",), ("k1",)]
    endless_ms, never_ms = 10**15, 1 << 62

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "handle": handle,
            "rules": handle.getBroadcastState("rules", NAMES, RATE),
            "value": handle.getValueState("value", NUMBER, StateTtlConfig(endless_ms)),
        }

    def outside(states: dict[str, Any], subtask: int) -> None:
        states["rules"].updateValue(("a",), (math.nan,))
        states["rules"].updateValue(("b",), (None,))

    def work(states: dict[str, Any], key: Key) -> None:
        states["value"].update((7,))
        states["handle"].registerTimer(never_ms)

    with made(keys) as savepoint:
        savepoint.epoch(init, work, outside=outside)
        path = savepoint.save("s", canonical=True)
        with ckpt.location(path).state() as snapshot:
            found = snapshot.state(UID, "value").get("k0")
            assert found is not None
            assert found["n"] == 7
            assert found["expires_at"].year == 9999
            a, b = snapshot.state(UID, "rules").to_arrow().read_all().to_pylist()
            assert math.isnan(a["x"])
            assert b["x"] is None
            timers = python_rows(snapshot.timers(UID).to_arrow().read_all())
            assert {row["fires_at"].year for row in timers} == {9999}
            assert len(timers) == len(keys)
