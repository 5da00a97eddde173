"""Stored instants are the same in every time zone of the worker, and in its repeated hour."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.state.list import encode_chunk
from pyspark_ckpt.operator.state.migration import EntryRewrite
from pyspark_ckpt.values.arrow import arrow_type
from tests.unit.operator.subtask_epochs import KEYS, NUMBER, SubtaskEpochs

pytestmark = pytest.mark.usefixtures("local_time_zone")

encode = msgspec.msgpack.Encoder().encode


def in_utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc)


INSTANTS = [
    in_utc("2023-11-05 06:30:00.000001"),  # both are 01:30 or 01:45 in New York
    in_utc("2023-11-05 05:45:00"),
    in_utc("9999-12-31 23:59:59.999999"),
    in_utc("0001-01-01 00:00:00"),
    None,
]
ONE_INSTANT = T.StructType([T.StructField("at", T.TimestampType())])
SCHEMA = T.StructType([
    T.StructField("at", T.TimestampType()),
    T.StructField("day", T.DateType()),
    T.StructField("all", T.ArrayType(T.TimestampType())),
    T.StructField("by", T.MapType(T.TimestampType(), T.TimestampType())),
    T.StructField("both", ONE_INSTANT),
])  # fmt: skip
DAYS = [datetime.date.max, datetime.date.min, None, None, datetime.date(2023, 11, 5)]


def of_rows(*columns: list[Any], schema: T.StructType = SCHEMA) -> pa.Table:
    fields = zip(columns, schema.fields, strict=True)
    arrays = [pa.array(column, arrow_type(field.dataType)) for column, field in fields]
    return pa.table(arrays, names=schema.names)


WRITTEN = of_rows(
    INSTANTS,
    DAYS,
    [INSTANTS, None, [], [None], INSTANTS[:1]],
    [[(at, at) for at in INSTANTS[:4]], None, [], [(INSTANTS[0], None)], []],
    [{"at": at} for at in INSTANTS],
)


@pytest.mark.parametrize("ttl", [None, 10_000])
def test_tables_of_a_state_are_what_was_written(
    subtask_epochs: SubtaskEpochs, ttl: int | None
) -> None:
    subtask_epochs.set_time(1000)
    keys = pa.table({"key_position": range(len(KEYS))})
    read = WRITTEN
    for _ in range(3):
        state = subtask_epochs.begin().getValueState("v", SCHEMA, ttl)
        subtask_epochs.leave_key()
        state.updateMany(keys, read)
        read = state.getMany(keys)
        assert read.equals(WRITTEN)
        subtask_epochs.end()


def test_a_table_has_the_instants_of_an_earlier_schema(subtask_epochs: SubtaskEpochs) -> None:
    keys = pa.table({"key_position": range(len(KEYS))})
    state = subtask_epochs.begin().getValueState("v", ONE_INSTANT)
    subtask_epochs.leave_key()
    state.updateMany(keys, of_rows(INSTANTS, schema=ONE_INSTANT))
    subtask_epochs.end()
    wider = T.StructType([T.StructField("n", T.LongType()), *ONE_INSTANT.fields])
    state = subtask_epochs.begin().getValueState("v", wider)
    subtask_epochs.leave_key()
    assert state.getMany(keys).equals(of_rows([None] * 5, INSTANTS, schema=wider))
    subtask_epochs.drop()


def micros(at: datetime.datetime | None) -> int | None:
    since = in_utc("1970-01-01")
    return None if at is None else (at - since) // datetime.timedelta(microseconds=1)


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_rewrite_without_a_function_keeps_what_is_stored(kind: str) -> None:
    number, wide_number = T.StructField("n", T.IntegerType()), T.StructField("n", T.DoubleType())
    inner, wide_inner = (
        T.StructField("in", T.StructType([one, *SCHEMA.fields])) for one in (number, wide_number)
    )
    value = T.StructType([*SCHEMA.fields, inner])
    wider = T.StructType([wide_number, *SCHEMA.fields[1:], SCHEMA.fields[0], wide_inner])
    moments = [micros(at) for at in INSTANTS]
    plain = (moments[0], 5, moments, {moments[1]: moments[2]}, (moments[1],))
    key = ONE_INSTANT.json() if kind == "map" else None
    source, target = (
        StateDescriptor(name="s", kind=kind, value_schema=schema.json(), map_key_schema=key)
        for schema in (value, wider)
    )
    data, rest = encode((*plain, (1, *plain))), encode((moments[0],))
    wanted = encode((None, *plain[1:], plain[0], (1.0, *plain)))
    if kind == "list":
        data, wanted = encode_chunk([data, data]), encode_chunk([wanted, wanted])
    rewrite = EntryRewrite(source, target, None, "state 's'")
    found = rewrite(b"" if kind == "value" else rest, data)
    assert found == (b"" if kind == "value" else rest, wanted)


def test_what_a_users_function_returns_as_it_was_stays_as_it_is_stored() -> None:
    same = Migration(key=tuple, value=lambda row: (row[1], row[0], row[2]))
    value = T.StructType([*ONE_INSTANT.fields, *NUMBER.fields, SCHEMA["all"]])
    turned = T.StructType([*NUMBER.fields, *ONE_INSTANT.fields, SCHEMA["all"]])
    source, target = (
        StateDescriptor(
            name="s",
            kind="map",
            value_schema=schema.json(),
            map_key_schema=ONE_INSTANT.json(),
        )
        for schema in (value, turned)
    )
    rewrite = EntryRewrite(source, target, same, "state 's'")
    at, other = (micros(at) for at in INSTANTS[:2])
    for one in (at, other, at):
        found = rewrite(encode((one,)), encode((one, 1, [other, at])))
        assert found == (encode((one,)), encode((1, one, [other, at])))


def test_a_value_that_is_written_as_it_was_read_does_not_change(
    subtask_epochs: SubtaskEpochs,
) -> None:
    keys = pa.table({"key_position": range(2)})
    written = of_rows([INSTANTS[0], INSTANTS[1]], schema=ONE_INSTANT)
    state = subtask_epochs.begin().getValueState("v", ONE_INSTANT)
    state.updateMany(keys, written)
    for position in (0, 1, 0):
        subtask_epochs.to_key(position)
        state.update(state.get())
    frame = keys.to_pandas()
    state.updateMany(frame, state.getMany(frame))
    assert state.getMany(keys).equals(written)
    subtask_epochs.drop()
