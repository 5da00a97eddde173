"""Values of a state that has had several schemas."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.snapshot.columns import StateValues
from pyspark_ckpt.stored.binary_column import BinaryColumn

AT = T.StructType([T.StructField("at", T.TimestampType())])
WIDER = T.StructType([T.StructField("n", T.LongType()), *AT.fields])
VERSION_1 = b"\xcc\x01"
INSTANTS = [
    1699165800_000001,  # both are the same hour in New York
    1699163100_000000,
    253402300799_999999,  # in Tokyo the year is 10000
    -62135596800_000000,
]


@pytest.mark.usefixtures("local_time_zone")
def test_instants_of_an_earlier_schema_are_those_that_are_stored() -> None:
    state = StateDescriptor(
        name="s", kind="value", value_schema=WIDER.json(), earlier_schemas=(AT.json(),)
    )
    entries = [
        data
        for at in INSTANTS
        for data in (msgspec.msgpack.encode((at,)), VERSION_1 + msgspec.msgpack.encode((1, at)))
    ]
    values = StateValues(state, "state 's'")
    plain = values.plain(BinaryColumn.of(pa.array(entries, pa.binary())))
    assert plain == [row for at in INSTANTS for row in ((None, at), (1, at))]
