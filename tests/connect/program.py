"""A program over Spark Connect: every input, timers, and every way to stop, restore and fork.

Its arguments are a directory and the name of one scenario below; it prints the outcome.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.sessions.connect import session_of_id

base = Path(sys.argv[1])
locations = os.environ.get("LOCATIONS", str(base))
"""Where locations, output and savepoints are; the input is on the local disk."""

source = base / "in"
source.mkdir(parents=True, exist_ok=True)
spark = SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).getOrCreate()


def deliver(number: int, keys: str) -> None:
    """Add a file of rows, one per letter; the event time of a row is the file's number."""
    unfinished = source / f".{number}"
    at = pd.to_datetime([number] * len(keys), unit="s")
    pd.DataFrame({"k": list(keys), "at": at}).to_parquet(
        unfinished, coerce_timestamps="us", allow_truncated_timestamps=True
    )
    os.utime(unfinished, (1_700_000_000 + number, 1_700_000_000 + number))
    unfinished.rename(source / f"{number:05}.parquet")


def stream() -> DataFrame:
    reader = spark.readStream.schema("k string, at timestamp").option("maxFilesPerTrigger", 1)
    return reader.parquet(f"file:{source}")


class Rows(StatefulProcessor):
    def init(self, handle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        (n,) = self.count.get() or (0,)
        for _ in rows:
            n += 1
            yield Row(k=key[0], n=n)
        self.count.update((n,))

    def close(self) -> None:
        pass


class Frames(Rows):
    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        (n,) = self.count.get() or (0,)
        more = sum(map(len, rows))
        self.count.update((n + more,))
        yield pd.DataFrame({"k": [key[0]] * more, "n": range(n + 1, n + more + 1)})


class Batches(ckpt.BatchProcessor):
    def init(self, handle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputBatch(self, keys, rows, timerValues) -> Iterator[pd.DataFrame]:
        before = self.count.getMany(keys)["n"].fillna(0).astype("int64")
        number = rows.groupby(level=0).cumcount() + 1 + before.reindex(rows.index).to_numpy()
        out = pd.DataFrame({"k": keys["k"].reindex(rows.index), "n": number})
        self.count.updateMany(keys, (before + rows.groupby(level=0).size()).to_frame("n"))
        yield out

    def close(self) -> None:
        pass


class Timed(Rows):
    """Emits -1 when a timer fires, ten seconds of event time after a key's first row."""

    def init(self, handle) -> None:
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        if not self.count.exists():
            self.handle.registerTimer(10_000)
        yield from super().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[Row]:
        yield Row(k=key[0], n=-1)


class Started(Timed):
    """Begins with an initial state; its keys have timers too."""

    def handleInitialState(self, key, initialState, timerValues) -> None:
        self.count.update((initialState.n,))
        self.handle.registerTimer(10_000)


class Nothing(DataSource):
    """A source with one epoch, which has no partition."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "k string, at timestamp"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NothingReader()


class NothingReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"n": 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iter(())


def started_operator(rows: DataFrame) -> DataFrame:
    initial = spark.createDataFrame([("a", 40), ("z", 20)], "k string, n long").groupBy("k")
    return ckpt.key_by(rows.withWatermark("at", "0 seconds"), "k").transformWithState(
        Started(), "k string, n long", "Update", "EventTime", initialState=initial, uid="count"
    )


def operator(kind: str = "rows") -> DataFrame:
    if kind == "initial":
        return started_operator(stream().where("k <> 'x'"))
    if kind == "initial of nothing":
        spark.dataSource.register(Nothing)
        return started_operator(spark.readStream.format("nothing").load())
    output = {"outputStructType": "k string, n long", "outputMode": "Update", "uid": "count"}
    if kind == "timers":
        keyed = ckpt.key_by(stream().withWatermark("at", "0 seconds"), "k")
        return keyed.transformWithState(Timed(), timeMode="EventTime", **output)
    keyed = ckpt.key_by(stream(), F.col("k"))
    if kind == "frames":
        return keyed.transformWithStateInPandas(Frames(), timeMode="None", **output)
    if kind == "batches":
        return keyed.transformWithStateInBatches(Batches(), timeMode="None", **output)
    return keyed.transformWithState(Rows(), timeMode="None", **output)


def writer(run: str, kind: str = "rows") -> ckpt.CheckpointedStreamWriter:
    return (
        ckpt.write_stream(operator(kind))
        .outputMode("append")
        .format("parquet")
        .option("path", f"{locations}/{run}/out")
        .option("checkpointLocation", f"{locations}/{run}/location")
        .option("spark.ckpt.execution.checkpointing.interval", "500ms")
    )


def numbers(run: str) -> dict[str, list[int]]:
    rows = spark.read.schema("k string, n long").parquet(f"{locations}/{run}/out").collect()
    return {k: sorted(row.n for row in rows if row.k == k) for k in sorted({r.k for r in rows})}


def one_input(kind: str) -> None:
    deliver(1, "aab")
    query = writer("one", kind).start()
    query.processAllAvailable()
    query.triggerCheckpoint()
    query.stop()
    deliver(2, "abc")
    again = writer("one", kind).trigger(availableNow=True).start()
    again.awaitTermination()
    print(numbers("one"))


def life() -> None:
    """Savepoint, restart, fork at another parallelism and backend, rollback, plan."""
    deliver(1, "aab")
    query = writer("one").start()
    query.processAllAvailable()
    savepoint = query.triggerSavepoint(f"{locations}/savepoints")
    checkpoint = query.triggerCheckpoint()
    deliver(2, "abc")
    query.processAllAvailable()
    stopped = query.stopWithSavepoint(f"{locations}/savepoints")
    print("original", numbers("one"))

    def fork(run: str, path: str, parallelism: int) -> None:
        spark.conf.set("spark.sql.shuffle.partitions", parallelism)
        forked = writer(run).option("spark.ckpt.state.backend.type", "heap").restoreFrom(path)
        print(run, forked.planRestore().states[0].outcome)
        forked.trigger(availableNow=True).start().awaitTermination()
        spark.conf.set("spark.sql.shuffle.partitions", 2)
        print(run, numbers(run))

    fork("same", savepoint.path, 2)
    deliver(3, "ac")
    fork("three", stopped.path, 3)
    back = partial(
        ckpt.location(f"{locations}/one/location").rollback, f"chk-{checkpoint.checkpoint_id}"
    )
    with ThreadPoolExecutor() as thread:  # which has no active session
        thread.submit(back).result()
    again = writer("one").option("path", f"{locations}/back").trigger(availableNow=True).start()
    again.awaitTermination()
    rows = spark.read.parquet(f"{locations}/back").collect()
    print("back", sorted((row.k, row.n) for row in rows))


def missing_input() -> None:
    """A rollback and a fork over epochs whose input is gone, in part."""
    deliver(1, "a")
    query = writer("one").start()
    query.processAllAvailable()
    checkpoint = query.triggerCheckpoint()
    deliver(2, "b")
    deliver(3, "c")
    query.processAllAvailable()
    query.stop()
    (source / "00002.parquet").unlink()
    path = f"{locations}/one/location"

    def said(call: Callable[[], object]) -> None:
        try:
            call()
        except ckpt.errors.RestoreError as exc:
            text = str(exc)
        else:
            text = "it was not refused"
        print("1 input file" in text, "00002.parquet" in text, "00003.parquet" in text)

    said(lambda: ckpt.location(path).rollback(f"chk-{checkpoint.checkpoint_id}"))
    said(lambda: writer("two").restoreFrom(checkpoint.path).start())
    allowed = writer("two").restoreFrom(checkpoint.path, allowMissingInput=True)
    allowed.trigger(availableNow=True).start().awaitTermination()
    print(numbers("two"))


def drain() -> None:
    deliver(1, "aab")
    query = writer("one", "timers").start()
    query.processAllAvailable()
    query.stopWithSavepoint(f"{locations}/savepoints", drain=True)
    print(numbers("one"))


def live() -> None:
    """States of the running query, also of a subtask that had no rows in the newest epoch."""
    deliver(1, "aab")
    query = writer("one").start()
    query.processAllAvailable()
    deliver(2, "a")
    query.processAllAvailable()
    count = query.state("count", "count")
    found = [count.get_with_epoch(key) for key in ("a", "b", "nobody")]
    print([each.value for each in found], {each.epoch for each in found})
    frame = count.to_pandas()
    print(sorted(frame.values.tolist()), frame.attrs["epoch"])
    query.stop()
    try:
        count.get("a")
    except ckpt.errors.StateUseError as exc:
        print("location(path).state()" in str(exc))


def function() -> None:
    """``foreachBatch`` runs in a process of the server."""
    out = str(base / "functions")

    def write(df: DataFrame, epoch: int) -> None:
        number = ckpt.current_epoch().number
        df.selectExpr("*", f"{number} AS epoch").write.mode("append").parquet(out)

    deliver(1, "aab")
    query = writer("one").foreachBatch(write).start()
    query.processAllAvailable()
    deliver(2, "ab")
    query.processAllAvailable()
    savepoint = query.stopWithSavepoint(f"{locations}/savepoints")
    print(savepoint.epoch, sorted((r.epoch, r.k, r.n) for r in spark.read.parquet(out).collect()))


def no_action() -> None:
    """An epoch of which the function computes only a part of the state is not committed."""

    def write(df: DataFrame, epoch: int) -> None:
        df.count() if epoch == 0 else df.take(1)

    deliver(1, "abcdefgh")
    query = writer("one").foreachBatch(write).start()
    query.processAllAvailable()
    deliver(2, "abcdefgh")
    try:
        query.awaitTermination(120)
    except Exception as exc:
        print("no action over all rows" in str(exc))
    print(sorted(path.name for path in (base / "one" / "location" / "commits").glob("[0-9]")))


def no_function() -> None:
    try:
        writer("one").foreachBatch(lambda df, epoch: None).start()
    except NotImplementedError as exc:
        print(exc)


def conf() -> None:
    """The user's session keeps its conf while a query starts that needs another one."""
    key, seen, has_started = "spark.sql.shuffle.partitions", set(), threading.Event()
    spark.conf.set(key, 5)
    spark.conf.set("spark.ckpt.parallelism.default", 2)

    def watch() -> None:
        while not has_started.is_set():
            seen.add(spark.conf.get(key))

    deliver(1, "aab")
    watching = threading.Thread(target=watch)
    watching.start()
    query = writer("one").start()
    has_started.set()
    watching.join()
    query.processAllAvailable()
    query.stop()
    print(seen, numbers("one"))


def table() -> None:
    """``toTable``: made by the first start, continued, and a fork into another table."""
    name = f"counted_{base.name.replace('-', '_')}"

    def to_table(run: str) -> ckpt.CheckpointedStreamWriter:
        started = ckpt.write_stream(operator()).outputMode("append")
        return started.option("checkpointLocation", f"{locations}/{run}/location")

    def rows(of: str) -> list[tuple[str, int]]:
        return sorted((row.k, row.n) for row in spark.table(of).collect())

    deliver(1, "aab")
    query = to_table("one").toTable(name)
    query.processAllAvailable()
    saved = query.stopWithSavepoint(f"{locations}/savepoints")
    deliver(2, "abc")
    to_table("one").trigger(availableNow=True).toTable(name).awaitTermination()
    print("original", rows(name))
    fork = to_table("fork").restoreFrom(saved.path).trigger(availableNow=True)
    fork.toTable(f"{name}_fork").awaitTermination()
    print("fork", rows(f"{name}_fork"))


def replaced() -> None:
    """A program may put the library's writer in the place of ``df.writeStream``."""
    deliver(1, "aab")
    counted = operator()
    type(counted).writeStream = property(ckpt.write_stream)
    started = counted.writeStream.option("path", f"{locations}/one/out").outputMode("append")
    started = started.option("checkpointLocation", f"{locations}/one/location")
    started.trigger(availableNow=True).start().awaitTermination()
    print(numbers("one"))


def failed_start() -> None:
    """The server ends the session of a query that could not start."""
    failing = writer("one").restoreFrom(str(base / "nowhere"))
    try:
        failing.start()
    except ckpt.errors.CheckpointNotFoundError as exc:
        print("refused", exc.__class__.__name__)
    of_query = failing._writer._session.session_id
    assert of_query != spark.session_id
    try:
        session_of_id(spark, of_query).range(1).collect()
    except Exception as exc:
        print("SESSION_CLOSED" in str(exc))


def memory() -> None:
    """A limit of the workers' memory that is too small is refused, as on a classic session."""
    spark.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", False)
    spark.conf.set("spark.executor.pyspark.memory", "1023m")
    try:
        writer("one").start()
    except ckpt.errors.ConfigurationError as exc:
        print(exc)


def refusals() -> None:
    other = stream()
    attempts: dict[str, Callable[[], object]] = {
        "aggregate": lambda: operator().groupBy("k").count(),
        "dedupe": lambda: operator().dropDuplicates(["k"]),
        "twice": lambda: ckpt.key_by(other.union(other), "k").transformWithState(
            Rows(), "k string, n long", "Update", "None", uid="count"
        ),
    }
    for name, attempt in attempts.items():
        chosen = ckpt.write_stream(attempt()).outputMode("append").format("noop")
        try:
            chosen.option("checkpointLocation", str(base / name)).start()
        except NotImplementedError as exc:
            print(name, exc)
    try:
        location = str(base / "memory")
        ckpt.write_stream(operator()).outputMode("append").format("memory").queryName("m").option(
            "checkpointLocation", location
        ).start()
    except NotImplementedError as exc:
        print("memory", exc)
    view = stream()
    view.createOrReplaceTempView("a_stream")
    keyed = ckpt.key_by(spark.table("a_stream"), "k")
    hidden = keyed.transformWithState(Rows(), "k string, n long", "Update", "None", uid="count")
    try:
        ckpt.write_stream(hidden).format("noop").option("checkpointLocation", str(base)).start()
    except NotImplementedError as exc:
        print("view", exc)


def initial() -> None:
    """All keys are in the first checkpoint, though epoch 0 has no rows; z has none until a fork."""
    deliver(1, "xx")
    query = writer("one", "initial").start()
    query.processAllAvailable()
    print("epoch", query.triggerCheckpoint().epoch)
    count = query.state("count", "count")
    print([count.get(key) for key in ("a", "z")])
    deliver(2, "ab")
    query.processAllAvailable()
    saved = query.stopWithSavepoint(f"{locations}/savepoints", drain=True)
    print(numbers("one"))
    deliver(3, "z")
    fork = writer("fork", "initial").restoreFrom(saved.path).trigger(availableNow=True).start()
    fork.awaitTermination()
    print(numbers("fork"))


def not_woken() -> None:
    """Epoch 0 has no task at all: neither a checkpoint nor a start takes that for empty state."""
    nothing = writer("one", "initial of nothing")
    nothing = nothing.option("spark.ckpt.execution.checkpointing.interval", "1h")
    query = nothing.start()
    query.processAllAvailable()
    print(refused(query.triggerCheckpoint), refused(query.stop), refused(nothing.start))


def refused(method: Callable[[], Any]) -> str | None:
    try:
        method()
    except ckpt.errors.CkptError as exc:
        return type(exc).__name__ if "did not start from the initialState" in str(exc) else str(exc)
    return None


def edit() -> None:
    """A first savepoint of a table, an edit of it by a function, and its restore."""
    rows = spark.createDataFrame([("a", 40), ("b", 20)], "k string, n long")
    first = ckpt.edit_state(query=operator()).put("count", "count", rows)
    savepoint = first.save(f"{locations}/savepoints")
    changed = ckpt.edit_state(savepoint.path, spark=spark)
    changed.change("count", "count", lambda part: part.assign(n=part.n + 1), as_pandas=True)
    changed.erase("count", spark.createDataFrame([("b",)], "k string"))
    edited = changed.save(f"{locations}/savepoints")
    deliver(1, "aab")
    query = writer("one").restoreFrom(edited.path).trigger(availableNow=True).start()
    query.awaitTermination()
    print(numbers("one"))
    try:
        ckpt.edit_state(edited.path, spark=spark).put("count", "count", rows.union(rows)).save(
            f"{locations}/savepoints"
        )
    except ckpt.errors.StateValueError as exc:
        print("two values at one place" in str(exc))


def imported() -> None:
    """A query of Spark's own operator, stopped, imported and continued."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    deliver(1, "aab")
    native = stream().groupBy("k").transformWithState(Rows(), "k string, n long", "Append", "None")
    started = native.writeStream.format("noop").trigger(availableNow=True)
    started.start(checkpointLocation=f"{locations}/native").awaitTermination()
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    savepoint = ckpt.location(f"{locations}/native").import_checkpoint(
        f"{locations}/savepoints", processor=Rows(), uid="count", spark=spark
    )
    deliver(2, "ac")
    query = writer("one").restoreFrom(savepoint.path).trigger(availableNow=True).start()
    query.awaitTermination()
    print(numbers("one"))


SCENARIOS: dict[str, Callable[[], None]] = {
    "rows": lambda: one_input("rows"),
    "frames": lambda: one_input("frames"),
    "batches": lambda: one_input("batches"),
    "life": life,
    "live": live,
    "missing_input": missing_input,
    "drain": drain,
    "function": function,
    "no_action": no_action,
    "no_function": no_function,
    "conf": conf,
    "table": table,
    "replaced": replaced,
    "failed_start": failed_start,
    "memory": memory,
    "refusals": refusals,
    "initial": initial,
    "not_woken": not_woken,
    "edit": edit,
    "imported": imported,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[2]]()
    spark.stop()
