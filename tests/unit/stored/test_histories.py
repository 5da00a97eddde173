"""Subtasks that skipped programs with other schemas keep their values when state moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as T

from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.operator.rows.keys import key_groups_of
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.table.writes import DEFAULT_LIMIT_BYTES
from pyspark_ckpt.stored.redistribution import Redistribution
from pyspark_ckpt.stored.unify import UnifiedStates
from state_backends import Changes, open_backend
from tests.unit.operator.subtask_epochs import IN_MEMORY, SubtaskEpochs
from tests.unit.stored.test_redistribution import (
    KEYS,
    MAX,
    State,
    Subtask,
    encode,
    handle_of,
    key_group_of,
    move,
)

ENCODED = sorted(
    (encode_key_group(key_group_of(encode(key), MAX)), encode(key)) for key in KEYS[:24]
)
Program = tuple[list[str], dict[int, bool]]
"""The fields of the state in a program, and whether each subtask has rows in its epoch."""


def schema_of(names: Sequence[str]) -> T.StructType:
    return T.StructType([T.StructField(name, T.LongType()) for name in names])


class Operator:
    """Two subtasks over epochs, each with its own program."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.epochs = []
        self.keys = []
        for number in range(2):
            backend = open_backend("heap", directory / str(number), create=True)
            writes = Path(mkdtemp(dir=directory))
            self.epochs.append(SubtaskEpochs(backend, DEFAULT_LIMIT_BYTES, writes))
            groups = [encode_key_group(group) for group in key_groups_of(number, 2, MAX)]
            self.keys.append([key for key in ENCODED if key[0] in groups])
        self.last = [0, 0]

    def run(self, subtask: int, names: Sequence[str], epoch: int) -> None:
        """Write values that say in which epoch, to every second key."""
        keys, epochs = self.keys[subtask], self.epochs[subtask]
        state = epochs.begin(keys=keys).getValueState("s", schema_of(names))
        for position in range(epoch % 2, len(keys), 2):
            epochs.to_key(position)
            state.update(tuple(100 * epoch + ord(name) for name in names))
        epochs.end()
        self.last[subtask] = epoch

    def subtasks(self) -> list[Subtask]:
        return [
            Subtask(handle_of(number, 2, each.states, epoch=self.last[number]), each.entries())
            for number, each in enumerate(self.epochs)
        ]

    def close(self) -> None:
        for each in self.epochs:
            each.backend.close()


def values_of(subtasks: Sequence[Subtask], names: Sequence[str], directory: Path) -> dict[Any, Any]:
    """Read all keys as a processor with these fields does."""
    found: dict[Any, Any] = {}
    for subtask in subtasks:
        entries: State = subtask.entries
        keys = [key for key in ENCODED if any(e.endswith(key[1]) for e in entries)]
        if not keys:
            continue
        with open_backend("heap", Path(mkdtemp(dir=directory)), create=True) as backend:
            backend.apply([Changes(list(entries), list(entries.values()))], "1")
            epochs = SubtaskEpochs(backend, DEFAULT_LIMIT_BYTES, Path(mkdtemp(dir=directory)))
            epochs.states = subtask.handle.states
            state = epochs.begin(keys=keys).getValueState("s", schema_of(names))
            for position, key in enumerate(keys):
                epochs.to_key(position)
                if state.exists():
                    found[key[1]] = state.get()
            epochs.drop()
    return found


FIELDS = st.permutations("abc").flatmap(
    lambda names: st.integers(0, 3).map(lambda count: ["n", *names[:count]])
)
PROGRAMS = st.lists(
    st.tuples(FIELDS, st.fixed_dictionaries({0: st.booleans(), 1: st.booleans()})),
    min_size=1, max_size=5,
)  # fmt: skip


@pytest.mark.slow
@example(
    programs=[
        (["n", "a"], {0: True, 1: True}),
        (["n"], {0: True, 1: False}),
        (["n", "a"], {0: True, 1: True}),
    ]
)
@given(programs=PROGRAMS)
def test_values_are_those_of_a_restart(programs: list[Program]) -> None:
    with TemporaryDirectory(dir=IN_MEMORY) as name:
        directory = Path(name)
        operator = Operator(directory)
        try:
            for epoch, (names, has_rows) in enumerate(
                [(["n", "a"], {0: True, 1: True}), *programs]
            ):
                for subtask in range(2):
                    if has_rows[subtask]:
                        operator.run(subtask, names, epoch)
            subtasks = operator.subtasks()
        finally:
            operator.close()
        # What the last program that had rows does not have is gone when state moves.
        ran = [(["n", "a"], {}), *(each for each in programs if any(each[1].values()))]
        names = ran[-1][0]
        wanted = values_of(subtasks, names, directory)
        assert wanted
        for parallelism in (1, 3):
            assert values_of(move(subtasks, parallelism), names, directory) == wanted
        unified = UnifiedStates("u", [each.handle for each in subtasks])
        redistribution = Redistribution(unified, 2, MAX)
        edited = []
        for each in subtasks:
            keys = sorted(each.entries)
            part = ArrowEntries(
                pa.array(keys, pa.binary()), pa.array(map(each.entries.get, keys), pa.binary())
            )
            entries = {
                row["stored_key"]: row["value"]
                for batch in redistribution.batches(each.handle, [part])
                for row in batch.to_pylist()
                if row["subtask"] == each.handle.subtask
            }
            assert len(entries) == len(keys)
            handle = handle_of(each.handle.subtask, 2, unified.states, epoch=each.handle.epoch)
            edited.append(Subtask(handle, entries))
        assert values_of(edited, names, directory) == wanted
