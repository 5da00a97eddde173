"""Ids of states that come and go do not run out, and no entry of a deleted state comes back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import msgspec
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.operator.state import removal
from pyspark_ckpt.operator.table import catalog
from pyspark_ckpt.operator.table.catalog import FREE
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES
from pyspark_ckpt.testing import ProcessorHarness
from tests.unit.operator.subtask_epochs import KEYS, NUMBER, TEXT, SubtaskEpochs

MANY = 1_000
EPOCHS = 90


class Scratch(StatefulProcessor):
    """Count all rows, and those of the epoch in states that each epoch begins anew."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")
        for name in ("value", "list", "map", "operator list"):
            handle.deleteIfExists(name)
        self.value = handle.getValueState("value", "n long")
        self.list = handle.getListState("list", "n long", 3_600_000)
        self.map = handle.getMapState("map", "k long", "n long")
        self.operator_list = handle.getOperatorListState("operator list", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        found = [self.value.get(), *self.list.get(), *self.map.keys(), *self.operator_list.get()]
        for row in rows:
            self.n.update(((self.n.get() or (0,))[0] + 1,))
            self.value.update((row.id,))
            self.list.appendValue((row.id,))
            self.map.updateValue((row.id,), (row.id,))
        yield Row(key=key[0], n=self.n.get()[0], left=[each for each in found if each])

    def close(self) -> None: ...


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_states_of_one_epoch_go_on_for_ever(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """The sweep passes few entries, as where there are millions."""
    monkeypatch.setattr(removal, "LEAST_ENTRIES", 10)
    harness = ProcessorHarness(Scratch(), backend=backend)
    harness.testMany({number: [Row(id=number)] for number in range(MANY)})
    epochs = EPOCHS if backend == "heap" else EPOCHS // 3
    for epoch in range(1, epochs):
        assert harness.test(1, [Row(id=epoch)]) == [Row(key=1, n=epoch + 1, left=[])]
        if epoch % 20 == 0:
            snapshot = harness.snapshot()
            assert len(snapshot.handle.states) <= 20
            harness = ProcessorHarness.restored(Scratch(), snapshot, backend=backend)
    kept = {(number,) for number in range(2, MANY)}
    assert all(harness.peekValueState("n", number) == (1,) for (number,) in sorted(kept)[::47])


def test_a_query_whose_ids_are_used_up_goes_on(subtask_epochs: SubtaskEpochs) -> None:
    """Each id but one has a deleted state that has entries."""
    for name in ("live", "value", "list", "map"):
        handle = subtask_epochs.begin()
        make(handle, "value" if name == "live" else name, name).write(7)
        subtask_epochs.end()
    of_kind = dict(zip(("value", "list", "map"), subtask_epochs.states[1:], strict=True))
    stuck = list(subtask_epochs.states[:1])
    for number, (place, state) in zip(
        range(1, MAX_STATES), cycle(enumerate(of_kind.values(), 1)), strict=False
    ):
        stuck.append(msgspec.structs.replace(state, sweeps=number % 2))
        if number > len(of_kind):
            copy_entries(subtask_epochs, place, number)
    subtask_epochs.states = tuple(stuck)
    for epoch in range(3):
        handle = subtask_epochs.begin()
        assert make(handle, "value", "live").read() == [7]
        for kind in of_kind:
            state = make(handle, kind, f"new {kind}")
            assert state.read() == list(range(epoch))[-1 if kind == "value" else 0 :]
            state.write(epoch)
        subtask_epochs.end()
    while any(state.sweeps is not None and state.kind != FREE for state in subtask_epochs.states):
        make(subtask_epochs.begin(), "value", "live")
        subtask_epochs.end()
    assert sum(state.kind != FREE for state in subtask_epochs.states) == 4
    assert len(subtask_epochs.entries()) == 1 + 1 + 4 + 3  # a list has a head


def copy_entries(epochs: SubtaskEpochs, state_id: int, to: int) -> None:
    """Store the entries of a state once more, as those of another state."""
    epochs.begin()
    for key, value in epochs.entries().items():
        if key[2] == state_id:
            epochs.table.put(key[:2] + bytes([to]) + key[3:], value)
    epochs.number += 1
    epochs.backend.apply(list(epochs.table.changes()), str(epochs.number))
    epochs.drop()


class OfKind:
    """A state of any kind that holds numbers for the current key."""

    def __init__(self, kind: str, state: Any) -> None:
        self.kind, self.state = kind, state

    def write(self, number: int) -> None:
        if self.kind == "value":
            self.state.update((number,))
        elif self.kind == "map":
            self.state.updateValue((str(number),), (number,))
        else:
            self.state.appendValue((number,))

    def read(self) -> list[int]:
        if self.kind == "value":
            value = self.state.get()
            return [] if value is None else [value[0]]
        if self.kind == "map":
            return sorted(value for (value,) in self.state.values())
        return [value for (value,) in self.state.get()]


def make(handle: Any, kind: str, name: str) -> OfKind:
    if kind == "value":
        return OfKind(kind, handle.getValueState(name, NUMBER))
    if kind == "map":
        return OfKind(kind, handle.getMapState(name, TEXT, NUMBER))
    if kind == "list":
        return OfKind(kind, handle.getListState(name, NUMBER))
    return OfKind(kind, handle.getOperatorListState(name, NUMBER))


KINDS = ["value", "map", "list", "operator list"]
NAMES = ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(6))
def test_states_that_come_and_go_never_see_each_others_entries(
    subtask_epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random states of all kinds, with few ids, sweeps of a few entries, and lost attempts."""
    choose, numbers = random.Random(seed), iter(range(1, 1_000_000))
    monkeypatch.setattr(removal, "LEAST_ENTRIES", choose.choice([0, 3, 1_000]))
    monkeypatch.setattr(removal, "ENTRIES_PER_WRITE", choose.choice([0, 1, 2]))
    monkeypatch.setattr(catalog, "MAX_STATES", 7)
    monkeypatch.setattr(catalog, "_FEW", choose.choice([0, 2, 1_000]))
    model: dict[str, tuple[str, dict[Any, list[int]]]] = {}
    for epoch in range(60):
        where = f"seed {seed}, epoch {epoch}"
        before = {name: (kind, dict(held)) for name, (kind, held) in model.items()}
        handle = subtask_epochs.begin()
        states = {}
        for name in NAMES:
            kind = model[name][0] if name in model else choose.choice(KINDS)
            if name in model and choose.random() < 0.5:
                handle.deleteIfExists(name)
                del model[name]
                kind = choose.choice(KINDS)
            if name in model or choose.random() < 0.8:
                states[name] = make(handle, kind, name)
                model.setdefault(name, (kind, {}))
        for position in choose.sample(range(len(KEYS)), 3):
            subtask_epochs.to_key(position)
            for name, state in states.items():
                kind, held = model[name]
                key = None if kind == "operator list" else position
                assert state.read() == held.get(key, []), f"{where}, {kind} state {name!r}"
                if choose.random() < 0.7:
                    number = next(numbers)
                    state.write(number)
                    held[key] = ([] if kind == "value" else held.get(key, [])) + [number]
        if choose.random() < 0.2:
            subtask_epochs.drop()
            model = before
        else:
            subtask_epochs.end()
    handle = subtask_epochs.begin()
    for name in NAMES:
        handle.deleteIfExists(name)
    subtask_epochs.end()
    monkeypatch.setattr(removal, "LEAST_ENTRIES", 1_000)
    for _ in range(2):
        subtask_epochs.begin()
        subtask_epochs.end()
    assert subtask_epochs.entries() == {}
    assert {state.kind for state in subtask_epochs.states} == {FREE}


def test_more_states_than_ids_in_use_are_refused(
    subtask_epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "MAX_STATES", 2)
    for _ in range(3):  # as many as there are, all of them anew in each epoch
        handle = subtask_epochs.begin()
        for name in ("a", "b"):
            handle.deleteIfExists(name)
            state = handle.getMapState(name, TEXT, NUMBER)
            assert list(state.keys()) == []
            state.updateValue((name,), (1,))
        subtask_epochs.end()
        handle = subtask_epochs.begin()
        with pytest.raises(StateUseError, match="more than 2 states"):
            handle.getValueState("c", NUMBER)
        subtask_epochs.drop()


def test_a_deleted_state_costs_by_its_key_groups_and_not_by_other_states(
    subtask_epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [
        (bytes([0, number % 4]), b"\xcd%s" % number.to_bytes(2, "big")) for number in range(900)
    ]
    many.sort()
    states = subtask_epochs.begin(keys=many).getValueState("large", NUMBER)
    for position in range(len(many)):
        subtask_epochs.to_key(position)
        states.update((position,))
    subtask_epochs.end()
    subtask_epochs.begin(keys=many).getValueState("small", NUMBER).update((1,))
    subtask_epochs.end()
    scanned, scan = [], subtask_epochs.backend.scan

    def counted(prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for entry in scan(prefix, start):
            scanned.append(entry)
            yield entry

    monkeypatch.setattr(subtask_epochs.backend, "scan", counted)
    subtask_epochs.begin(keys=many).deleteIfExists("small")
    subtask_epochs.end()
    subtask_epochs.begin(keys=many)
    subtask_epochs.end()
    assert len(scanned) <= 2 * (1 + 4 + 1)
    assert [state.kind for state in subtask_epochs.states] == ["value", FREE]
    assert len(subtask_epochs.entries()) == len(many)
