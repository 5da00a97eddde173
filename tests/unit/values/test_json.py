"""Columns that travel as JSON: written text can be read, and is what the JVM expects."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.lib import string_to_tzinfo
from pyspark.sql import types as T
from pyspark_ckpt.operator.values.json import JsonKey, JsonReader, json_writer

from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.plain import row_style
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.unit.operator.spark_values import TYPES, Typed, struct

ZONE = "America/Los_Angeles"


@given(TYPES, st.data())
def test_what_is_written_is_read(typed: Typed, data: st.DataObject) -> None:
    """The state's codec, shown as rows show values, is the reference."""
    kind, values = typed
    value = data.draw(st.none() | values)
    codec = TupleCodec(struct(kind), "state", style=row_style(string_to_tzinfo(ZONE)))
    read = JsonReader(kind, ZONE)(json_writer(kind)(value))
    assert repr(read) == repr(codec.decode(codec.encode((value,)))[0])


@given(TYPES, st.data())
def test_plain_values_are_written_as_the_values_that_they_are_of(
    typed: Typed, data: st.DataObject
) -> None:
    kind, values = typed
    value = data.draw(st.none() | values)
    codec = TupleCodec(struct(kind), "state")
    shown, plain = (each.decode(codec.encode((value,)))[0] for each in (codec, codec.plain))
    assert repr(json_writer(kind, of_plain=True)(plain)) == repr(json_writer(kind)(shown))


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (T.ArrayType(T.DoubleType()), '[1.0E10,"NaN","-Infinity",-0.0,null,4.9E-324]',
         "[10000000000.0, nan, -inf, -0.0, None, 5e-324]"),
        (T.ArrayType(T.BinaryType()), '["AP8=","",null]', r"[b'\x00\xff', b'', None]"),
        (T.DecimalType(38, 18), "0E-18", "Decimal('0E-18')"),
        (struct(T.DateType()), '{"c0":"0001-01-01"}', "{'f0': datetime.date(1, 1, 1)}"),
        *[(time(), '"12:34:56.1"', "datetime.time(12, 34, 56, 100000)") for time in TIME_OF_DAY],
        (T.TimestampNTZType(), '"2024-01-01 00:00:00.1"',
         "datetime.datetime(2024, 1, 1, 0, 0, 0, 100000)"),
        (T.MapType(T.DateType(), T.LongType()), '[{"c0":"2024-02-29","c1":null}]',
         "[(datetime.date(2024, 2, 29), None)]"),
        (T.DayTimeIntervalType(), "-86400.000001",
         "datetime.timedelta(days=-2, seconds=86399, microseconds=999999)"),
        (T.ArrayType(struct()), "[{},null]", "[{}, None]"),
        (T.NullType(), "null", "None"),
    ],
)  # fmt: skip
def test_sparks_text_is_read(kind: T.DataType, text: str, shown: str) -> None:
    reader = pickle.loads(pickle.dumps(JsonReader(kind, ZONE)))  # as it is shipped
    assert repr(reader(f'{{"c0":{text}}}')) == shown


def test_a_timestamp_is_shown_in_the_zone_of_the_session() -> None:
    """Also in the hour that comes twice, as a key too."""
    kind = T.ArrayType(T.TimestampType())
    key = JsonKey(T.StructField("k", kind), ZONE)
    for micros, shown in (
        (1_730_622_600_000_001, "2024-11-03T01:30:00.000001-07:00"),
        (1_730_626_200_000_001, "2024-11-03T01:30:00.000001-08:00"),
    ):
        text = f'{{"c0":[{micros}]}}'
        for (time,) in (JsonReader(kind, ZONE)(text), key.shown(key.canonical(text))):
            assert time.isoformat() == shown
            assert str(time.tzinfo) == ZONE


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (T.ArrayType(T.DoubleType()), "[0.0,1.0E-5]", "[-0.0,0.00001]"),
        (struct(T.FloatType()), '{"c0":2.0E-3}', '{"c0":0.0020000000949949026}'),
        (struct(T.DoubleType()), '{"c0":"NaN"}', '{ "c0" : "NaN" }'),
    ],
)
def test_a_key_does_not_depend_on_how_the_jvm_writes_numbers(
    kind: T.DataType, one: str, other: str
) -> None:
    key = JsonKey(T.StructField("k", kind), ZONE)
    assert key.canonical(f'{{"c0":{one}}}') == key.canonical(f'{{"c0":{other}}}')


@given(TYPES.filter(lambda typed: "variant" not in typed[0].simpleString()), st.data())
def test_a_key_is_shown_as_rows_show_it(typed: Typed, data: st.DataObject) -> None:
    kind, values = typed
    key = JsonKey(T.StructField("k", kind), ZONE)
    text: Any = json_writer(kind)(data.draw(st.none() | values))
    canonical = key.canonical(text)
    written_again = json_writer(kind)(key.shown(canonical))
    assert key.canonical(written_again) == canonical
