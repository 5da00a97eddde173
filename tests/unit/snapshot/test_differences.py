"""The difference of two snapshots is that of their tables, whatever programs subtasks skipped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.operator.state import removal
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from tests.unit.operator.subtask_epochs import IN_MEMORY, NUMBER, TEXT
from tests.unit.snapshot.made_savepoint import UID, MadeSavepoint

KEY = T.StructType([T.StructField("user", T.StringType())])
USERS = [(f"u{number}",) for number in range(6)]
Rows = dict[Any, dict[str, Any]]
Program = tuple[list[str], int, list[int]]
"""The fields of the state in a program, what it writes, and which subtasks have rows."""


def schema_of(names: Sequence[str]) -> T.StructType:
    return T.StructType([T.StructField(name, T.LongType()) for name in names])


def rows_of(path: str, state: str) -> tuple[list[str], Rows]:
    """Return the columns of values of a state, and its rows by key."""
    with ckpt.location(path).state() as snapshot:
        table = snapshot.state(UID, state).to_arrow().read_all()
    rows = {row.pop("user"): row for row in table.to_pylist()}
    return [name for name in table.column_names if name != "user"], rows


FIELDS = st.permutations("bc").flatmap(
    lambda names: st.integers(0, 2).map(lambda count: ["a", *names[:count]])
)
PROGRAMS = st.lists(
    st.tuples(FIELDS, st.integers(1, 2), st.sampled_from([[0], [1], [0, 1]])),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.mark.slow
@example(
    programs=[(["a", "b"], 1, [0]), (["a", "c"], 1, [0, 1]), (["a", "c"], 2, [0, 1])], old=2
)  # values decoded with the other subtask's schemas
@example(
    programs=[
        (["a", "b"], 1, [0]),
        (["a", "c"], 1, [0, 1]),
        (["a", "c"], 2, [1]),
        (["c", "a"], 1, [0]),
    ],
    old=2,
)  # both sides were misread alike, so that nothing differed
@given(programs=PROGRAMS, old=st.integers(0, 4))
def test_values_of_both_sides_are_those_of_the_tables(programs: list[Program], old: int) -> None:
    with TemporaryDirectory(dir=IN_MEMORY) as directory:
        made = MadeSavepoint(Path(directory), KEY, USERS)
        saved = []
        for number, (names, value, subtasks) in enumerate([(["a"], 1, [0, 1]), *programs]):
            schema = schema_of(names)
            values = tuple(10 * value + ord(name) for name in names)
            made.epoch(
                lambda handle, schema=schema: {"s": handle.getValueState("s", schema)},
                lambda states, _, values=values: states["s"].update(values),
                subtasks,
            )
            saved.append(made.save(f"savepoint-{number}", canonical=True))
        first, second = saved[min(old, len(saved) - 1)], saved[-1]
        (columns, before), (later_columns, after) = rows_of(first, "s"), rows_of(second, "s")
        try:
            found = ckpt.location(first).diff(second).to_arrow(UID, "s").to_pylist()
        except ckpt.errors.IncompatibleStateError as exc:
            # The newest subtask of one side skipped a program of the other side's.
            assume("nothing in common" not in str(exc))
            raise
    differ = {row["user"]: row for row in found}
    assert len(differ) == len(found)
    for user, row in differ.items():
        assert row["change"] == "changed"
        assert {name: row[f"old_{name}"] for name in columns} == before[user]
        assert {name: row[f"new_{name}"] for name in later_columns} == after[user]
    both = set(columns) & set(later_columns)
    for user, row in before.items():
        if any(row[name] != after[user][name] for name in both):
            assert user in differ
        elif set(columns) == set(later_columns):
            assert user not in differ


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 2), (1, 5)])
@pytest.mark.parametrize("value", [1, 9])
def test_broadcast_state_is_one_at_any_parallelism(before: int, after: int, value: int) -> None:
    def saved(parallelism: int, limit: int, directory: str) -> str:
        place = Path(mkdtemp(dir=directory))
        made = MadeSavepoint(place, KEY, [(f"u{number}",) for number in range(40)], parallelism)
        made.epoch(
            lambda handle: {
                "rules": handle.getBroadcastState("rules", TEXT, NUMBER),
                "n": handle.getValueState("n", NUMBER),
            },
            lambda states, _: states["n"].update((5,)),
            outside=lambda states, _: states["rules"].updateValue(("limit",), (limit,)),
        )
        return made.save("savepoint", canonical=True)

    with TemporaryDirectory(dir=IN_MEMORY) as directory:
        old, new = saved(before, 1, directory), saved(after, value, directory)
        difference = ckpt.location(old).diff(new)
    changed = [{"change": "changed", "s": "limit", "old_n": 1, "new_n": value}]
    assert difference.to_arrow(UID, "rules").to_pylist() == (changed if value != 1 else [])
    assert difference.is_equal == (value == 1)


def test_of_broadcast_state_the_copy_of_the_newest_subtask_counts(tmp_path: Path) -> None:
    """A subtask without rows has an older copy until its next epoch, which is not a change."""
    made = MadeSavepoint(tmp_path, KEY, USERS)
    saved = []
    for limit, subtasks in ((1, [0, 1]), (2, [1]), (2, [0])):
        made.epoch(
            lambda handle: {"rules": handle.getBroadcastState("rules", TEXT, NUMBER)},
            lambda states, _: None,
            subtasks,
            outside=lambda states, _, limit=limit: states["rules"].updateValue(
                ("limit",), (limit,)
            ),
        )
        saved.append(made.save(f"savepoint-{len(saved)}", canonical=True))
    changed = ckpt.location(saved[0]).diff(saved[1]).to_arrow(UID, "rules").to_pylist()
    assert changed == [{"change": "changed", "s": "limit", "old_n": 1, "new_n": 2}]
    assert ckpt.location(saved[1]).diff(saved[2]).is_equal


def test_a_row_with_nan_that_was_only_written_again_is_equal(tmp_path: Path) -> None:
    made = MadeSavepoint(tmp_path, KEY, USERS)
    saved = []
    for kind in (T.IntegerType(), T.LongType()):
        schema = T.StructType().add("x", "double").add("n", kind)
        made.epoch(
            lambda handle, schema=schema: {"s": handle.getValueState("s", schema)},
            lambda states, of: states["s"].update((math.nan, len(saved) if of == USERS[0] else 7)),
        )
        saved.append(made.save(f"savepoint-{len(saved)}", canonical=True))
    [changed] = ckpt.location(saved[0]).diff(saved[1]).to_arrow(UID, "s").to_pylist()
    assert (changed["user"], changed["old_n"], changed["new_n"]) == ("u0", 0, 1)


def test_names_of_keys_like_those_of_changes_and_values(tmp_path: Path) -> None:
    key = T.StructType().add("change", "string").add("old_n", "string").add("new_n", "string")
    made = MadeSavepoint(tmp_path, key, [("a", "b", "c"), ("d", "e", "f")], 1)
    n, old = schema_of(["n"]), schema_of(["old_n"])
    saved = []
    for value in (1, 2):
        made.epoch(
            lambda handle: {
                "n": handle.getValueState("n", n),
                "times": handle.getMapState("times", old, n),
            },
            lambda states, of, value=value: [
                states["n"].update((value if of[0] == "a" else 0,)),
                states["times"].updateValue((7,), (value if of[0] == "d" else 0,)),
            ],
        )
        saved.append(made.save(f"savepoint-{value}", canonical=True))
    difference = ckpt.location(saved[0]).diff(saved[1])
    assert difference.to_arrow(UID, "n").to_pylist() == [
        {
            "change": "changed",
            "key_change": "a",
            "old_n": "b",
            "new_n": "c",
            "old_value_n": 1,
            "new_value_n": 2,
        }
    ]
    assert difference.to_arrow(UID, "times").to_pylist() == [
        {
            "change": "changed",
            "key_change": "d",
            "old_n": "e",
            "new_n": "f",
            "map_key_old_n": 7,
            "old_value_n": 1,
            "new_value_n": 2,
        }
    ]
    assert difference.counts["changed"].tolist() == [1, 1]


def test_large_integers_beside_nulls_keep_their_digits_in_frames(tmp_path: Path) -> None:
    """No double is 2**60 + 1, and pandas makes doubles of integers with nulls."""
    key, large = T.StructType().add("user", "string"), 2**60 + 1
    made = MadeSavepoint(tmp_path, key, USERS[:2], 1)
    schema = T.StructType().add("n", "long").add("many", T.ArrayType(T.LongType()))
    saved = []
    for number in (None, large):
        made.epoch(
            lambda handle: {"s": handle.getValueState("s", schema)},
            lambda states, user, number=number: states["s"].update(
                (number, [number, None]) if user == USERS[0] else (large, None)
            ),
        )
        saved.append(made.save(f"savepoint-{number}", canonical=True))
    with ckpt.location(saved[0]).state() as snapshot:
        frame = snapshot.state(UID, "s").to_pandas().set_index("user")
    assert frame["n"].to_dict() == {"u0": None, "u1": large}
    difference = ckpt.location(saved[0]).diff(saved[1])
    (row,) = difference.to_pandas(UID, "s").to_dict("records")
    assert (row["old_n"], row["new_n"]) == (None, large)
    assert (list(row["old_many"]), list(row["new_many"])) == ([None, None], [large, None])


def test_entries_of_a_deleted_state_that_are_not_yet_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LEAST_ENTRIES", 2)
    made = MadeSavepoint(tmp_path, KEY, USERS)
    n = schema_of(["n"])
    saved: list[tuple[str, set[str]]] = []
    stored = []

    def run(names: set[str], deleted: str | None = None) -> None:
        def init(handle: ProcessorHandle) -> dict[str, Any]:
            if deleted is not None:
                handle.deleteIfExists(deleted)
            return {name: handle.getValueState(name, n) for name in sorted(names, reverse=True)}

        def work(states: dict[str, Any], _: Any) -> None:
            for state in states.values():
                if not state.exists():
                    state.update((4,))

        made.epoch(init, work)
        saved.append((made.save(f"savepoint-{len(saved)}", canonical=True), names))
        stored.append(sum(len(list(subtask.backend.scan())) for subtask in made.subtasks))

    run({"old", "kept"})
    for _ in range(7):
        run({"kept"}, deleted="old")
    assert len(set(stored)) > 2, "sweeps removed its entries over several epochs"
    assert [state.kind for state in made.states(0)] == ["free", "value"]
    run({"kept", "new"})
    assert made.states(0)[0].name == "new"

    some = [saved[number] for number in (0, 1, 3, -1)]
    for (old, before), (new, after) in itertools.product(some, some):
        difference = ckpt.location(old).diff(new)
        for name in before | after:
            found = difference.to_arrow(UID, name).to_pylist()
            if name in before and name in after:
                assert found == []
                continue
            change, column = ("removed", "old_n") if name in before else ("added", "new_n")
            assert {(row["user"],) for row in found} == set(USERS)
            assert {(row["change"], row[column]) for row in found} == {(change, 4)}
