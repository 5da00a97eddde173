"""A stopped query of Spark is imported and continues here as it would have there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming import StatefulProcessor

from tests.parity import importing, operations, timed
from tests.parity.importing import ENCODING, Continued
from tests.parity.operations import Operations, look, random_scripts, script
from tests.parity.timed import PandasTimers, Timers, at
from tests.query.place import RemotePath, s3a

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
FILL = [("value.update", 1, "v"), ("items.put", 1, "p"), ("items.appendValue", 2, "q")]
FILL += [("map.updateValue", 1, "m"), ("map.updateValue", 2, "n")]

Continue = Callable[..., Continued]


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value() -> Iterator[None]:
    from tests.by_value import pickled_by_value

    with pickled_by_value(importing, operations, timed):
        yield


@pytest.fixture
def continued(spark: SparkSession, tmp_path: Path) -> Continue:
    def make(ddl: str, **program: Any) -> Continued:
        return Continued(spark, tmp_path, ddl, **program)

    return make


class Ageing(Operations):
    """The list never expires, the map's entries are expired in the next epoch."""

    def ttl_ms(self, state: str) -> int | None:
        return {"value": HOUR_MS, "items": None, "map": 1}[state]


class AgeingLists(Operations):
    def ttl_ms(self, state: str) -> int | None:
        return {"value": 1, "items": HOUR_MS, "map": HOUR_MS}[state]


SOAK = pytest.mark.soak


@pytest.mark.soak
@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("processor", "encoding"),
    [
        (Ageing, "unsaferow"),
        (AgeingLists, "avro"),
        pytest.param(Operations, "unsaferow", marks=SOAK),
        pytest.param(Operations, "avro", marks=SOAK),
        pytest.param(Ageing, "avro", marks=SOAK),
        pytest.param(AgeingLists, "unsaferow", marks=SOAK),
    ],
)
def test_all_states(continued: Continue, processor: type[Operations], encoding: str) -> None:
    """Values, lists and maps continue, with and without a time to live."""
    mode = "None" if processor is Operations else "ProcessingTime"
    program = continued(
        operations.INPUT,
        processor=processor,
        output=operations.OUTPUT,
        time_mode=mode,
        conf={ENCODING: encoding},
    )
    seed = 7
    before = [script("a", *FILL) + script(None, *FILL) + random_scripts(seed, "xyz", 12)]
    before.append(script("a", ("items.appendValue", 3, "r"), ("map.updateValue", 3, "o")))
    after = [look("a") + look(None) + look("x") + look("y") + look("z") + look("new")]
    after.append(random_scripts(seed + 1, "axyz", 10))
    rows = program.same(before, after)
    found = {(row.k, row.op): row.result for row in rows if row.epoch == 2}
    assert found["a", "items.get"] == ('[[1, "p"], [0, "put"], [2, "q"], [3, "r"]]')
    is_expired = {"value": processor is AgeingLists, "map": processor is Ageing}
    for state, expired in is_expired.items():
        assert found["a", f"{state}.exists"] == ("false" if expired else "true")


EVENTS: list[list[tuple[Any, ...]]] = [
    [
        ("a", 0, at(0), "register two 2000; register ten 10000; register twenty 20000"),
        ("b", 0, at(0), "register edge 10000; register far 3000000"),
        (None, 0, at(0), "register null 6000"),
        ("z", 0, at(5), "register six 6000"),
    ],
    [("z", 1, at(5.5), "")],
]
LATER: list[list[tuple[Any, ...]]] = [
    [("late", 0, at(4), "register late 1"), ("a", 1, at(6), "delete twenty 20000")],
    [("z", 2, at(10), ""), ("y", 0, at(10), "")],
    [("z", 3, at(21), "")],
    [("z", 4, at(22), "")],
]


@pytest.mark.soak
@pytest.mark.parametrize(("processor", "pandas"), [(Timers, False), (PandasTimers, True)])
def test_event_time_timers_and_watermark(
    continued: Continue,
    processor: type[Timers],
    pandas: bool,
) -> None:
    """Timers fire in the same epochs, and the same rows are late."""
    rows = continued(
        timed.INPUT,
        processor=processor,
        output=timed.OUTPUT,
        time_mode="EventTime",
        pandas=pandas,
        watermark="ts",
    ).same(EVENTS, LATER)
    fired = {row.what for row in rows if row.what.startswith("timer")}
    assert fired == {f"timer {name}" for name in ("null", "six", "ten", "edge")}
    assert "late" not in {row.k for row in rows}
    assert {row.timers for row in rows if row.what == "timer edge"} == {"edge far"}


class WallTimers(Timers):
    """Timers that are due in the next epoch, or not before the test ends."""

    EVENT_TIME = False


@pytest.mark.soak
def test_processing_time_timers(continued: Continue) -> None:
    """A due timer fires in the first epoch here, a later timer stays."""
    rows = continued(
        timed.INPUT,
        processor=WallTimers,
        output=timed.OUTPUT,
        time_mode="ProcessingTime",
    ).same(
        [
            [
                ("a", 0, at(0), "register due 1; register far 90000000"),
                ("b", 0, at(0), ""),
                # Beyond the last timestamp of Spark.
                ("c", 0, at(0), "register ever 9000000000000000000"),
            ]
        ],
        [[("z", 0, at(0), "")], [("a", 1, at(0), ""), ("c", 1, at(0), "")]],
    )
    left = {(row.k, row.what): row.timers for row in rows}
    assert left["a", "timer due"] == "due far"
    assert left["a", "row 1"] == "far"
    assert left["c", "row 1"] == "ever"


class Composite(StatefulProcessor):
    """Sessions per user and place: a map of open sessions, and the list of closed ones."""

    def init(self, handle: Any) -> None:
        self.open = handle.getMapState("open", "day date, zone string", TYPES)
        self.closed = handle.getListState("closed", "visits array<string>, at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda r: r.n):
            map_key = (row.day, "UTC")
            value = self.open.getValue(map_key) if self.open.containsKey(map_key) else None
            visits = [*(value[0] if value else []), row.n]
            self.open.updateValue(map_key, (visits, row.amount, {"last": row.n}))
            if len(visits) == 2:
                self.closed.appendValue(([str(n) for n in visits], row.at))
        found = sorted(flat(self.open.iterator())), flat(self.closed.get())
        yield Row(who=str(flat(key)), states=str(found))

    def close(self) -> None:
        pass


def flat(value: Any) -> Any:
    """Return a value as the two engines both give it: PySpark has Rows and arrays of NumPy."""
    if isinstance(value, dict):
        return [flat(item) for item in sorted(value.items())]
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return str(value)
    return [flat(item) for item in value]


TYPES = "visits array<long>, amount decimal(12,3), last map<string, long>"
VISITS = "user string, place struct<x: int, y: double>, n long, day date, at timestamp, "
VISITS += "amount decimal(12,3)"


@pytest.mark.soak
@pytest.mark.parametrize("encoding", ["unsaferow", pytest.param("avro", marks=SOAK)])
def test_composite_keys_and_nested_types(continued: Continue, encoding: str) -> None:
    """Keys of several columns, one of them a struct, with nulls; nested values."""

    def visit(user: str | None, place: Any, n: int) -> tuple[Any, ...]:
        return user, place, n, dt.date(2026, 1, 1 + n % 2), at(n), Decimal("1.250") * n

    places = [{"x": 1, "y": 0.5}, {"x": None, "y": 0.5}, None]
    epochs = [
        [visit(user, place, 10 * epoch + i) for user in ("ada", None) for place in places]
        for epoch in range(2)
        for i in range(2)
    ]
    rows = continued(
        VISITS,
        processor=Composite,
        output="who string, states string",
        keys=("user", "place"),
        conf={ENCODING: encoding},
    ).same(epochs[:2], epochs[2:])
    assert len({row.who for row in rows}) == 6
    assert all("['0', '10']" in row.states for row in rows)


class Grown(StatefulProcessor):
    """Keeps a number in each kind of state; since its second version with a text."""

    SCHEMA = "n long"

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", self.SCHEMA, HOUR_MS)
        self.items = handle.getListState("items", self.SCHEMA)
        self.map = handle.getMapState("map", "n long", self.SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            new = (row.n, f"text {row.n}")[: len(self.SCHEMA.split(","))]
            states = self.value.get(), list(self.items.get()), sorted(self.map.iterator(), key=str)
            yield Row(k=key[0], states=str(flat(states)))
            self.value.update(new)
            self.items.appendValue(new)
            self.map.updateValue((row.n,), new)

    def close(self) -> None:
        pass


class Grew(Grown):
    SCHEMA = "n long, text string"


@pytest.mark.soak
def test_a_schema_that_grew_in_spark(continued: Continue) -> None:
    """Entries of the first schema and of the second are imported, as Spark would read them."""
    program = continued(
        "k string, n long",
        processor=Grown,
        output="k string, states string",
        time_mode="ProcessingTime",
        conf={ENCODING: "avro"},
    )
    program.feed.add([("a", 1), ("b", 2), ("c", 3)])
    assert program.run_native()
    program.processor = Grew
    program.feed.add([("a", 4), ("d", 5)])
    assert program.run_native()
    savepoint = program.imported()
    program.feed.add([("a", 6), ("b", 7), ("d", 8)], [("b", 9), ("c", 10)])
    ours, native = program.run_ours(savepoint), program.run_native()
    importing.check_same(ours, native)
    states = {(row.epoch, row.k): row.states for row in native}
    assert "['2', 'None']" in states[2, "b"]
    assert "['4', 'text 4']" in states[2, "a"]


@pytest.fixture(params=["hdfs", "s3a"])
def place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A directory of the test's own on a server."""
    if request.param == "hdfs":
        yield request.getfixturevalue("hdfs_url")
    else:
        with s3a(spark, request.getfixturevalue("s3_environment")):
            yield request.getfixturevalue("s3_url").replace("s3://", "s3a://")


@pytest.mark.external
def test_a_location_on_a_server(continued: Continue, place: str) -> None:
    """Spark wrote the location to HDFS or S3; the savepoint goes there too."""
    program = continued(operations.INPUT, processor=Operations, output=operations.OUTPUT)
    program.native = RemotePath(place) / "native"
    program.imports = f"{place}/savepoints"
    program.feed.add(script("a", *FILL), script("b", ("items.put", 1, "p")))
    assert program.run_native()
    savepoint = program.imported()
    assert savepoint.path.replace("s3://", "s3a://").startswith(f"{place}/savepoints/")
    program.feed.add(look("a") + look("b"))
    importing.check_same(program.run_ours(savepoint), program.run_native())


@pytest.mark.soak
def test_a_source_of_python(continued: Continue, spark: SparkSession, tmp_path: Path) -> None:
    """The offsets of a source without a log continue; no row is read twice."""
    spark.dataSource.register(Numbers)
    limit = tmp_path / "limit"

    def source() -> DataFrame:
        return spark.readStream.format("numbers").option("path", str(limit)).load()

    program = continued(
        operations.INPUT, processor=Operations, output=operations.OUTPUT, source=source
    )
    limit.write_text("6")
    assert program.run_native()
    savepoint = program.imported()
    limit.write_text("12")
    ours, native = program.run_ours(savepoint), program.run_native()
    assert ours == native
    assert {row.i for row in ours} == set(range(6, 12))


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return operations.INPUT

    def simpleStreamReader(self, schema: Any) -> NumbersReader:
        return NumbersReader(Path(self.options["path"]))


class NumbersReader(SimpleDataSourceStreamReader):
    """Appends the numbers below a limit that is in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = {"next": int(self.path.read_text())}
        return iter(list(self.readBetweenOffsets(start, end))), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        numbers = range(start["next"], end["next"])
        ops = ["items.appendValue", "items.get"]
        yield from (("a", i, ops[i % 2], i, "x") for i in numbers)
