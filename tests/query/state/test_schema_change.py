"""Another version of a program, on restart and restore: it continues if it fits, or is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from tests.query.harness import (
    BACKEND,
    OFTEN,
    RETAINED,
    Job,
    drop_local_copies,
    newest_checkpoint,
    refused,
)
from tests.query.stored import entries_of_states

KEYS = [f"k{i}" for i in range(8)]  # of both subtasks
States = Mapping[str, tuple[str, ...]]
Emitted = dict[str, Any]


class Version(StatefulProcessor):
    """A program with these states, each with kind and schemas: it emits all, then writes values."""

    def __init__(self, states: States, writes: Mapping[str, tuple[Any, ...]], gone: str) -> None:
        self.wanted, self.writes, self.gone = states, writes, gone

    def init(self, handle: Any) -> None:
        if self.gone:
            handle.deleteIfExists(self.gone)
        self.states = {
            name: getattr(handle, f"get{kind}State")(name, *schemas)
            for name, (kind, *schemas) in self.wanted.items()
        }

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        run = max(row.v for row in rows)
        emitted = {name: self.content(state) for name, state in self.states.items()}
        yield Row(k=key[0], run=run, emitted=json.dumps(emitted, default=str))
        for name, values in self.writes.items():
            kind = self.wanted[name][0]
            method = {"Value": "update", "List": "appendValue", "Map": "updateValue"}[kind]
            getattr(self.states[name], method)(*values)

    def content(self, state: Any) -> Any:
        if hasattr(state, "iterator"):
            return [[k, value] for k, value in state.iterator()]
        found = state.get()
        return found if found is None or isinstance(found, tuple) else list(found)

    def close(self) -> None:
        pass


OLD: States = {
    "a": ("Value", "n int, s struct<x: int, y: string>, dropped string"),
    "b": ("List", "f float, d decimal(5,2)"),
    "c": ("Map", "key string", "n int, m map<string, int>"),
    "d": ("Value", "text string"),
    "e": ("Value", "n long"),
}
WRITES: Mapping[str, tuple[Any, ...]] = {
    "a": ((1, (2, "y"), "old"),),
    "b": ((0.5, Decimal("1.25")),),
    "c": (("x",), (3, {"k": 4})),
    "d": (("12 apples",),),
    "e": ((5,),),
}
OLD_EMITTED: Emitted = {
    "a": [1, [2, "y"], "old"],
    "b": [[0.5, "1.25"]],
    "c": [[["x"], [3, {"k": 4}]]],
    "d": ["12 apples"],
    "e": [5],
}
NEW: States = {
    # Reordered and widened; a field is removed, others are added, also in the struct.
    "a": ("Value", "added string, s struct<y: string, z: double, x: long>, n long"),
    "b": ("List", "d decimal(9,4), f double"),
    "c": ("Map", "key string", "m map<string, long>, n double, added boolean"),
    "fruits": ("Value", "fruit string, number int"),
    "new": ("Value", "n int"),
}
NEW_EMITTED: Emitted = {
    "a": [None, ["y", None, 2], 1],
    "b": [["1.2500", 0.5]],
    "c": [[["x"], [{"k": 4}, 3.0, None]]],
    "fruits": ["apples", 12],
    "new": None,
}


def split(row: Row) -> tuple[str, int]:
    number, fruit = row.text.split()
    return fruit, int(number)


MIGRATIONS = {"fruits": ckpt.Migration(value=split, renamed_from="d")}


@pytest.fixture
def job(job: Job) -> Job:
    job = job.but(output="k string, run long, emitted string").using({**OFTEN, RETAINED: 10})
    return version(job, OLD, WRITES)


def version(
    job: Job,
    states: States,
    writes: Mapping[str, Any] | None = None,
    migrations: Any = None,
    gone: str = "",
) -> Job:
    program = Version(states, writes or {}, gone)
    return job.but(processor=lambda: program, arguments={"migrations": migrations})


def add(job: Job, run: int, keys: list[str] = KEYS) -> None:
    job.feed.add([(k, run) for k in keys])


def emitted(job: Job, run: int) -> dict[str, Emitted]:
    return {k: json.loads(text) for k, number, text in job.result() if number == run}


@pytest.mark.slow
def test_restart_and_restore(job: Job) -> None:
    """Scenario 41: changed, renamed, migrated, added, left out, one subtask after the other."""
    add(job, 0)
    checkpoint = newest_checkpoint(job.run())
    new = version(job, NEW, {"new": ((9,),)}, MIGRATIONS)
    add(job, 1, KEYS[:1])
    new.run()
    assert emitted(job, 1) == {KEYS[0]: NEW_EMITTED}
    assert drop_local_copies(job.spark)
    add(job, 2)  # most keys, and a subtask, still have the old schemas
    query = new.run()
    expected = dict.fromkeys(KEYS, NEW_EMITTED) | {KEYS[0]: {**NEW_EMITTED, "new": [9]}}
    assert emitted(job, 2) == expected
    entries = entries_of_states(newest_checkpoint(query))
    assert len(entries["e"]) == len(KEYS)  # not asked for, and kept
    add(job, 3)
    query = version(job, {"e": OLD["e"], "new": ("Value", "n long")}).run()
    assert emitted(job, 3) == {k: {"e": [5], "new": [9]} for k in KEYS}
    add(job, 4)
    query = version(job, {"new": ("Value", "n long")}, gone="e").run()
    assert "e" not in entries_of_states(newest_checkpoint(query))
    fork = new.but(location="loc2", out="out2").using({BACKEND: "heap"})
    fork.run(restore=checkpoint)
    assert emitted(fork, 2) == expected
    assert emitted(fork, 4) == {k: {**NEW_EMITTED, "new": [9]} for k in KEYS}


BAD: States = {
    "a": ("Value", "n string, s struct<x: int, y: string>, dropped string"),  # another type
    "b": ("Value", "f float, d decimal(5,2)"),  # another kind
    "c": ("Map", "key int", "n int, m map<string, int>"),  # another key
    "d": ("Value", "text string"),
    "e": ("Value", "n int"),  # narrowed
}


@pytest.mark.slow
def test_refused_before_the_start(job: Job) -> None:
    """The report names every state; nothing is touched, and the old program continues."""
    add(job, 0)
    checkpoint = newest_checkpoint(job.run())
    add(job, 1)
    bad, error = version(job, BAD), ckpt.errors.IncompatibleStateError
    for restore in (None, checkpoint):
        where = {} if restore is None else {"location": "loc2", "out": "out2"}
        mentions = ["operator 'op'", "'a', 'b', 'c', 'e'", "n int, s", "n string, s", "narrowed"]
        with refused(error, *mentions, "migration", unchanged=job.base) as caught:
            bad.but(**where).start(restore)
        table = str(caught.value).splitlines()
        verdicts = {row.split()[0]: row for row in table if row[:1] in "abcde" and row[1:2] == " "}
        assert {state: "refused" in row for state, row in verdicts.items()} == {
            "a": True,
            "b": True,
            "c": True,
            "d": False,
            "e": True,
        }
        with refused((error, ckpt.errors.RestoreError), "'other'", "uid", unchanged=job.base):
            job.but(uid="other", **where).start(restore)
        with refused((error, ckpt.errors.RestoreError), "key", unchanged=job.base):
            job.but(keys=("v",), **where).start(restore)
    with refused(error, "'op'", "timeMode 'None'", "'ProcessingTime'", unchanged=job.base):
        job.but(time_mode="ProcessingTime").start()
    with refused(ckpt.errors.PlanError, "'fruits'", "migration", unchanged=job.base):
        version(job, OLD, migrations=MIGRATIONS).start()
    job.run()
    assert emitted(job, 1) == dict.fromkeys(KEYS, OLD_EMITTED)


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_tables_while_changes_are_pending(job: Job, tmp_path: Path, backend: str) -> None:
    """Each subtask is read as far as it is; old entries are read in the newest schema."""
    job = job.using({BACKEND: backend})
    add(job, 0)
    job.run()
    add(job, 1, KEYS[:1])  # one subtask gets no rows, so its state stays as it is
    new = version(job, NEW, {"new": ((9,),)}, MIGRATIONS)
    directory = str(tmp_path / "savepoints")
    with new.running() as query:
        query.processAllAvailable()
        paths = [
            query.triggerSavepoint(directory, format="NATIVE").path,
            query.triggerSavepoint(directory, format="CANONICAL").path,
            query.triggerCheckpoint().path,
        ]
    for path in paths:
        with ckpt.location(path).state() as snapshot:

            def rows(state: str, of: ckpt.results.Snapshot = snapshot) -> dict[str, dict[str, Any]]:
                found = of.state("op", state).to_arrow().read_all().to_pylist()
                assert len({row["k"] for row in found}) == len(found)
                return {row.pop("k"): row for row in found}

            first = {"added": None, "s": {"y": "y", "z": None, "x": 2}, "n": 1}
            expected: dict[str, dict[str, Any]] = {
                "a": first,
                "b": {"position": 0, "d": Decimal("1.2500"), "f": 0.5},
                "c": {"key": "x", "m": [("k", 4)], "n": 3.0, "added": None},
                "e": {"n": 5},
            }
            for state, row in expected.items():
                assert rows(state) == {key: row for key in KEYS}  # noqa: C420
            assert rows("new") == {KEYS[0]: {"n": 9}}
            migrated, waiting = rows("fruits"), rows("d")
            assert KEYS[0] in migrated
            assert waiting
            assert {*migrated} | {*waiting} == {*KEYS}
            assert not {*migrated} & {*waiting}
            assert all((row["fruit"], row["number"]) == ("apples", 12) for row in migrated.values())
            assert all(row == {"text": "12 apples"} for row in waiting.values())
            for key in KEYS:
                assert snapshot.state("op", "a").get(key) == first
