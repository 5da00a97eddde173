"""Values of any Python type in every kind of state: refused at the write, or read as they were."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import PlanError, StateUseError, StateValueError
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.testing import ProcessorHarness
from pyspark_ckpt.values.types import TIME_OF_DAY
from tests.unit.testing.handed import handed, taken
from tests.unit.testing.processors import Processor

UTC = datetime.timezone.utc
AHEAD = datetime.timezone(datetime.timedelta(hours=23, minutes=59))
NOON = datetime.datetime(2026, 1, 1, 12)  # noqa: DTZ001
DAY = datetime.datetime(2026, 1, 1)  # noqa: DTZ001
FIRST, LAST = datetime.datetime.min, datetime.datetime.max  # noqa: DTZ901


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    ONE = 1


class Word(str, enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    a: int = 1


VALUES: dict[str, Any] = {
    "true": True,
    "false": False,
    "one": 1,
    "byte min": -(2**7),
    "byte max + 1": 2**7,
    "short max": 2**15 - 1,
    "int min": -(2**31),
    "int min - 1": -(2**31) - 1,
    "2**53 + 1": 2**53 + 1,
    "long min": -(2**63),
    "long max": 2**63 - 1,
    "long max + 1": 2**63,
    "half": 0.5,
    "one as float": 1.0,
    "smallest float": 5e-324,
    "nan": math.nan,
    "-inf": -math.inf,
    "-0.0": -0.0,
    "decimal": Decimal("1.50"),
    "decimal max": Decimal("9" * 36 + ".99"),
    "decimal of 39 digits": Decimal("1" * 37 + ".00"),
    "decimal nan": Decimal("NaN"),
    "empty text": "",
    "text": "h\0\n\"äß😀",
    "long text": "ä" * 100_000,
    "surrogate": "\ud800",
    "bytes": b"\x00\xff",
    "no bytes": b"",
    "bytearray": bytearray(b"ab"),
    "memory": memoryview(b"abcd"),
    "every second byte": memoryview(b"abcd")[::2],
    "uuid": uuid.UUID(int=1),
    "enum": Colour.RED,
    "enum of integers": Size.ONE,
    "enum of texts": Word.RED,
    "date": datetime.date(2026, 1, 1),
    "date.min": datetime.date.min,
    "date.max": datetime.date.max,
    "midnight": DAY,
    "noon": NOON,
    "noon in utc": NOON.replace(tzinfo=UTC),
    "datetime.min": FIRST,
    "datetime.max": LAST,
    "datetime.min in utc": FIRST.replace(tzinfo=UTC),
    "datetime.max in utc": LAST.replace(tzinfo=UTC),
    "datetime.min ahead": FIRST.replace(tzinfo=AHEAD),
    "time": datetime.time(12, 30, 0, 1),
    "time.max": datetime.time.max,
    "time with a zone": datetime.time(12, tzinfo=UTC),
    "timedelta": datetime.timedelta(days=1, microseconds=-1),
    "longest interval": datetime.timedelta(microseconds=2**63 - 1),
    "timedelta.max": datetime.timedelta.max,
    "numpy integer": np.int64(7),
    "numpy unsigned": np.uint64(2**64 - 1),
    "numpy float": np.float64(0.5),
    "numpy float32": np.float32(0.5),
    "numpy bool": np.bool_(True),
    "numpy text": np.str_("a"),
    "numpy bytes": np.bytes_(b"a"),
    "numpy time": np.datetime64("2026-01-01T12:00:00.000001"),
    "numpy nanoseconds": np.datetime64("2026-01-01T12:00:00.000000001"),
    "numpy duration": np.timedelta64(7, "us"),
    "numpy scalar array": np.array(5),
    "NaT": pd.NaT,
    "numpy NaT": np.datetime64("NaT"),
    "NA": pd.NA,
    "Timestamp": pd.Timestamp(2026, 1, 1, 12),
    "Timestamp in utc": pd.Timestamp(2026, 1, 1, 12, tz="UTC"),
    "Timestamp with nanoseconds": pd.Timestamp("2026-01-01 12:00:00.000000001"),
    "Timestamp of year 30000": pd.Timestamp(np.datetime64("30000-01-01", "s")),
    "Timedelta": pd.Timedelta(3, "h"),
    "Timedelta with nanoseconds": pd.Timedelta(3, "ns"),
    "list": [1, None],
    "tuple": (1, None),
    "empty list": [],
    "array": np.array([1, 2, 3])[::2],
    "array of floats": np.array([0.5]),
    "texts": ["a", None],
    "uuids": [uuid.UUID(int=1)],
    "set": {1},
    "frozenset": frozenset({1}),
    "generator": (n for n in [1]),
    "range": range(2),
    "keys": {1: 1}.keys(),
    "series": pd.Series([1]),
    "dict": {"a": 1},
    "dict with null": {"a": None},
    "dict of bytes": {b"a": 1},
    "dict of uuid": {uuid.UUID(int=1): 1},
    "dict of null": {None: 1},
    "entries": [("a", 1)],
    "one key twice": [("a", 1), ("a", 2)],
    "two letters": ["ab"],
    "Row": Row(a=1),
    "Row of null": Row(a=None),
    "dataclass": Point(),
    "object": object(),
    "variant": T.VariantVal(b"\x0c\x07", b"\x01\x00\x00"),
}  # fmt: skip
FLOATS = {"half", "one as float", "smallest float", "nan", "-inf", "-0.0", "numpy float"}
INTEGERS = {
    "one", "byte min", "byte max + 1", "short max", "int min", "int min - 1", "2**53 + 1",
    "long min", "long max", "enum of integers", "numpy integer",
}  # fmt: skip
EXACT = {
    "one", "byte min", "byte max + 1", "short max", "int min", "int min - 1", "long min",
    "long max + 1", "enum of integers", "numpy integer",
}  # fmt: skip
LOCAL = {"midnight", "noon", "datetime.min", "datetime.max", "numpy time", "Timestamp"}
STRUCT = T.StructType([T.StructField("a", T.LongType())])
TAKEN: list[tuple[T.DataType, set[str]]] = [
    (T.BooleanType(), {"true", "false", "numpy bool"}),
    (T.ByteType(), {"one", "byte min", "enum of integers", "numpy integer"}),
    (T.IntegerType(), INTEGERS - {"int min - 1", "2**53 + 1", "long min", "long max"}),
    (T.LongType(), INTEGERS),
    (T.FloatType(), (FLOATS - {"smallest float"}) | (EXACT - {"int min - 1"}) | {"numpy float32"}),
    (T.DoubleType(), FLOATS | EXACT | {"numpy float32"}),
    (
        T.DecimalType(38, 2),
        {"decimal", "decimal max", *INTEGERS, "long max + 1", "numpy unsigned"},
    ),
    (T.StringType(), {"empty text", "text", "long text", "enum of texts", "numpy text"}),
    (
        T.BinaryType(),
        {"bytes", "no bytes", "bytearray", "memory", "every second byte", "numpy bytes"},
    ),
    (T.DateType(), {"date", "date.min", "date.max", "midnight", "datetime.min"}),
    (T.TimestampType(), LOCAL | {"noon in utc", "Timestamp in utc"}),
    (T.TimestampNTZType(), LOCAL),
    *[(kind(), {"time", "time.max"}) for kind in TIME_OF_DAY],
    (
        T.DayTimeIntervalType(),
        {"timedelta", "longest interval", "numpy duration", "Timedelta"},
    ),
    (
        T.YearMonthIntervalType(),
        INTEGERS - {"int min - 1", "2**53 + 1", "long min", "long max"},
    ),
    (T.VariantType(), {"variant"}),
    (T.NullType(), set()),
    (T.ArrayType(T.LongType()), {"list", "tuple", "empty list", "array"}),
    (T.ArrayType(T.DoubleType()), {"list", "tuple", "empty list", "array", "array of floats"}),
    (T.ArrayType(T.StringType()), {"texts", "empty list", "two letters"}),
    (T.MapType(T.StringType(), T.LongType()), {"dict", "dict with null", "entries", "empty list"}),
    (STRUCT, {"dict", "dict with null", "Row", "Row of null"}),
]
"""Types, and which of the values they take."""

FAR = {"datetime.min in utc", "datetime.max in utc", "datetime.min ahead"}
"""Instants that have a local time in some zones only."""

NARROWED = {(T.FloatType(), "smallest float")}
"""A float takes any fraction, and keeps what 32 bits can hold of it."""


class Last(ckpt.AggregateFunction):
    def create(self) -> Any:
        return (None,)

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def getResult(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return b


Write = Callable[[Any, Any], None]
KINDS: dict[str, tuple[Callable[[Any, T.StructType], Any], Write, Callable[[Any], Any]]] = {
    "value": (
        lambda handle, schema: handle.getValueState("s", schema),
        lambda state, value: state.update(value),
        lambda state: state.get(),
    ),
    "list": (
        lambda handle, schema: handle.getListState("s", schema),
        lambda state, value: state.put([value]),
        lambda state: next(iter(state.get())),
    ),
    "map": (
        lambda handle, schema: handle.getMapState("s", "k int", schema),
        lambda state, value: state.updateValue((1,), value),
        lambda state: state.getValue((1,)),
    ),
    "map key": (
        lambda handle, schema: handle.getMapState("s", schema, "n int"),
        lambda state, value: state.updateValue(value, (1,)),
        lambda state: next(state.keys()),
    ),
    "reducing": (
        lambda handle, schema: handle.getReducingState("s", schema, lambda _, b: b),
        lambda state, value: state.add(value),
        lambda state: state.get(),
    ),
    "aggregating": (
        lambda handle, schema: handle.getAggregatingState("s", schema, Last()),
        lambda state, value: state.add(value),
        lambda state: state.get(),
    ),
    "operator list": (
        lambda handle, schema: handle.getOperatorListState("s", schema),
        lambda state, value: state.put([value]),
        lambda state: next(iter(state.get())),
    ),
}
"""How a state of a kind is made, written and read."""


class Keep(Processor):
    """Write a value, or say why not; read it in the same epoch and in a later one."""

    def __init__(self, kind: str, data_type: T.DataType) -> None:
        self.make, self.write, self.read = KINDS[kind]
        self.schema = T.StructType([T.StructField("f", data_type)])

    def init(self, handle: Any) -> None:
        self.state = self.make(handle, self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            value = taken(row.number)
            if value is not READ:
                try:
                    self.write(self.state, value)
                except StateValueError as exc:
                    yield Row(name=key[0], refused=str(exc), found=None)
                    continue
            yield Row(name=key[0], refused=None, found=self.read(self.state))


READ = object()


def is_same(data_type: T.DataType, given: Any, found: Any) -> bool:
    """Whether what was read means what was written; the oracle knows no code of the library."""
    given = given.item() if isinstance(given, np.generic) else given
    if isinstance(data_type, T.TimestampType):
        if given.tzinfo is not None:
            given = given.astimezone(ZoneInfo(os.environ["TZ"])).replace(tzinfo=None)
        return bool(found == given)
    if isinstance(data_type, T.DateType) and isinstance(given, datetime.datetime):
        return bool(found == given.date() and type(found) is datetime.date)
    if isinstance(given, float) and math.isnan(given):
        return math.isnan(found)
    if isinstance(given, np.ndarray | tuple | list) and not isinstance(given, Row):
        return bool(found == (dict(given) if isinstance(found, dict) else list(given)))
    if isinstance(given, dict) and isinstance(found, Row):
        return found.asDict() == given
    if isinstance(given, T.VariantVal):
        return bool((found.value, found.metadata) == (given.value, given.metadata))
    return bool(found == given)


def written(kind: str, data_type: T.DataType, values: dict[str, Any]) -> dict[str, str | None]:
    """Return why each value was refused, ``None`` if it was not: then it is read as it was.

    It is read in the same epoch, in a later one, and after a restore.
    """
    harness = ProcessorHarness(Keep(kind, data_type))
    rows = {name: [Row(number=handed((value,)))] for name, value in values.items()}
    found = {row.name: row for row in harness.testMany(rows)}
    last = next((name for name in reversed(found) if found[name].refused is None), None)
    restored = ProcessorHarness.restored(Keep(kind, data_type), harness.snapshot())
    again = {name: [Row(number=handed(READ))] for name, row in found.items() if row.refused is None}
    if kind == "operator list":  # one list for all keys
        again = {name: rows for name, rows in again.items() if name == last}
    later = [row for each in (harness, restored) for row in each.testMany(again)]
    assert len(later) == 2 * len(again)
    for row in [*found.values(), *later]:
        if row.refused is None:
            assert is_same(data_type, values[row.name], row.found[0]), row
        else:
            assert "state 's'" in row.refused, row
            assert "field 'f'" in row.refused, row
    return {name: row.refused for name, row in found.items()}


def is_refused_in_output(data_type: T.DataType, value: Any) -> bool:
    """Whether output columns refuse a value, alone or in a struct."""
    inside = T.StructType([T.StructField("f", data_type)])
    ways = ((data_type, (value,)), (inside, ((value,),)))
    refused = {is_refused(T.StructType([T.StructField("f", kind)]), row) for kind, row in ways}
    assert len(refused) == 1
    return refused.pop()


def is_refused(schema: T.StructType, row: tuple[Any, ...]) -> bool:
    try:
        OutputRows(schema, "u").batch([row])
    except StateValueError:
        return True
    return False


@pytest.fixture(scope="module", autouse=True)
def _time_zone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def named(part: Any) -> str:
    return part.simpleString() if isinstance(part, T.DataType) else ""


@pytest.mark.parametrize(("data_type", "taken"), TAKEN, ids=named)
def test_every_value_is_refused_or_read_as_it_was(data_type: T.DataType, taken: set[str]) -> None:
    """The values that a type takes are the same in the value of a state and in output columns."""
    values = {name: value for name, value in VALUES.items() if (data_type, name) not in NARROWED}
    refused = written("value", data_type, values)
    assert {name for name, why in refused.items() if why is None} - FAR == taken
    for name, value in values.items():
        if name not in {*FAR, "one key twice"}:  # which Spark's policy for maps decides
            assert is_refused_in_output(data_type, value) == (refused[name] is not None), name


@pytest.mark.usefixtures("local_time_zone")
def test_every_time_is_refused_or_read_as_it_was_in_any_time_zone() -> None:
    refused = written("value", T.TimestampType(), VALUES)
    taken = next(names for kind, names in TAKEN if kind == T.TimestampType())
    assert {name for name, why in refused.items() if why is None} - FAR == taken


@pytest.mark.parametrize("kind", [*KINDS][1:])
@pytest.mark.parametrize(("data_type", "taken"), TAKEN, ids=named)
def test_every_kind_of_state_takes_the_same_values(
    kind: str, data_type: T.DataType, taken: set[str]
) -> None:
    if kind == "map key" and isinstance(data_type, T.VariantType):
        with pytest.raises(PlanError, match="variant"):
            ProcessorHarness(Keep(kind, data_type))
        return
    some = dict(list(VALUES.items())[::4])
    some |= {name: VALUES[name] for name in taken}
    some = {n: v for n, v in some.items() if n not in FAR and (data_type, n) not in NARROWED}
    refused = written(kind, data_type, some)
    assert {name for name, why in refused.items() if why is None} == taken


@pytest.mark.parametrize("name", sorted(FAR))
def test_an_instant_without_a_local_time_is_refused(name: str, local_time_zone: str) -> None:
    """In New York the first instant of UTC is in year 0, in Tokyo the last in year 10000."""
    refused = written("value", T.TimestampType(), {name: VALUES[name]})[name]
    has_none = {"America/New_York": {"datetime.min in utc", "datetime.min ahead"}}.get(
        local_time_zone, {"datetime.max in utc", "datetime.min ahead"}
    )
    assert (refused is not None) == (name in has_none)
    assert refused is None or "Python has no time for it in this worker's time zone" in refused


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_of_the_only_field_needs_no_tuple(kind: str) -> None:
    harness = ProcessorHarness(Keep(kind, T.StringType()))
    for key, value in enumerate(["1", "twelve", ("in a tuple",), ["in a list"]]):
        bare = value if isinstance(value, str) else value[0]
        for _ in range(2):  # a merging state then meets the value before
            assert harness.test(key, [Row(number=handed(value))])[0].found == (bare,)
    for refused in ({"f": "x"}, {"x"}, b"x", 1, None):
        assert harness.test(key, [Row(number=handed(refused))])[0].refused
    assert harness.test(key, [Row(number=handed(READ))])[0].found == ("in a list",)


class Asking(Processor):
    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self.ask = ask

    def init(self, handle: Any) -> None:
        self.state = self.ask(handle)


def test_a_bare_type_is_a_schema_of_one_field() -> None:
    class Bare(Processor):
        def init(self, handle: Any) -> None:
            self.state = handle.getMapState("s", T.StringType(), T.LongType())

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            self.state.updateValue("k", 1)
            yield Row(entries=list(self.state.iterator()))

    harness = ProcessorHarness(Bare())
    assert harness.test("ada", [Row(n=1)]) == [Row(entries=[(("k",), (1,))])]


@pytest.mark.parametrize(
    ("schema", "remedy"),
    [
        (T.StringType, r"give StringType\(\)"),
        (None, "give a StructType, or text"),
        (["n long"], "give a StructType, or text"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, remedy: str) -> None:
    for ask in (
        lambda handle: handle.getValueState("s", schema),
        lambda handle: handle.getMapState("s", schema, "n long"),
        lambda handle: handle.getMapState("s", "n long", schema),
    ):
        with pytest.raises(StateUseError, match=rf"(?s)schema of state 's'.*{remedy}"):
            ProcessorHarness(Asking(ask))


@pytest.mark.parametrize(
    "schema",
    [
        "m map<array<int>,int>",
        "m map<map<int,int>,int>",
        "m map<struct<a:struct<b:array<int>>>,int>",
        "m array<map<array<int>,int>>",
        "n int, m map<string,map<array<int>,int>>",
    ],
)
def test_a_map_with_keys_that_no_dict_has_is_refused_at_the_plan(schema: str) -> None:
    for ask in (
        lambda handle: handle.getValueState("s", schema),
        lambda handle: handle.getMapState("s", "k int", schema),
        lambda handle: handle.getMapState("s", schema, "n int"),
        lambda handle: handle.getBroadcastState("s", "k int", schema),
    ):
        with pytest.raises(PlanError, match=r"(?s)state 's' has map<.*no value fits.*array of"):
            ProcessorHarness(Asking(ask))
