"""Samples of states: what is over its time to live, and which timers are due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.console.data.sampled_state import sample_of, timers_of
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
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
