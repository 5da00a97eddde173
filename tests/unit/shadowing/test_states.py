"""States of two programs are compared by key, and what means nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.formats.metadata import SparkOperatorMetadata
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.shadowing.report import Rules
from pyspark_ckpt.shadowing.states import differing_entries
from tests.unit.snapshot.made_savepoint import UID, Key, MadeSavepoint

KEY = T.StructType().add("k", "string")
N = T.StructType().add("n", "long")
NX = T.StructType().add("n", "long").add("x", "double")
NXY = T.StructType().add("n", "long").add("x", "double").add("y", "long")
V = T.StructType().add("v", "long")
KEYS: list[Key] = [(f"k{number}",) for number in range(10)]
Init = Callable[[ProcessorHandle], dict[str, Any]]
Work = Callable[[dict[str, Any], Key], None]


class Programs:
    """Two programs over the same keys, the original first."""

    def __init__(
        self,
        directory: Path,
        keys: Sequence[Key],
        subtasks: tuple[int, int],
        key_schema: T.StructType,
    ) -> None:
        self.both = [
            MadeSavepoint(directory / str(number), key_schema, keys, parallelism)
            for number, parallelism in enumerate(subtasks)
        ]

    def epoch(self, inits: Sequence[Init], works: Sequence[Work]) -> None:
        for program, init, work in zip(self.both, inits, works, strict=True):
            program.epoch(init, work)

    def differences(self, rules: Rules | None = None) -> tuple[list[Any], list[str]]:
        notes: list[str] = []
        old, new = (
            RestoreSource(program.save("sp", canonical=number == 0))
            for number, program in enumerate(self.both)
        )
        found = differing_entries(old, new, rules or Rules(), notes.append)
        return sorted(found, key=repr), notes


@contextmanager
def programs(
    directory: Path,
    keys: Sequence[Key] = KEYS,
    subtasks: tuple[int, int] = (2, 2),
    key_schema: T.StructType = KEY,
) -> Iterator[Programs]:
    made = Programs(directory, keys, subtasks, key_schema)
    yield made
    for each in made.both:
        each.close()


def counts(handle: ProcessorHandle) -> dict[str, Any]:
    return {"n": handle.getValueState("n", NX)}


def put(n: int, x: float = 0.5) -> Work:
    return lambda states, key: states["n"].update((n, x))


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("subtasks", [(2, 2), (2, 3)])
def test_one_key_in_100_000_is_named(tmp_path: Path, subtasks: tuple[int, int]) -> None:
    keys = [(f"k{number}",) for number in range(100_000)]

    def planted(states: dict[str, Any], key: Key) -> None:
        states["n"].update((2 if key == ("k77777",) else 1, 0.5))

    with programs(tmp_path, keys, subtasks) as both:
        both.epoch((counts, counts), (put(1), planted))
        found, notes = both.differences()
    assert found == [("op.n", ({"k": "k77777"}, {"n": 1, "x": 0.5}, {"n": 2, "x": 0.5}))]
    assert notes == []


def test_tolerance_and_ignored_states_and_columns(tmp_path: Path) -> None:
    with programs(tmp_path) as both:
        both.epoch((counts, counts), (put(1, 0.5), put(1, 0.5 + 1e-12)))
        assert len(both.differences()[0]) == len(KEYS)
        for number, rules in enumerate(
            (
                Rules(tolerance=1e-9),
                Rules(ignore=frozenset({f"{UID}.n"})),
                Rules(ignore=frozenset({f"{UID}.n.x"})),
            )
        ):
            sources = [
                RestoreSource(each.save(f"sp{number}", canonical=True)) for each in both.both
            ]
            assert list(differing_entries(*sources, rules, print)) == []


def test_items_of_a_list_may_be_in_another_order(tmp_path: Path) -> None:
    def lists(handle: ProcessorHandle) -> dict[str, Any]:
        return {"l": handle.getListState("l", V)}

    def write(*values: int) -> Work:
        return lambda states, key: states["l"].put([(value,) for value in values])

    with programs(tmp_path, subtasks=(2, 3)) as both:
        both.epoch((lists, lists), (write(1, 2, 2, 3), write(3, 2, 1, 2)))
        assert both.differences() == ([], [])
    with programs(tmp_path / "other", KEYS[:1]) as both:
        both.epoch((lists, lists), (write(1, 2, 2), write(2, 1, 4)))
        assert both.differences()[0] == [("op.l", ({"k": "k0"}, {"v": 2}, {"v": 4}))]


@pytest.mark.parametrize("name", ["old_id", "new_id", "change", "position", "subtask", "old_n"])
def test_a_key_column_may_have_any_name(tmp_path: Path, name: str) -> None:
    def both_kinds(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "n": handle.getValueState("n", N),
            "l": handle.getListState("l", V),
            "m": handle.getMapState("m", T.StructType().add("old_x", "long"), V),
        }

    def write(n: int, items: list[int]) -> Work:
        def work(states: dict[str, Any], key: Key) -> None:
            states["n"].update((n,))
            states["l"].put([(item,) for item in items])
            states["m"].updateValue((7,), (n,))

        return work

    key_schema = T.StructType().add(name, "string").add("p", "string")
    with programs(tmp_path, [("a", "b")], (1, 1), key_schema) as programs_of_key:
        programs_of_key.epoch((both_kinds, both_kinds), (write(1, [1, 2]), write(2, [2, 3])))
        found, notes = programs_of_key.differences()
    key = {name: "a", "p": "b"}
    assert found == [
        ("op.l", (key, {"v": 1}, {"v": 3})),
        ("op.m", (key | {"old_x": 7}, {"v": 1}, {"v": 2})),
        ("op.n", (key, {"n": 1}, {"n": 2})),
    ]
    assert notes == []


def test_an_expired_entry_is_gone_whether_or_not_it_was_cleaned_up(tmp_path: Path) -> None:
    def aging(handle: ProcessorHandle) -> dict[str, Any]:
        return {"n": handle.getValueState("n", N, 1_000)}

    def write(states: dict[str, Any], key: Key) -> None:
        states["n"].update((1,))

    def remove(states: dict[str, Any], key: Key) -> None:
        states["n"].clear()

    def nothing(states: dict[str, Any], key: Key) -> None:
        pass

    with programs(tmp_path) as both:
        both.epoch((aging, aging), (write, write))
        both.epoch((aging, aging), (nothing, remove))
        for program in both.both:
            program.time_ms += 999
        assert len(both.differences()[0]) == len(KEYS)  # not over yet
    with programs(tmp_path / "later") as both:
        both.epoch((aging, aging), (write, write))
        both.epoch((aging, aging), (nothing, remove))
        for program in both.both:
            program.time_ms += 1_000
        assert both.differences() == ([], [])


def test_what_only_one_program_has_is_said_unless_it_is_ignored(tmp_path: Path) -> None:
    def more(handle: ProcessorHandle) -> dict[str, Any]:
        handle.getValueState("other", V)
        return {"n": handle.getValueState("n", NXY)}

    def put_more(states: dict[str, Any], key: Key) -> None:
        states["n"].update((1, 0.5, 7))

    with programs(tmp_path) as both:
        both.epoch((counts, counts), (put(1), put(1)))
        both.epoch((counts, more), (put(1), put_more))
        found, notes = both.differences()
    assert found == []
    assert len(notes) == 2
    assert "op.n: only one program has y" in notes
    assert "op.other: not compared, because only the candidate has it" in notes
    for named in ({f"{UID}.n.y", f"{UID}.other"}, {f"{UID}.*"}):
        sources = [RestoreSource(str(tmp_path / str(number) / "sp")) for number in range(2)]
        skipped: list[str] = []
        rules = Rules(ignore=frozenset(named))
        assert list(differing_entries(*sources, rules, skipped.append)) == []
        assert skipped == []


def test_state_of_sparks_own_operators_is_named_as_not_compared(tmp_path: Path) -> None:
    with programs(tmp_path) as both:
        both.epoch([lambda handle: {}] * 2, [lambda states, key: None] * 2)
        old, new = (RestoreSource(each.save("sp", canonical=True)) for each in both.both)
    dedupe = SparkOperatorMetadata(1, "dedupe", ())
    old.metadata = msgspec.structs.replace(old.metadata, spark_operators=(dedupe,))
    notes: list[str] = []
    assert not list(differing_entries(old, new, Rules(), notes.append))
    assert notes == [
        "spark_operator_1 (dedupe): not compared, because it is an operator of Spark's own"
    ]
    ignoring = Rules(ignore=frozenset(["spark_operator_1.*"]))
    assert not list(differing_entries(old, new, ignoring, pytest.fail))
