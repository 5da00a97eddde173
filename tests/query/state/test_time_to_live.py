"""Time to live in whole queries: in both times, changed on restart, removed from the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt import StateTtlConfig
from tests.query.harness import OFTEN, Feed, Job, newest_checkpoint
from tests.query.model import in_order
from tests.query.stored import entries_of_states
from tests.query.timed import at, timed_feed

KEYS = [f"k{i}" for i in range(8)]  # of both subtasks
KEPT_MS, GONE_MS = 3_600_000, 1


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return timed_feed(tmp_path / "in")


class Aged(StatefulProcessor):
    """Write a value into every state of `CONFIGS`; for a null, emit which values exist."""

    CONFIGS: ClassVar[Mapping[str, StateTtlConfig | int | None]] = {}

    def init(self, handle: Any) -> None:
        self.states = {
            name: handle.getValueState(name, "v long", ttl) for name, ttl in self.CONFIGS.items()
        }

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.v is None:
                found = {name: state.get() for name, state in self.states.items()}
                there = " ".join(name for name, value in found.items() if value is not None)
                yield Row(k=key[0], second=round(row.ts.timestamp() % 86_400), there=there)
            else:
                for state in self.states.values():
                    state.update((row.v,))

    def close(self) -> None:
        pass


OUTPUT = "k string, second long, there string"


def emitted(job: Job, key: str) -> dict[int, str]:
    return {second: there for k, second, there in job.result() if k == key}


def ttl(duration_ms: int, time: str = "processing", **options: str) -> StateTtlConfig:
    return StateTtlConfig(duration_ms, time, **options)


class Options(Aged):
    CONFIGS: ClassVar = {
        "write": ttl(10_000, "event"),
        "read": ttl(10_000, "event", update="OnReadAndWrite"),
        "shown": ttl(10_000, "event", visibility="ReturnExpiredIfNotCleanedUp"),
        "plain": None,
    }


def test_event_time_and_options(job: Job) -> None:
    """Entries age with the watermark; reading may renew them, and the expired may be shown."""
    job = job.but(processor=Options, output=OUTPUT, watermark="ts").using(OFTEN)
    job.feed.add([("a", 1, at(0)), ("b", 1, at(0)), ("c", 1, at(3))])
    for second in (8, 12, 13, 22):
        job.feed.add([("a", None, at(second))])
    job.feed.add(*[[(k, None, at(second)) for k in "abc"] for second in (32, 33)])
    job.run()
    assert emitted(job, "a") == {
        8: "write read shown plain",
        12: "write read shown plain",  # at the watermark of the epoch before: 8
        13: "read shown plain",  # expired, and not cleaned up before the end of this epoch
        22: "read plain",
        32: "read plain",  # the watermark is 22, and it was read by a row of that time
        33: "read plain",
    }
    assert emitted(job, "b") == {32: "plain", 33: "plain"}
    checkpoint = newest_checkpoint(job.run())
    sizes = {name: len(entries) for name, entries in entries_of_states(checkpoint).items()}
    assert sizes == {"plain": 3, "read": 1}  # b and c have expired, too


class Switched(Aged):
    """Another time to live in each run."""

    def __init__(self, processing: Any, event: Any) -> None:
        self.ttls = {"processing": processing, "event": event, "plain": None}

    def init(self, handle: Any) -> None:
        self.CONFIGS = self.ttls  # type: ignore[misc]
        super().init(handle)


def look(*seconds: int) -> list[list[Any]]:
    return [[("a", None, at(second)), ("b", None, at(second))] for second in seconds]


def write(*seconds: int) -> list[list[Any]]:
    return [[("a", second, at(second)), ("b", second, at(second))] for second in seconds]


@pytest.mark.soak
def test_switched_on_restart(job: Job) -> None:
    """On, longer, shorter and off apply at once to stored entries, in both times."""
    job = job.but(output=OUTPUT, watermark="ts").using(OFTEN)
    both = "processing event plain"
    steps: list[tuple[Any, Any, list[list[Any]], dict[int, str]]] = [
        (None, None, write(0) + look(1), {1: both}),
        # older entries count from the epoch in which it was switched on: the watermark is 1
        (GONE_MS, ttl(5_000, "event"), look(6, 7), {6: both, 7: "plain"}),
        (KEPT_MS, ttl(KEPT_MS, "event"), write(10) + look(20), {20: both}),
        (None, None, look(30), {30: both}),
        (ttl(GONE_MS), ttl(20_000, "event"), look(40), {40: "plain"}),
        (None, None, write(50) + look(60), {60: both}),
    ]
    for processing, event, files, expected in steps:
        seen = emitted(job, "a")
        job.feed.add(*files)
        job.but(processor=lambda p=processing, e=event: Switched(p, e)).run()
        for key in "ab":
            new = {s: there for s, there in emitted(job, key).items() if s not in seen}
            assert new == expected, (processing, event)


class AllKinds(StatefulProcessor):
    """A value, a list element and a map entry per row, gone in the next epoch."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "v long", GONE_MS)
        self.items = handle.getListState("items", "v long", GONE_MS)
        self.map = handle.getMapState("map", "v long", "w long", GONE_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.value.update((row.v,))
            self.items.appendValue((row.v,))
            self.map.updateValue((row.v,), (row.v,))
        found = [len(list(self.items.get())), len(list(self.map.keys()))]
        yield Row(k=key[0], second=row.v, there=str(found))

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_expired_entries_leave_the_files(job: Job) -> None:
    """In the end, a checkpoint has only what its last epoch wrote."""
    job = job.but(processor=AllKinds, output=OUTPUT, time_mode="ProcessingTime").using(OFTEN)
    many = [(f"k{i}", 0, at(0)) for i in range(3000)]
    job.feed.add(many)
    full = entries_of_states(newest_checkpoint(job.run()))
    assert len(full["value"]) == len(many)
    assert min(map(len, full.values())) >= len(many)
    # 1,000 of some 6,000 stored entries per subtask are looked at in an epoch, and what is written
    for v in range(1, 9):
        job.feed.add([(k, v, at(0)) for k in KEYS])
    emptied = entries_of_states(newest_checkpoint(job.run()))
    assert {name: len(entries) for name, entries in emptied.items()} == {
        "value": len(KEYS),
        "items": 2 * len(KEYS),  # a list has an entry that counts the others
        "map": len(KEYS),
    }
    last = [row for row in job.result() if row[1] > 0]
    assert last == in_order((k, v, "[1, 1]") for k in KEYS for v in range(1, 9))
