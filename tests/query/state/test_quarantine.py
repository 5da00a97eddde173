"""Keys whose processor raises are quarantined in a query, and released by the mended program."""

from __future__ import annotations

import datetime as dt
import json
import os
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.timeline import timeline_of
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import (
    BACKEND,
    BACKENDS,
    SAVEPOINT_DIR,
    Job,
    await_progress,
    newest_checkpoint,
)
from tests.query.session_conf import session_conf
from tests.query.timed import ORIGIN_MS, at, timed_feed

BAD = -1
KEYS = int(os.environ.get("QUARANTINE_KEYS", "100000"))
OUTPUT = "k string, n long, vs string"
PARK = {"onError": "quarantine"}


class Flaky(StatefulProcessor):
    """Emit a row per call with the number of the key's rows so far; raise at a bad row."""

    is_mended = False

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")
        self.values = handle.getListState("values", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seen = []
        for row in rows:
            self.values.appendValue((row.v,))
            self.count.update(((self.count.get() or (0,))[0] + 1,))
            if row.v == BAD and not self.is_mended:
                msg = f"value {row.v}"
                raise ValueError(msg)
            seen.append(row.v)
        yield Row(k=key[0], n=self.count.get()[0], vs=str(seen))

    def close(self) -> None:
        pass


class Mended(Flaky):
    is_mended = True


def quarantined(query: ckpt.CheckpointedQuery) -> tuple[int, int]:
    (progress,) = query.lastOperatorProgress
    return progress["numQuarantinedKeys"], progress["numQuarantinedRows"]


def wanted(*epochs: list[tuple[str, int]]) -> dict[str, list[tuple[int, str]]]:
    """Return the output of each key in a run that never fails."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for epoch in epochs:
        of_key: dict[str, list[int]] = defaultdict(list)
        for key, value in epoch:
            of_key[key].append(value)
        for key, values in of_key.items():
            counts[key] += len(values)
            found[key].append((counts[key], str(values)))
    return dict(found)


def by_key(job: Job) -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for key, n, values in job.result():
        found[key].append((n, values))
    return {key: sorted(rows) for key, rows in found.items()}


def epochs_of(keys: int) -> list[list[tuple[str, int]]]:
    """Return three epochs of many keys, in which one row of one key is bad."""
    first = [(f"k{number}", number) for number in range(keys)]
    second = [*first, ("k3", BAD), ("k3", 33)]
    third = [("k3", 34), ("k4", 4)]
    return [first, second, third]


def flaky(job: Job, **more: Any) -> Job:
    return job.but(processor=Flaky, output=OUTPUT, arguments=PARK, **more)


@pytest.mark.parametrize(
    "backend", [BACKENDS[0], pytest.param(BACKENDS[1], marks=pytest.mark.soak)]
)
def test_one_bad_key_waits_for_the_mended_program(job: Job, backend: str) -> None:
    epochs = epochs_of(60)
    job.feed.add(*epochs)
    job = flaky(job).using({BACKEND: backend})
    query = job.run()
    right = wanted(*epochs)
    assert quarantined(query) == (1, 4)
    (shown,) = timeline_of(QueryPlace("key", LocalStorage(job.checkpoint_path), None)).quarantined
    assert (shown.uid, shown.quarantined_keys, shown.quarantined_rows) == ("op", 1, 4)
    newest = ckpt.location(str(job.location_path)).history().iloc[-1]
    assert (newest.kind, newest.quarantined_keys, newest.quarantined_rows) == ("checkpoint", 1, 4)
    assert by_key(job) == {**right, "k3": right["k3"][:1]}
    query.release("op", ["k3"])  # for whichever run comes next

    job.feed.add([("k5", 5)])  # of another subtask, perhaps
    mended = job.but(processor=Mended)
    query = mended.run()
    assert by_key(job) == wanted(*epochs, [("k5", 5)])
    assert quarantined(query) == (0, 0)
    job.feed.add([("k3", 35)])
    mended.run()
    assert by_key(job) == wanted(*epochs, [("k5", 5)], [("k3", 35)])


class Alarmed(Flaky):
    """Register a timer at each row's value in seconds, and raise at a bad row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        super().init(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            self.handle.registerTimer(ORIGIN_MS + 1_000_000)
            yield row


@pytest.mark.slow
@pytest.mark.parametrize("is_drained", [False, True])
def test_timers_of_quarantined_keys_keep_their_clock(
    job: Job, tmp_path: Path, is_drained: bool
) -> None:
    """They are all that the operator has, and neither fire nor are fired by a drain."""
    job = flaky(job, feed=timed_feed(tmp_path / "timed"), time_mode="EventTime", watermark="ts")
    job = job.but(processor=Alarmed)
    job.feed.add([("a", 1, at(0))], [("a", BAD, at(1))])
    with job.running() as query:
        query.processAllAvailable()
        assert quarantined(query) == (1, 1)
        saved = query.stopWithSavepoint(str(tmp_path / "saved"), is_drained).path
    assert ckpt.location(saved).state().timers("op").to_pandas()["k"].tolist() == ["a"]
    for parallelism in (None, 3):
        other = job.but(location="loc2", out="out2", time_mode="ProcessingTime")
        with session_conf(job.spark, {"spark.sql.shuffle.partitions": str(parallelism or 2)}):
            plan = ckpt.location(saved).plan(other.writer())
        (refused,) = [row for row in plan.states if row.outcome == "refused"]
        assert "1 of its subtasks have timers" in refused.why
    ckpt.location(saved).plan(job.but(location="loc2").writer()).check()


@pytest.mark.soak
def test_a_release_in_place_takes_one_epoch(job: Job) -> None:
    job.feed.add([("a", BAD), ("b", BAD)])
    job = flaky(job)
    with job.running() as query:
        await_progress(query, 0)
        with pytest.raises(ckpt.errors.PlanError, match="no operator 'other' with onError"):
            query.release("other")
        query.release("op")
        job.feed.add([("c", 1)])
        await_progress(query, 1)
        query.processAllAvailable()
        assert quarantined(query) == (2, 2)  # the program is as it was
        job.feed.add([("c", 2), ("a", 7)])
        query.processAllAvailable()
        assert quarantined(query) == (2, 3)
    assert by_key(job) == {"c": [(1, "[1]"), (2, "[2]")]}


@pytest.mark.soak
def test_the_mended_program_takes_over_in_place_and_gets_the_quarantined_rows(job: Job) -> None:
    """Quarantined keys also move with a rescale in place; the query object stays the same."""
    epochs = epochs_of(40)
    job.feed.add(*epochs)
    job = flaky(job)
    writer = ckpt.write_stream(job.df).option("checkpointLocation", str(job.location_path))
    with _parallelism(job, 2):
        query = writer.format("parquet").start(str(job.base / job.out))
        query.processAllAvailable()
        assert quarantined(query) == (1, 4)
        query.rescale(3)
        job.feed.add([(f"k{number}", 7) for number in range(40)])
        query.processAllAvailable()
        assert quarantined(query) == (1, 5)
        query.restartWith(job.but(processor=Mended).df)
        query.release("op")
        job.feed.add([("k8", 8)])
        query.processAllAvailable()
        assert quarantined(query) == (0, 0)
        query.stop()
    assert by_key(job) == wanted(*epochs, [(f"k{number}", 7) for number in range(40)], [("k8", 8)])


@pytest.mark.soak
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 6)])
def test_quarantined_keys_move_with_a_savepoint_to_another_parallelism(
    job: Job, before: int, after: int
) -> None:
    epochs = epochs_of(40)
    job.feed.add(*epochs)
    saved = job.base / "savepoints"
    first = flaky(job).using({SAVEPOINT_DIR: str(saved)})
    with _parallelism(job, before), first.running() as query:
        query.processAllAvailable()
        path = query.stopWithSavepoint().path
    state = ckpt.location(path).state()
    table = state.state("op", "__quarantine_rows").to_pandas()
    assert table["v"].tolist() == [3, BAD, 33, 34]
    assert table["quarantined_in_epoch"].tolist() == [1, 1, 1, 2]
    (error,) = state.state("op", "__quarantine").to_pandas()["error"]
    assert error.startswith("ValueError: value -1")

    job.feed.add([("k9", 9)])
    fork = job.but(
        processor=Mended, output=OUTPUT, arguments=PARK, location="fork", out="out-fork",
    )  # fmt: skip
    with _parallelism(job, after), fork.running(restore=path) as query:
        query.processAllAvailable()
        assert quarantined(query)[0] in (0, 1)
        query.release("op")
        job.feed.add([("k8", 8)])
        query.processAllAvailable()
        assert quarantined(query) == (0, 0)
    right = wanted(*epochs, [("k9", 9)], [("k8", 8)])
    assert by_key(fork) == {"k3": right["k3"][1:], "k8": right["k8"][-1:], "k9": right["k9"][-1:]}


def _parallelism(job: Job, parallelism: int) -> AbstractContextManager[None]:
    return session_conf(job.spark, {"spark.sql.shuffle.partitions": str(parallelism)})


@pytest.mark.soak
def test_a_quarantined_key_is_erased_and_gets_no_other_name(job: Job) -> None:
    """Its kept rows have the old key, under which the processor would be called."""
    job = flaky(job)
    job.feed.add([("a", 1), ("b", 2)], [("a", 3), ("b", BAD)])
    with job.running() as query:
        query.processAllAvailable()
        saved = query.triggerSavepoint(str(job.base / "savepoints")).path

    def upper(keys: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": keys.k.str.upper()})

    with pytest.raises(
        ckpt.errors.PlanError, match=r"'op'.*keys are quarantined.*release them.* or erase"
    ):
        ckpt.edit_state(saved).rekey("op", upper, as_pandas=True)
    edit = ckpt.edit_state(saved).erase("op", job.spark.createDataFrame([("b",)], "k string"))
    edited = edit.rekey("op", upper, as_pandas=True).save(str(job.base / "edited"))
    fork = job.but(location="loc2", out="out2")
    job.feed.add([("A", 5), ("B", 6)])
    assert quarantined(fork.run(restore=edited.path)) == (0, 0)
    assert by_key(fork) == {"A": [(3, "[5]")], "B": [(1, "[6]")]}


@pytest.mark.slow
def test_a_program_without_quarantine_and_many_keys_at_once_are_refused(job: Job) -> None:
    job.feed.add([("a", BAD)])
    flaky(job).run()
    job.feed.add([("a", 1), ("b", 1)])
    with pytest.raises(ckpt.errors.QuarantineError, match="1 keys are quarantined"):
        job.but(processor=Mended, output=OUTPUT).run()
    keyed = ckpt.key_by(job.stream(), "k")
    with pytest.raises(ckpt.errors.PlanError, match="handleInputBatch gets all keys in one call"):
        keyed.transformWithStateInBatches(Sizes(), OUTPUT, "Append", "None", uid="b", **PARK)
    rows = ckpt.key_by(job.spark.createDataFrame([("a", 1)], "k string, v long"), "k")
    with pytest.raises(ckpt.errors.PlanError, match="needs a stream"):
        rows.transformWithState(Flaky(), OUTPUT, "Append", "None", uid="b", **PARK)


class Sizes(ckpt.BatchProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Any:
        return []

    def close(self) -> None: ...


ALL_TYPES = """
    k string, i int, l long, b boolean, d double, f float, s string, x binary, m decimal(20, 3),
    day date, at timestamp, local timestamp_ntz, items array<string>,
    nested struct<a: long, b: struct<c: date>>, pairs map<string, decimal(10, 2)>
"""
FULL = (
    "a", 2**31 - 1, 2**62 + 1, True, 0.1, 0.5, "naïve ☃", b"\x00\xff", Decimal("12345.678"),
    dt.date(1969, 7, 20), dt.datetime(2024, 2, 29, 12, 30, 59, 123_456, dt.timezone.utc),
    dt.datetime(1800, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001  # a local time
    ["x", None], (1, (dt.date(2024, 1, 1),)),
    {"p": Decimal("1.50")},
)  # fmt: skip
NOTHING = ("a", *[None] * 14)


class Shows(StatefulProcessor):
    """Emit the text of what the processor gets."""

    is_mended = False

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if not self.is_mended:
            raise ValueError
        for row in rows:
            if isinstance(row, pd.DataFrame):
                text = f"{row.dtypes.to_dict()} {row.to_dict('list')}"
                yield pd.DataFrame({"k": [key[0]], "text": [text]})
            else:
                yield Row(k=key[0], text=repr(row))

    def close(self) -> None: ...


class ShowsMended(Shows):
    is_mended = True


class Cities(StatefulProcessor):
    """Emit the city of each row, with the number of the key's rows so far."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            cities = row.city.tolist() if isinstance(row, pd.DataFrame) else [row.city]
            n = (self.count.get() or (0,))[0] + len(cities)
            self.count.update((n,))
            out = (key[0], n, " ".join(cities))
            is_frame = isinstance(row, pd.DataFrame)
            yield pd.DataFrame([out], columns=["k", "n", "vs"]) if is_frame else Row(*out)

    def close(self) -> None: ...


NO_TEXT, NO_DATE, NESTED = -2, -3, -4


def cities(job: Job) -> DataFrame:
    """Return rows in which some values are none in Python: texts that are not UTF-8, and a date."""
    bad = "cast(X'4FE9' as string)"
    rows = job.stream().selectExpr(
        "k",
        f"if(v = {NO_TEXT}, {bad}, concat('c', v)) as city",
        f"if(v = {NO_DATE}, date '+12345-06-07', date '2024-01-01') as day",
        f"map(1, struct(if(v = {NESTED}, {bad}, 'ø\ufffd') as x)) as inside",
    )
    return job.process(ckpt.key_by(rows, "k"))


@pytest.mark.parametrize(
    "method",
    ["transformWithState", pytest.param("transformWithStateInPandas", marks=pytest.mark.slow)],
)
def test_a_value_that_python_does_not_have_quarantines_its_key(job: Job, method: str) -> None:
    job = job.but(processor=Cities, output=OUTPUT, arguments=PARK, plan=cities, method=method)
    first = [(f"k{number}", number) for number in range(9)]
    bad = [("k1", NO_TEXT), ("k2", NO_DATE), ("k3", NESTED)]
    job.feed.add(first, [*first, *bad], [("k1", 50), ("k4", 51)])
    query = job.run()
    seen = {key: [n for n, _ in rows] for key, rows in by_key(job).items()}
    assert seen == {
        f"k{n}": [1, 2, 3] if n == 4 else [1] if n in (1, 2, 3) else [1, 2] for n in range(9)
    }
    assert quarantined(query) == (3, 7)
    with ckpt.location(newest_checkpoint(query)).state() as state:
        keys = state.state("op", "__quarantine").to_arrow().read_all()
        kept = state.state("op", "__quarantine_rows").to_arrow().read_all()
    errors = {row["k"]: row["error"] for row in keys.select(["k", "error"]).to_pylist()}
    assert "column 'city' is string and has the text b'O\\xe9'" in errors["k1"]
    assert "column 'day' is date and has '12345-06-07'" in errors["k2"]
    assert "column 'inside' is map" in errors["k3"]
    assert "b'O\\xe9'" in errors["k3"]
    of_k1 = [row["city"] for row in kept.select(["k", "city"]).to_pylist() if row["k"] == "k1"]
    assert sorted(of_k1) == ["\0bytes 4fe9", "c1", "c50"]
    query.release("op")
    job.feed.add([("k5", 5)])
    assert quarantined(job.run()) == (3, 7)  # nothing has changed for them
    assert [n for n, _ in by_key(job)["k5"]] == [1, 2, 3]


@pytest.mark.soak
@pytest.mark.parametrize("method", ["transformWithState", "transformWithStateInPandas"])
def test_kept_rows_are_exactly_the_rows_that_came(
    spark: SparkSession, job: Job, method: str
) -> None:
    source = job.base / "types"
    spark.createDataFrame([FULL, NOTHING], ALL_TYPES).coalesce(1).write.parquet(str(source))

    def plan(own: Job) -> DataFrame:
        rows = own.spark.readStream.schema(ALL_TYPES).parquet(str(source))
        return own.process(ckpt.key_by(rows, "k"))

    every = job.but(method=method, output="k string, text string", plan=plan)
    direct = every.but(processor=ShowsMended, location="loc-direct", out="out-direct")
    direct.run()
    query = every.but(processor=Shows, arguments=PARK).run()
    assert quarantined(query) == (1, 2)
    query.release("op")
    spark.createDataFrame([("b", *NOTHING[1:])], ALL_TYPES).write.mode("append").parquet(
        str(source)
    )
    every.but(processor=ShowsMended, arguments=PARK).run()
    assert [row for row in every.result() if row[0] == "a"] == direct.result()


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_bad_key_in_100_000(job: Job, backend: str) -> None:
    """The other keys are exact and in time; after the release, so is the bad key."""
    every = [(f"k{number}", number) for number in range(KEYS)]
    bad = [*every[:777], ("k777", BAD), *every[778:]]
    epochs = [every, bad, every, every]
    job.feed.add(*epochs)
    job = job.using({BACKEND: backend})
    perfect = job.but(processor=Mended, output=OUTPUT, location="loc-perfect", out="out-perfect")
    flawed = flaky(job)
    times = {each.out: _epoch_ms(each.run())[1:] for each in (perfect, flawed)}
    ratio = statistics.median(times[flawed.out]) / statistics.median(times[perfect.out])
    print(f"{backend}: epochs took {times} ms, {ratio:.2f} times as long")
    assert ratio < 2
    right = by_key(perfect)
    assert by_key(flawed) == {**right, "k777": right["k777"][:1]}

    job.feed.add([("k1", 1)])
    perfect.run()
    mended = flawed.but(processor=Mended)
    with mended.running() as query:
        query.release("op")
        job.feed.add([("k2", 2)])
        query.processAllAvailable()
        of_mended = query.triggerCheckpoint().path
        assert quarantined(query) == (0, 0)
    with perfect.running() as query:
        query.processAllAvailable()
        of_perfect = query.triggerCheckpoint().path
    assert by_key(flawed) == by_key(perfect)
    for name in ("count", "values"):
        tables = [
            ckpt.location(path).state().state("op", name).to_arrow().read_all()
            for path in (of_perfect, of_mended)
        ]
        assert tables[0].num_rows >= KEYS
        order = [(column, "ascending") for column in tables[0].column_names]
        assert tables[0].sort_by(order).equals(tables[1].sort_by(order))


def _epoch_ms(query: ckpt.CheckpointedQuery) -> list[int]:
    found = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
    return [each for each in found if each > 0]


@pytest.mark.slow
def test_the_command_line_releases(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.feed.add([("k1", 1), ("k3", BAD), ("k4", BAD)])
    job = flaky(job)
    query = job.run()
    assert quarantined(query) == (2, 2)
    location = str(job.location_path)
    assert main(["release", location, "--operator", "op", "--key", "k3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["keys"] == [["k3"]]
    assert "note" not in answer
    assert main(["release", location, "--operator", "op", "--key", "k33", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["keys"] == [["k33"]]
    assert answer["note"].startswith(
        "the key was not quarantined in epoch 0, the newest checkpoint"
    )
    job.feed.add([("k1", 2)])
    mended = job.but(processor=Mended)
    assert quarantined(mended.run()) == (1, 1)
    assert main(["release", location]) == 0
    job.feed.add([("k1", 3)])
    assert quarantined(mended.run()) == (0, 0)
    assert by_key(job)["k4"] == [(1, f"[{BAD}]")]
    assert main(["release", location, "--operator", "other"]) == 1
    assert "no operator 'other'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_start_releases_all_keys_if_it_is_told_to(job: Job) -> None:
    job.feed.add([("k1", 1), ("k3", BAD)])
    job = flaky(job)
    assert quarantined(job.run()) == (1, 1)
    mended = job.but(processor=Mended)
    job.feed.add([("k1", 2)])
    assert quarantined(mended.run()) == (1, 1)
    job.feed.add([("k1", 3)])
    released = mended.using({"spark.ckpt.quarantine.release-on-start": "true"})
    assert quarantined(released.run()) == (0, 0)
    assert by_key(job)["k3"] == [(1, f"[{BAD}]")]


@pytest.mark.slow
def test_the_first_start_behind_a_rollback_releases_all_keys(job: Job) -> None:
    """The checkpoints directory is a new one, and the state has quarantined keys."""
    job.feed.add([("k1", 1), ("k3", BAD)])
    job = flaky(job)
    query = job.run()
    assert quarantined(query) == (1, 1)
    newest = newest_checkpoint(query).rpartition("/")[2]
    ckpt.location(str(job.location_path)).rollback(newest)
    job.feed.add([("k1", 2)])
    mended = job.but(processor=Mended, out="out2")
    released = mended.using({"spark.ckpt.quarantine.release-on-start": "true"})
    assert quarantined(released.run()) == (0, 0)
    assert by_key(mended)["k3"] == [(1, f"[{BAD}]")]
