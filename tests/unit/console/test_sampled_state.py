"""Samples of states: what is over its time to live, which timers are due, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.console.data import sampled_state
from pyspark_ckpt.console.data.sampled_state import sample_of, timers_of
from pyspark_ckpt.formats import canonical_file
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.snapshot.views import StateView
from pyspark_ckpt.storage.open import LocalStorage
from tests.unit.snapshot.made_savepoint import TIME_MS, UID, Key, MadeSavepoint

NAMES = T.StructType().add("name", "string")
NUMBER = T.StructType().add("n", "long")
STAMPED = T.StructType().add("expires_at", "timestamp")
"""The column of the time to live then has another name."""

HOUR_MS = 3_600_000
YEARS_LATER_MS = TIME_MS + 50_000 * HOUR_MS
"""Old data is replayed: the clock is far ahead of the watermark."""

OLD: list[Key] = [("a",), ("b",), ("c",)]
NEW: list[Key] = [("d",), ("e",)]


@pytest.fixture
def savepoint(tmp_path: Path) -> Iterator[MadeSavepoint]:
    made = MadeSavepoint(tmp_path, NAMES, [*OLD, *NEW])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("mode", "saved_at_ms"),
    [(TimeMode.EVENT_TIME, YEARS_LATER_MS), (TimeMode.PROCESSING_TIME, None)],
)
def test_entries_expire_and_timers_are_due_in_their_own_time(
    savepoint: MadeSavepoint, mode: TimeMode, saved_at_ms: int | None
) -> None:
    time = "event" if mode is TimeMode.EVENT_TIME else "processing"
    handles = []

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        handles[:] = [handle]
        ttl = StateTtlConfig(HOUR_MS, time, visibility="ReturnExpiredIfNotCleanedUp")
        return {
            "aging": handle.getValueState("aging", STAMPED, ttl),
            "lasting": handle.getValueState("lasting", NUMBER),
        }

    def write(states: dict[str, Any], key: Key) -> None:
        if key not in written:
            return
        states["aging"].update((None,))
        states["lasting"].update((1,))
        handles[0].registerTimer(savepoint.time_ms + HOUR_MS)

    savepoint.time_mode, savepoint.saved_at_ms = mode, saved_at_ms
    written = OLD
    savepoint.epoch(init, write)
    savepoint.time_ms += HOUR_MS // 2
    written = NEW
    savepoint.epoch(init, write)
    for later_ms, due in ((0, 0), (HOUR_MS // 2, len(OLD)), (HOUR_MS, len(OLD + NEW))):
        savepoint.time_ms = TIME_MS + HOUR_MS // 2 + later_ms
        with ckpt.open_state(savepoint.save(f"after-{later_ms}", canonical=True)) as snapshot:
            aging = sample_of(snapshot, UID, "aging", None)
            assert (aging.rows, aging.expired) == (len(OLD + NEW), due)
            timers = timers_of(snapshot, UID)
            assert (timers.timers, timers.due) == (len(OLD + NEW), due)
            assert sample_of(snapshot, UID, "lasting", None).expired is None


@pytest.mark.parametrize("canonical", [True, False])
def test_a_sample_ends_in_time_among_the_entries_of_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, canonical: bool
) -> None:
    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "large": handle.getValueState("large", NUMBER),
            "small": handle.getValueState("small", NUMBER),
        }

    def write(states: dict[str, Any], key: Key) -> None:
        states["large"].update((1,))
        if key in last:
            states["small"].update((1,))

    opened: list[str] = []
    open_verified = LocalStorage.open_verified

    def counted(self: LocalStorage, reference: Any) -> Any:
        opened.append(reference.path)
        return open_verified(self, reference)

    made = MadeSavepoint(tmp_path, NAMES, [(str(number),) for number in range(300)])
    last = [keys[-1] for keys in made.keys]  # far behind in stored order
    made.epoch(init, write)
    path = made.save("s", canonical=canonical)
    made.close()
    monkeypatch.setattr(canonical_file, "_READ_ENTRIES", 10)
    monkeypatch.setattr(LocalStorage, "open_verified", counted)
    with ckpt.open_state(path) as snapshot:
        opened.clear()
        whole = sample_of(snapshot, UID, "small", None)
        assert (whole.rows, whole.is_whole, len(opened)) == (2, True, 2)
        seconds = iter(range(1000))
        monkeypatch.setattr(sampled_state.time, "monotonic", lambda: next(seconds))
        # Each look at the clock is a second later. A segment is read in one part.
        monkeypatch.setattr(sampled_state, "MOST_SECONDS", 3 if canonical else 0)
        opened.clear()
        ended = sample_of(snapshot, UID, "small", None)
    assert (ended.rows, ended.is_whole) == (0, False)
    assert len(opened) == 1, "no other subtask is read after the time"


def test_keys_are_not_looked_up_in_the_older_snapshot_after_the_time(
    savepoint: MadeSavepoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint.epoch(
        lambda handle: {"visits": handle.getListState("visits", NUMBER)},
        lambda states, _: states["visits"].put([(1,), (2,)]),
    )
    path = savepoint.save("s", canonical=True)
    with ckpt.open_state(path) as newer, ckpt.open_state(path) as older:
        found = sample_of(newer, UID, "visits", older).heaviest
        assert [each.rows_before for each in found] == [2] * 5
        heaviest = sampled_state._heaviest

        def late(*arguments: Any) -> Any:
            monkeypatch.setattr(sampled_state, "MOST_SECONDS", -1)
            return heaviest(*arguments)

        monkeypatch.setattr(sampled_state, "_heaviest", late)
        found = sample_of(newer, UID, "visits", older).heaviest
        assert [each.rows_before for each in found] == [None] * 5


def test_keys_of_one_row_are_not_looked_up_in_the_older_snapshot(
    savepoint: MadeSavepoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint.epoch(
        lambda handle: {"count": handle.getValueState("count", NUMBER)},
        lambda states, _: states["count"].update((1,)),
    )
    path = savepoint.save("s", canonical=True)
    with ckpt.open_state(path) as newer, ckpt.open_state(path) as older:
        monkeypatch.delattr(StateView, "rows_of")
        found = sample_of(newer, UID, "count", older).heaviest
    assert [(each.rows, each.rows_before) for each in found] == [(1, None)] * 5
