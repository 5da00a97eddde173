"""The Spark data source reads what the typed tables have, in a partition per subtask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import InputPartition

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from tests.unit.snapshot.made_savepoint import TIME_MS, UID, MadeSavepoint

KEYS = [(f"user {number}", number % 3) for number in range(60)]
KEY_SCHEMA = T.StructType().add("user", "string").add("shard", "long")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def struct(ddl: str) -> T.StructType:
    """Return a schema of columns "name type"; the subtasks of the test have no session to ask."""
    schema = T.StructType()
    for column in ddl.split(", "):
        schema = schema.add(*column.split(" "))
    return schema


def states_of(handle: ProcessorHandle) -> dict[str, Any]:
    return {
        "total": handle.getValueState("total", struct("n long, at timestamp, day date")),
        "visits": handle.getListState("visits", struct("page string"), 60_000),
        "pages": handle.getMapState(
            "pages", struct("page string"), T.StructType().add("tags", T.ArrayType(T.StringType()))
        ),
    }


def fill(states: dict[str, Any], key: tuple[Any, ...]) -> None:
    number = int(key[0].split()[1])
    states["total"].update((number, None, None))
    states["visits"].put([(f"page {place}",) for place in range(number % 4)])
    states["pages"].updateValue((f"page {number}",), (["a", str(number)],))


@pytest.fixture(scope="module", params=[True, False], ids=["canonical", "segments"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = MadeSavepoint(tmp_path_factory.mktemp("made"), KEY_SCHEMA, KEYS, parallelism=3)
    made.epoch(states_of, fill)
    yield made.save("savepoint", canonical=request.param)
    made.close()


@pytest.fixture
def registered(spark: SparkSession) -> Iterator[SparkSession]:
    spark.dataSource.register(ckpt.StateDataSource)
    yield spark
    spark.conf.unset(PUSHDOWN)


def frame_of(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("pyspark_ckpt.state").options(operator=UID, **options).load(path)


@pytest.mark.parametrize("state", ["total", "visits", "pages"])
def test_a_frame_has_the_rows_of_the_table(registered: SparkSession, path: str, state: str) -> None:
    frame = frame_of(registered, path, state=state)
    with ckpt.open_state(path) as snapshot:
        view = snapshot.state(UID, state)
        expected = view.to_arrow().read_all()
        assert frame.rdd.getNumPartitions() == len(view.subtasks) == 3
    assert frame.columns == expected.schema.names
    found = frame.drop("expires_at").toArrow().to_pylist()
    expected_rows = expected.drop_columns(
        [name for name in expected.schema.names if name == "expires_at"]
    ).to_pylist()
    assert expected_rows
    assert sorted(found, key=repr) == sorted(expected_rows, key=repr)


def test_times_of_expiry_are_those_of_the_table(registered: SparkSession, path: str) -> None:
    frame = frame_of(registered, path, state="visits")
    times = {row[0] for row in frame.selectExpr("unix_millis(expires_at)").collect()}
    assert times == {TIME_MS + 60_000}


def test_filters_on_the_key_read_one_key(registered: SparkSession, path: str) -> None:
    registered.conf.set(PUSHDOWN, "true")
    frame = frame_of(registered, path, state="total", pushFilters="true")
    one = frame.where("user = 'user 17' and shard = 2")
    assert [row.n for row in one.collect()] == [17]
    assert one.rdd.getNumPartitions() == 1
    assert frame.where("user = 'user 17' and shard = 1").collect() == []
    other = frame.where("user = 'user 17' and n = 17")
    assert [row.shard for row in other.collect()] == [2]
    assert other.rdd.getNumPartitions() == 3
    assert [row.n for row in frame.where("user = 'user 5' and shard = 2 and n < 5").collect()] == []


def test_spark_applies_filters_that_are_not_pushed(registered: SparkSession, path: str) -> None:
    frame = frame_of(registered, path, state="total").where("user = 'user 17' and shard = 2")
    assert [row.n for row in frame.collect()] == [17]
    assert frame.rdd.getNumPartitions() == 3


def test_partitions_together_are_the_table(path: str) -> None:
    source = ckpt.StateDataSource({"path": path, "operator": UID, "state": "total"})
    reader = source.reader(source.schema())
    users = [
        user
        for partition in reader.partitions()
        for batch in reader.read(InputPartition(partition.value))
        for user in batch.column("user").to_pylist()
    ]
    assert sorted(users) == sorted(user for user, _ in KEYS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the options state"),
        ({"state": "nothing"}, "has no state 'nothing'"),
        ({"table": "rows", "state": "total"}, "option table"),
        ({"state": "total", "includeExpired": "maybe"}, "option includeExpired"),
    ],
)
def test_options_are_checked(
    registered: SparkSession, path: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        frame_of(registered, path, **options)


def test_timers_and_raw_state_are_tables_too(registered: SparkSession, path: str) -> None:
    timers = frame_of(registered, path, table="timers")
    assert timers.columns == ["user", "shard", "fires_at"]
    assert timers.collect() == []
    assert frame_of(registered, path, table="raw").columns == ["subtask", "stream", "data"]
