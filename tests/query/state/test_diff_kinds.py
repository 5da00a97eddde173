"""Differences of all kinds of state, timers and raw state are those of the tables of both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from tests.query.harness import BACKEND, BACKENDS, INLINE, INTERVAL, RETAINED, Feed, Job
from tests.query.session_conf import session_conf
from tests.query.state.test_operator_state import OUTPUT, PARALLELISM, RULE, Ruled
from tests.query.timed import ORIGIN_MS, at, timed_feed

pytestmark = pytest.mark.slow

KEPT = {INLINE: "100b", INTERVAL: "1h", RETAINED: "9"}


def rows_of(view: ckpt.results.TableView, keys: list[str], values: list[str]) -> dict[Any, Any]:
    """Return the rows of a table by their keys, expired ones too."""
    rows = view.to_arrow(include_expired=True).read_all().to_pylist()
    found = {tuple(row[key] for key in keys): [row[each] for each in values] for row in rows}
    assert len(found) == len(rows)
    return found


def check_table(
    table: Any, old: ckpt.results.TableView, new: ckpt.results.TableView
) -> dict[str, int]:
    """Compare a table of changes with the tables of both sides; return its counts."""
    names = table.column_names[1:]
    values = [name.removeprefix("old_") for name in names if name.startswith("old_")]
    keys = [name for name in names if not name.startswith(("old_", "new_"))]
    before, after = rows_of(old, keys, values), rows_of(new, keys, values)
    expected = {
        "added": {place: (None, after[place]) for place in after.keys() - before.keys()},
        "removed": {place: (before[place], None) for place in before.keys() - after.keys()},
        "changed": {
            place: (before[place], after[place])
            for place in before.keys() & after.keys()
            if before[place] != after[place]
        },
    }
    found: dict[str, dict[Any, Any]] = {"added": {}, "removed": {}, "changed": {}}
    for row in table.to_pylist():
        sides = [[row[f"{side}_{name}"] for name in values] for side in ("old", "new")]
        shown = (
            None if row["change"] == "added" else sides[0],
            None if row["change"] == "removed" else sides[1],
        )
        found[row["change"]][tuple(row[key] for key in keys)] = shown
    assert found == expected
    return {change: len(places) for change, places in found.items()}


def check(old: str, new: str) -> dict[str, dict[str, int]]:
    """Compare two snapshots of the operator `op` with their tables; return the counts."""
    difference = ckpt.location(old).diff(new)
    counts: dict[str, dict[str, int]] = {}
    with ckpt.location(old).state() as before, ckpt.location(new).state() as after:
        for name in before.states()["state"]:
            sides = before.state("op", name), after.state("op", name)
            counts[name] = check_table(difference.to_arrow("op", name), *sides)
        for name in ("timers", "raw"):
            sides = getattr(before, name)("op"), getattr(after, name)("op")
            is_same = sides[0].to_arrow().read_all().equals(sides[1].to_arrow().read_all())
            assert (name in set(difference.counts["state"])) != is_same
            if not is_same:
                counts[name] = check_table(difference.to_arrow("op", name), *sides)
    shown = difference.counts.set_index("state")
    for name, of_state in counts.items():
        assert shown.loc[name, list(of_state)].to_dict() == of_state
    assert difference.is_equal == (not any(map(sum, (each.values() for each in counts.values()))))
    return counts


class Timed(StatefulProcessor):
    """A timer per row, a value that ages, and a state that is called like the timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.aged = handle.getValueState("aged", "v long", ckpt.StateTtlConfig(20_000, "event"))
        self.timers = handle.getMapState("raw", "v long", "twice long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(ORIGIN_MS + row.v * 1000)
            self.aged.update((1,))
            self.timers.updateValue((row.v,), (2 * row.v,))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        return iter(())

    def close(self) -> None:
        pass


@pytest.mark.soak
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_timers_and_entries_that_age(
    job: Job, tmp_path: Path, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Timers that fired, were added or stayed; equal values with another time of expiry."""
    feed = timed_feed(tmp_path / "timed")
    job = job.but(
        feed=feed, processor=Timed, output="k string", watermark="ts", time_mode="EventTime"
    ).using({**KEPT, BACKEND: backend})
    paths = []
    with job.running() as query:
        for rows in (
            [("a", 5, at(0)), ("b", 100, at(0)), ("c", 200, at(0))],
            [("a", 150, at(10)), ("c", 200, at(10))],
            [("d", 300, at(120))],
        ):
            feed.add(rows)
            query.processAllAvailable()
            paths.append(query.triggerCheckpoint().path)
        savepoint = query.triggerSavepoint(str(tmp_path / "savepoints")).path
    counts = ckpt.location(paths[0]).diff(paths[1]).counts.set_index("state")
    # The timer of a at 5 fired, and one at 150 was added. The state has the name of raw state.
    assert counts.loc["timers", ["added", "removed", "changed"]].tolist() == [1, 1, 0]
    assert counts.loc["aged", ["added", "removed", "changed"]].tolist() == [0, 0, 2]
    assert list(counts["kind"]) == ["value", "map", "timers"]
    for old, new in ((0, 1), (1, 2), (0, 2), (2, 0)):
        difference = ckpt.location(paths[old]).diff(paths[new])
        with (
            ckpt.location(paths[old]).state() as before,
            ckpt.location(paths[new]).state() as after,
        ):
            sides = before.timers("op"), after.timers("op")
            check_table(difference.to_arrow("op", "timers"), *sides)
            for name in ("aged", "raw"):
                table = difference.to_arrow("op", name)
                check_table(table, before.state("op", name), after.state("op", name))
    assert ckpt.location(paths[2]).diff(savepoint).is_equal
    capsys.readouterr()
    assert main(["diff", paths[0], paths[1], "--json"]) == 1
    shown = {
        each["state"]: each["changes"] for each in json.loads(capsys.readouterr().out)["samples"]
    }
    assert [(each["change"], each["k"]) for each in shown["timers"]] == [
        ("removed", "a"), ("added", "a"),
    ]  # fmt: skip


def test_operator_broadcast_and_raw_state(job: Job, tmp_path: Path) -> None:
    """State of subtasks is compared subtask by subtask, broadcast state once."""
    rules = Feed(tmp_path / "rules", RULE, "name string, factor long")

    def plan(job: Job) -> DataFrame:
        keyed = ckpt.key_by(job.stream(), "k").connectBroadcast(rules.stream(job.spark))
        return job.process(keyed)

    paths = []
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": str(PARALLELISM)}):
        job = job.but(processor=Ruled, output=OUTPUT, plan=plan).using(KEPT)
        with job.running() as query:
            for rule, rows in (
                ([("a", 1), ("b", 2), ("c", 3)], [(f"k{i}", i) for i in range(8)]),
                ([("a", 4), ("b", None), ("d", 5)], [("k1", 9), ("k1", 10)]),
            ):
                rules.add(rule)
                job.feed.add(rows)
                query.processAllAvailable()
                paths.append(query.triggerCheckpoint().path)
    counts = check(*paths)
    assert counts["rules"] == {"added": 1, "removed": 1, "changed": 1}
    assert counts["seen"] == {"added": 2, "removed": 0, "changed": 0}
    assert counts["raw"] == {"added": 0, "removed": 0, "changed": PARALLELISM}
    assert check(paths[1], paths[1])["seen"]["added"] == 0


class Kept(StatefulProcessor):
    """Write the value of each row into a state whose schema depends on the version."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.kept.update((row.v,) if self.schema == "n int" else (row.v, "new"))
        return iter(())

    def close(self) -> None:
        pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_schema_that_evolved(job: Job, backend: str) -> None:
    """Entries that wait for their migration are equal; those written again are shown."""
    job = job.but(output="k string").using({**KEPT, BACKEND: backend})
    job.feed.add([(f"k{i}", i) for i in range(6)])
    with job.but(processor=lambda: Kept("n int")).running() as query:
        query.processAllAvailable()
        old = query.triggerCheckpoint().path
    job.feed.add([("k1", 1), ("k2", 7), ("new", 8)])
    with job.but(processor=lambda: Kept("n long, added string")).running() as query:
        query.processAllAvailable()
        new = query.triggerCheckpoint().path
    rows = ckpt.location(old).diff(new).to_pandas("op", "kept").sort_values("k")
    assert rows.columns.tolist() == ["change", "k", "old_n", "new_n", "new_added"]
    assert rows[["change", "k", "new_n", "new_added"]].to_numpy().tolist() == [
        ["changed", "k1", 1, "new"],
        ["changed", "k2", 7, "new"],
        ["added", "new", 8, "new"],
    ]
    assert rows["old_n"].tolist()[:2] == [1, 2]
    back = ckpt.location(new).diff(old).to_pandas("op", "kept")
    assert sorted(back["change"]) == ["changed", "changed", "removed"]
