"""An edit of a query of two operators with timers and time to live changes what it was asked to.

Oracle: the same query, restored from the savepoint that was not edited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, OFTEN, Job, await_checkpoint, digests
from tests.query.model import OUTPUT, Reveal
from tests.query.timed import at, timed_feed


class Timed(StatefulProcessor):
    """Passes rows on, each with the last value; a timer passes the value on after five seconds."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        ttl = ckpt.StateTtlConfig(12_000, time="event")
        self.last = handle.getValueState("last", "v long", ttl)
        self.kept = handle.getValueState("kept", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            last = self.last.get()
            yield Row(k=key[0], v=row.v if last is None else row.v + 1000 * last[0])
            self.last.update((row.v,))
            self.kept.update((row.v,))
            self.handle.registerTimer(int(row.ts.timestamp() * 1000) + 5_000)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        fired = expiredTimerInfo.getExpiryTimeInMs() // 1000 % 100
        yield Row(k=key[0], v=-1000 * self.kept.get()[0] - fired)

    def close(self) -> None:
        pass


def plan(job: Job) -> DataFrame:
    rows = job.feed.stream(job.spark).withWatermark("ts", "0 seconds")
    first = ckpt.key_by(rows, "k").transformWithState(
        Timed(), "k string, v long", "Append", "EventTime", uid="timed"
    )
    return ckpt.key_by(first, "k").transformWithState(
        Reveal(), OUTPUT, "Append", "None", uid="reveal"
    )


BEFORE: list[list[Any]] = [
    [("a", 1, at(0)), ("b", 2, at(1)), ("c", 3, at(0))],
    [("a", 4, at(4)), ("d", 5, at(5))],
    [("e", 6, at(7))],
]
AFTER: list[list[Any]] = [
    [("a", 7, at(9)), ("f", 8, at(9))],
    [("b", 9, at(16)), ("d", 10, at(14))],
    [("c", 11, at(40)), ("a", 12, at(40))],
    [("a", 13, at(60))],
]


@dataclass(frozen=True)
class Saved:
    """A stopped query with a savepoint of each format, a checkpoint, and input for later."""

    job: Job
    sources: dict[str, str]
    rows: list[Any]
    """What the query emits that is restored from the canonical savepoint."""


@pytest.fixture(scope="module", params=BACKENDS)
def saved(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Saved:
    base = tmp_path_factory.mktemp("all")
    options = {**OFTEN, BACKEND: request.param}
    job = Job(spark, base, timed_feed(base / "in"), plan=plan, options=options)
    with job.running() as query:
        for rows in BEFORE:
            job.feed.add(rows)
            query.processAllAvailable()
        sources = {
            name: query.triggerSavepoint(str(base / "sp"), format=name).path
            for name in ("CANONICAL", "NATIVE")
        }
        sources["chk"] = await_checkpoint(query, len(BEFORE) - 1).path
    job.feed.add(*AFTER)
    return Saved(job, sources, later(job, sources["CANONICAL"], base))


def stored(savepoint: str) -> dict[tuple[str, bytes], bytes]:
    """Return all entries of a canonical savepoint, by operator and stored key."""
    found = {}
    for path in Path(savepoint).glob("shared/canonical-*.parquet"):
        table = pq.read_table(path)
        uid = json.loads(table.schema.metadata[b"pyspark_ckpt.subtask"])["uid"]
        columns = (table[name].to_pylist() for name in ("stored_key", "stored_value"))
        found.update({(uid, key): value for key, value in zip(*columns, strict=True)})
    return found


def later(job: Job, savepoint: str, base: Path) -> list[Any]:
    """Return what a query emits that is restored from a savepoint."""
    fork = job.but(base=base, location="fork", out="fork-out")
    fork.run(savepoint)
    return fork.result()


@pytest.mark.soak
def test_the_input_has_timers_and_expired_entries(saved: Saved) -> None:
    """What the other tests compare is not empty."""
    with ckpt.location(saved.sources["CANONICAL"]).state() as snapshot:
        assert snapshot.timers("timed").to_pandas().k.nunique() >= 3
        assert snapshot.state("timed", "last").to_pandas().expires_at.notna().all()
    emitted = str(saved.rows)
    assert "2009" in emitted  # the last value of b has not expired
    assert "3011" not in emitted  # that of c has
    assert "-6012" in emitted  # the timer of e, which was set before


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "is_written_anew"),
    [
        ("NATIVE", False),
        ("CANONICAL", True),
        pytest.param("CANONICAL", False, marks=pytest.mark.soak),
        pytest.param("NATIVE", True, marks=pytest.mark.soak),
        pytest.param("chk", False, marks=pytest.mark.soak),
        pytest.param("chk", True, marks=pytest.mark.soak),
    ],
)
def test_without_changes(saved: Saved, tmp_path: Path, kind: str, is_written_anew: bool) -> None:
    """State and output are equal, also if functions return every row of every state as it was."""
    source = saved.sources[kind]
    before = digests(Path(source))
    edit = ckpt.edit_state(source)
    if is_written_anew:
        for uid, states in {"timed": ("last", "kept"), "reveal": ("count", "tally")}.items():
            for state in states:
                edit.change(uid, state, lambda rows: rows)
        edit.set_timers("timed", edit.timers("timed"))
    edited = edit.save(str(tmp_path / "edited"))

    assert digests(Path(source)) == before
    assert stored(edited.path) == stored(saved.sources["CANONICAL"])
    assert later(saved.job, edited.path, tmp_path) == saved.rows


@pytest.mark.soak
@pytest.mark.soak_variants
@pytest.mark.parametrize("kind", ["NATIVE", pytest.param("CANONICAL", marks=pytest.mark.soak)])
def test_one_changed_entry(saved: Saved, tmp_path: Path, kind: str) -> None:
    """Only its key differs, in the state and in all later output, of both operators."""
    source = saved.sources[kind]
    before = digests(Path(source))

    def mended(rows: pa.Table) -> pa.Table:
        is_a = [key == "a" for key in rows["k"].to_pylist()]
        values = [77 if a else v for a, v in zip(is_a, rows["v"].to_pylist(), strict=True)]
        return rows.set_column(rows.schema.get_field_index("v"), "v", pa.array(values, pa.int64()))

    edited = ckpt.edit_state(source).change("timed", "last", mended).save(str(tmp_path / "edited"))

    assert digests(Path(source)) == before
    now, was = stored(edited.path), stored(saved.sources["CANONICAL"])
    assert now.keys() == was.keys()
    changed = [(uid, key[4:]) for uid, key in now if now[uid, key] != was[uid, key]]
    assert changed == [("timed", b"\xa1a")]
    rows = later(saved.job, edited.path, tmp_path)
    assert [row for row in rows if row[0] != "a"] == [row for row in saved.rows if row[0] != "a"]
    of_a = [[row for row in each if row[0] == "a"] for each in (rows, saved.rows)]
    assert len(of_a[0]) == len(of_a[1])
    assert "77007" in str(of_a[0])
    assert of_a[0] != of_a[1]
