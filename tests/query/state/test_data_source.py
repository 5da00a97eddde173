"""The Spark data source reads what the typed tables have, in a partition per subtask."""

from __future__ import annotations

import ast
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import InputPartition

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.storage.local import LocalStorage
from tests.golden import archives
from tests.query.checkpoints.test_readers import IMAGES
from tests.query.harness import BACKEND, OFTEN, RETAINED, Job, await_checkpoint
from tests.query.model import Count
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


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("state", ["total", "visits", "pages"])
def test_a_frame_has_the_rows_of_the_table(registered: SparkSession, path: str, state: str) -> None:
    frame = frame_of(registered, path, state=state)
    with ckpt.location(path).state() as snapshot:
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


@pytest.mark.soak
@pytest.mark.soak_variants
def test_times_of_expiry_are_those_of_the_table(registered: SparkSession, path: str) -> None:
    frame = frame_of(registered, path, state="visits")
    times = {row[0] for row in frame.selectExpr("unix_millis(expires_at)").collect()}
    assert times == {TIME_MS + 60_000}


@pytest.mark.slow
@pytest.mark.soak_variants
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


@pytest.mark.slow
@pytest.mark.soak_variants
def test_spark_applies_filters_that_are_not_pushed(registered: SparkSession, path: str) -> None:
    frame = frame_of(registered, path, state="total").where("user = 'user 17' and shard = 2")
    assert [row.n for row in frame.collect()] == [17]
    assert frame.rdd.getNumPartitions() == 3


@pytest.mark.soak_variants
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


@pytest.mark.soak_variants
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


@pytest.mark.soak_variants
def test_timers_and_raw_state_are_tables_too(registered: SparkSession, path: str) -> None:
    timers = frame_of(registered, path, table="timers")
    assert timers.columns == ["user", "shard", "fires_at"]
    assert timers.collect() == []
    assert frame_of(registered, path, table="raw").columns == ["subtask", "stream", "data"]


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A golden location with every kind of state."""
    place = tmp_path_factory.mktemp("golden") / "location"
    return str(shutil.copytree(archives.newest(request.param) / "location", place))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "partitions"),
    [
        ({"table": "timers"}, 2),
        ({"table": "raw"}, 2),
        ({"state": "dealt"}, 2),
        ({"state": "united"}, 2),
        ({"state": "rules"}, 1),
        ({"state": "tally"}, 2),
        ({"state": "aging"}, 2),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else None,
)
def test_every_table_of_a_golden_location(
    registered: SparkSession, whole: str, options: dict[str, str], partitions: int
) -> None:
    """Timers, raw, operator and broadcast state with rows, as `open_state` has them.

    What `open_state` has is compared with the model of the input by `test_golden_locations.py`.
    """
    reader = registered.read.format("pyspark_ckpt.state").options(operator="everything", **options)
    frame = reader.load(whole)
    with ckpt.location(whole).state() as snapshot:
        if "state" in options:
            view: ckpt.results.TableView = snapshot.state("everything", options["state"])
        else:
            view = getattr(snapshot, options["table"])("everything")
        expected = view.to_arrow().read_all()
    assert frame.columns == expected.schema.names
    found = frame.toArrow().cast(expected.schema)
    assert sorted(found.to_pylist(), key=repr) == sorted(expected.to_pylist(), key=repr)
    assert found.num_rows > 0
    assert frame.rdd.getNumPartitions() == partitions


READ_PART = """
import pickle, sys
reader, partition = pickle.load(sys.stdin.buffer)
rows = reader.read(partition)
first = next(rows)
print("reading", flush=True)
if len(sys.argv) > 1:
    while True:
        sys.stdout.flush()
users = [user for batch in (first, *rows) for user in batch.column("k").to_pylist()]
print(sorted(users))
"""


def read_elsewhere(reader: Any, partition: InputPartition, *, killed: bool = False) -> list[str]:
    """Read a partition in another process, which is killed in the middle on demand."""
    command = [sys.executable, "-c", READ_PART, *(["forever"] if killed else [])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps((reader, partition)))
    process.stdin.close()
    assert process.stdout.readline() == b"reading\n"
    if killed:
        process.kill()
        process.wait()
        process.stdout.close()
        return []
    users: list[str] = ast.literal_eval(process.stdout.read().decode())
    assert process.wait(60) == 0
    process.stdout.close()
    return users


@pytest.mark.soak
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_a_checkpoint_stays_from_planning_to_the_last_task(job: Job, backend: str) -> None:
    """Tasks read a checkpoint that was subsumed since then; one is killed, and runs again."""
    job = job.but(processor=Count, output="k string, n long")
    job = job.using({BACKEND: backend, RETAINED: 1, **OFTEN, **IMAGES})
    directory = LocalStorage(job.checkpoint_path)

    def pins() -> list[str]:
        return [name for name in directory.list() if name.startswith("_reader")]

    def epochs(first: int, last: int) -> None:
        for epoch in range(first, last):
            job.feed.add([(f"k{number}", number) for number in range(20)])
            query.processAllAvailable()
            await_checkpoint(query, epoch)

    with job.running() as query:
        epochs(0, 1)
        options = {"path": str(job.location_path), "operator": "op", "state": "count"}
        source = ckpt.StateDataSource(options)
        reader = source.reader(source.schema())
        again = list(reader.partitions())
        parts = list(reader.partitions())
        assert len(pins()) == len(again) + len(parts) == 4
        before = set(directory.list("taskowned"))
        epochs(1, 8)  # without pins the files would be gone: attempts may need those of five epochs
        with pytest.raises(ckpt.errors.CheckpointNotFoundError):
            ckpt.location(source._table.path).state()
        assert before <= set(directory.list("taskowned"))
        assert read_elsewhere(reader, parts[0], killed=True) == []
        users = [user for part in parts for user in read_elsewhere(reader, part)]
        assert sorted(users) == sorted(f"k{number}" for number in range(20))
        assert len(pins()) == len(again), "those of the other job, which never ran"
        with pytest.raises(ckpt.errors.CheckpointNotFoundError):
            list(reader.read(parts[0]))  # its pin is gone, and so is the checkpoint
        for name in pins():  # as if the driver had died long ago
            over = name.replace(name.split("-")[1], "0" * 15)
            (job.checkpoint_path / name).rename(job.checkpoint_path / over)
        epochs(8, 10)
        assert pins() == []
        assert not before & set(directory.list("taskowned"))


def test_a_job_leaves_no_pin(registered: SparkSession, path: str) -> None:
    frame = frame_of(registered, path, state="total")
    assert frame.count() == len(KEYS)
    assert len(frame.collect()) == len(frame.collect()) == len(KEYS)
    assert not list(Path(path).glob("_reader-*"))
