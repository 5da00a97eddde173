"""Conformance of each type of the table, at its limits: in states, in keys, nested, in columns.

What is tested is made from the table. A row without values here fails, and so does a value of a
type that has no row.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import PlanError, StateValueError
from pyspark_ckpt.operator.rows.keys import KeyPlaces
from pyspark_ckpt.operator.schema.evolution import Verdict, compare, converter
from pyspark_ckpt.snapshot.columns import StoredKeys
from pyspark_ckpt.stored.binary_column import BinaryColumn
from pyspark_ckpt.testing import ProcessorHarness
from pyspark_ckpt.values.arrow import arrow_array, plain_values
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.encoded import Form, encoded_tuples, stored_columns
from pyspark_ckpt.values.types import LEAVES, Kind, is_key_in_python, kind_of, leaf_of
from tests.unit.operator.spark_values import LEAVES as DRAWN
from tests.unit.testing.handed import handed, taken
from tests.unit.testing.processors import Processor
from tests.unit.values.cases import (
    CASES,
    TYPED,
    every_type,
    in_utc,  # noqa: F401
    named,
    nestings_of,
    plain,
    row_of,
    schema_of,
)

pytestmark = pytest.mark.usefixtures("in_utc")
BACKENDS = ["heap", "rocksdb"]


def test_every_row_has_its_cases() -> None:
    rows = {row.spark for row in LEAVES}
    assert set(CASES) == rows
    assert all(values for typed in CASES.values() for _, values in typed)
    assert {type(data_type) for data_type, _ in DRAWN} == rows


STATES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "value": (
        lambda handle, schema: handle.getValueState("s", schema),
        lambda state, value: state.update(value),
        lambda state: state.get(),
    ),
    "list": (
        lambda handle, schema: handle.getListState("s", schema),
        lambda state, value: state.put([value, value]),
        lambda state: list(state.get())[1],
    ),
    "map value": (
        lambda handle, schema: handle.getMapState("s", "k int", schema),
        lambda state, value: state.updateValue((1,), value),
        lambda state: state.getValue((1,)),
    ),
    "map key": (
        lambda handle, schema: handle.getMapState("s", schema, "n int"),
        lambda state, value: state.updateValue(value, (1,)),
        lambda state: next(state.keys()) if state.containsKey(next(state.keys())) else None,
    ),
}


class Keep(Processor):
    def __init__(self, position: str, schema: T.StructType) -> None:
        self.make, self.write, self.read = STATES[position]
        self.schema = schema

    def init(self, handle: Any) -> None:
        self.state = self.make(handle, self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            given = taken(row.given)
            if given is not None:
                self.write(self.state, given)
            yield Row(place=key[0], found=self.read(self.state))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("position", STATES)
@every_type
def test_states(data_type: T.DataType, values: list[Any], position: str, backend: str) -> None:
    """A value is read as it was written, at once and in the other backend, in any nesting."""
    names, is_key = nestings_of(data_type), position == "map key"
    processor = Keep(position, schema_of(data_type, *names))
    if is_key and not leaf_of(data_type).is_key:
        with pytest.raises(PlanError, match=named(data_type)):
            ProcessorHarness(processor, backend=backend)
        return
    given = dict(enumerate(row_of(value, *names) for value in (*values, None)))
    harness = ProcessorHarness(processor, backend=backend)
    found = harness.testMany({place: [Row(given=handed(row))] for place, row in given.items()})
    other = BACKENDS[1 - BACKENDS.index(backend)]
    later = ProcessorHarness.restored(processor, harness.snapshot(), backend=other)
    found += later.testMany({place: [Row(given=handed(None))] for place in given})
    assert len(found) == 2 * len(given)
    for row in found:
        assert plain(row.found, is_key=is_key) == plain(given[row.place], is_key=is_key)


@every_type
def test_what_is_no_key_of_a_python_dict_is_refused(
    data_type: T.DataType, values: list[Any]
) -> None:
    schema = schema_of(data_type, "map key")
    if is_key_in_python(data_type):
        ProcessorHarness(Keep("value", schema))
    else:
        with pytest.raises(PlanError, match="a Python dict cannot have such keys"):
            ProcessorHarness(Keep("value", schema))


@pytest.mark.parametrize("nesting", ["bare", "array", "struct", "deep"])
@every_type
def test_keys(data_type: T.DataType, values: list[Any], nesting: str) -> None:
    """A key has one form however it is found, and the tables of states show it as it was."""
    schema = schema_of(data_type, nesting)
    if not leaf_of(data_type).is_key:
        with pytest.raises(PlanError, match="cannot be"):
            KeyPlaces(schema, 128)
        return
    codec = TupleCodec(schema, "key", is_key=True)
    places, keys = KeyPlaces(schema, 128), [row_of(value, nesting) for value in (*values, None)]
    stored = [places.place(key)[1] for key in keys]
    groups = [places.place(key)[0] for key in keys]
    assert all(0 <= group < 128 for group in groups)
    assert [places.group_of_stored(data) for data in stored] == groups
    in_plain = [codec.plain.decode(codec.encode(key)) for key in keys]
    (kind,) = (field.dataType for field in schema.fields)
    column = arrow_array(kind, [row[0] for row in in_plain])
    assert encoded_tuples([column], schema, Form.KEY).to_pylist() == stored
    table = StoredKeys(schema, "key")
    (shown,) = table.arrays(table.plain(BinaryColumn.of(pa.array(stored, pa.binary()))))
    assert shown.type == column.type
    assert plain(plain_values(kind, shown)) == plain([row[0] for row in in_plain])


@pytest.mark.parametrize("form", [Form.VALUE, Form.MAP_KEY])
@every_type
def test_columns(data_type: T.DataType, values: list[Any], form: Form) -> None:
    """Columns are the bytes of the codec, and are read from them."""
    is_key = form is Form.MAP_KEY
    if is_key and not leaf_of(data_type).is_key:
        return
    for nesting in nestings_of(data_type):
        schema = schema_of(data_type, nesting)
        codec = TupleCodec(schema, "s", is_key=is_key)
        stored = [codec.encode(row_of(value, nesting)) for value in (*values, None)]
        (kind,) = (field.dataType for field in schema.fields)
        column = arrow_array(kind, [codec.plain.decode(data)[0] for data in stored])
        assert encoded_tuples([column], schema, form).to_pylist() == stored
        if (found := stored_columns(stored, schema, b"")) is not None:
            assert found[0].type == column.type
            assert plain(found[0].to_pylist()) == plain(column.to_pylist())
        else:
            assert nesting != "bare" or leaf_of(data_type).plain in (Decimal, tuple, type(None))


@every_type
def test_widening(data_type: T.DataType, values: list[Any]) -> None:
    """A wider type has the same values; back, it is refused."""
    for widening in leaf_of(data_type).widens:
        wanted = T.DecimalType(38, 18)
        if kind_of(data_type) is not Kind.DECIMAL:
            ((wanted, _),) = CASES[widening.wanted]
        if not widening.fits(data_type, wanted):
            continue
        stored, newer = schema_of(data_type, "bare"), schema_of(wanted, "bare")
        assert compare(stored, newer).verdict is Verdict.EVOLVED
        assert compare(newer, stored).verdict is Verdict.INCOMPATIBLE
        convert = converter(stored, newer) or tuple
        codec = TupleCodec(newer, "s")
        for value in values:
            found = codec.decode(codec.encode(convert((value,))))[0]
            assert found == value or math.isnan(value)


REFUSED = object()


def read_back(codec: TupleCodec, value: Any) -> Any:
    try:
        return codec.decode(codec.encode((value,)))[0]
    except StateValueError:
        return REFUSED


@every_type
def test_values_of_other_types(data_type: T.DataType, values: list[Any]) -> None:
    """They are refused, or mean the same; a number is rounded to the digits that a type has."""
    codec = TupleCodec(schema_of(data_type, "bare"), "state 's'")
    for other in (value for _, others in TYPED for value in others):
        found = read_back(codec, other)
        is_number = kind_of(data_type) in (Kind.FRACTION, Kind.DECIMAL)
        is_day = isinstance(other, datetime.datetime) and found == other.date()
        assert found is REFUSED or is_number or is_day or plain(found) == plain(other)


@every_type
def test_limits_are_limits(data_type: T.DataType, values: list[Any]) -> None:
    """An integer, or plain integer, beyond the limits is refused when it is read, too."""
    row = leaf_of(data_type)
    if row.plain is not int:
        return
    codec = TupleCodec(schema_of(data_type, "bare"), "state 's'")
    for bound in (-(1 << (row.bits - 1)) - 1, 1 << (row.bits - 1)):
        if -(2**63) <= bound < 2**64:
            with pytest.raises(StateValueError, match="stored bytes do not fit"):
                codec.decode(msgspec.msgpack.encode((bound,)))
