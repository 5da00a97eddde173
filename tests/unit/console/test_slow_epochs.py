"""The slowest epoch, what it spent its time on, and the checkpoints from before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.console.data.places import QueryPlace, find_places
from pyspark_ckpt.console.data.slow_epochs import (
    SlowEpoch,
    checkpoint_with,
    checkpoints_before,
    slowest_epoch,
    slowest_subtask,
    ways_back,
)
from pyspark_ckpt.console.data.timeline import CheckpointRow, timeline_of
from pyspark_ckpt.formats.counters import EpochMetrics
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.run_log import (
    CheckpointRecord,
    EpochRecord,
    OperatorEpoch,
    OperatorRecord,
    RunEnded,
    RunLog,
    RunNote,
    RunStarted,
    SlowKeyRecord,
)
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.console.made_operator import operator

SLOW = 5


def record(epoch: int, *keys: SlowKeyRecord) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=epoch + 1, epoch=epoch, triggered_at_ms=1000 + epoch, duration_ms=1,
        size_bytes=1, operators=(OperatorRecord(uid="op", slow_keys=keys),),
    )  # fmt: skip


def row(number: int, epoch: int) -> CheckpointRow:
    return CheckpointRow(number, record(epoch))


class Made:
    """A query of nine epochs: the first is a start-up, and one is slow in the user's code."""

    def __init__(self, tmp_path: Path, snapshot: CheckpointMetadata) -> None:
        self.storage = LocalStorage(tmp_path / "location" / "pyspark_ckpt")
        self.snapshot = snapshot
        self.slow_ms = 5000
        self.keys = (SlowKeyRecord(key="ada", subtask=1, ms=4500, share=1.0),)
        self.error: str | None = None

    def write(self) -> QueryPlace:
        handles = [
            msgspec.structs.replace(each, epoch=SLOW, metrics=EpochMetrics(process_ms=ms))
            for each, ms in zip(operator(9, 9, parallelism=2).handles, (10, 4990), strict=True)
        ]
        metadata = msgspec.structs.replace(
            self.snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=SLOW + 1, root="..",
            epoch=SLOW, source_logs=(), offsets_entry="",
            operators=(msgspec.structs.replace(operator(9, 9, parallelism=2), handles=handles),),
        )  # fmt: skip
        store = CompletedCheckpoints(self.storage)
        for number in (SLOW, SLOW + 1):
            store.add(
                number, msgspec.structs.replace(metadata, checkpoint_id=number, epoch=number - 1)
            )
        log = RunLog(self.storage)
        log.write(RunStarted(run_id="r", at_ms=1, query_id="q", query_name="q"))
        took = {0: 20_000, SLOW: self.slow_ms}
        epochs = tuple(
            EpochRecord(
                epoch=n, began_at_ms=1000 + n, duration_ms=took.get(n, 1000), rows=1,
                phases_ms={"addBatch": took.get(n, 1000)},
            )
            for n in range(9)
        )  # fmt: skip
        done = OperatorEpoch(
            uid="op", epoch=SLOW, began_ms=0, open_ms=0, read_ms=0, user_ms=self.slow_ms - 10,
            write_ms=0, barrier_ms=0,
        )  # fmt: skip
        records = (record(SLOW - 1), record(SLOW, *self.keys))
        log.write(
            RunNote(
                run_id="r", at_ms=2, epochs=epochs, operator_epochs=(done,), checkpoints=records
            )
        )
        if self.error is not None:
            log.write(RunEnded(run_id="r", at_ms=9999, error=self.error, error_kind="Error"))
        (place,) = find_places(LocalStorage(Path(self.storage.url).parent)).queries
        return place

    def slowest(self) -> SlowEpoch:
        place = self.write()
        found = slowest_epoch(place, timeline_of(place))
        assert found is not None
        return found


@pytest.fixture
def made(tmp_path: Path, snapshot: CheckpointMetadata) -> Made:
    return Made(tmp_path, snapshot)


def test_the_slowest_epoch_is_not_a_start_up(made: Made) -> None:
    found = made.slowest()
    assert (found.row.record.epoch, found.phase, found.phase_ms) == (SLOW, "user code", 4990)
    assert (found.subtask, found.key, found.is_slow) == (1, "ada", True)


@pytest.mark.parametrize(("ms", "subtask"), [(4500, 0), (200, 1)])
def test_a_key_of_another_subtask_or_of_little_time_is_not_blamed(
    made: Made, ms: int, subtask: int
) -> None:
    made.keys = (SlowKeyRecord(key="ada", subtask=subtask, ms=ms, share=1.0),)
    found = made.slowest()
    assert (found.subtask, found.key) == (1, None)


def test_epochs_that_are_alike_are_not_slow(made: Made) -> None:
    made.slow_ms = 1001
    found = made.slowest()
    assert not found.is_slow
    (place,) = find_places(LocalStorage(Path(made.storage.url).parent)).queries
    assert ways_back(place, timeline_of(place), found).earlier == ()


def test_the_checkpoints_from_before_the_trouble_are_named(made: Made) -> None:
    made.error = "the price is negative"
    place = made.write()
    timeline = timeline_of(place)
    ways = ways_back(place, timeline, slowest_epoch(place, timeline))
    assert [(way.number, way.before) for way in ways.earlier] == [
        (SLOW + 1, "the last failure"), (SLOW, f"epoch {SLOW}, the slowest"),
    ]  # fmt: skip
    assert (ways.newest, ways.damaged) == (SLOW + 1, {})


def test_a_damaged_checkpoint_is_none_to_go_back_to(made: Made) -> None:
    """Also if the records, which are written when it completes, know nothing of the damage."""
    made.error = "the price is negative"
    place = made.write()
    timeline = timeline_of(place)
    slowest = slowest_epoch(place, timeline)
    for damaged, left in (([SLOW + 1], SLOW), ([SLOW + 1, SLOW], None)):
        path = Path(made.storage.url) / f"chk-{damaged[-1]}" / "_metadata"
        path.write_bytes(path.read_bytes()[:-5])
        ways = ways_back(place, timeline, slowest)
        assert (ways.newest, sorted(ways.damaged)) == (left, sorted(damaged))
        assert {way.number for way in ways.earlier} == ({left} if left else set())
        assert all("_metadata" in each for each in ways.damaged.values())


def test_a_query_without_epochs_has_no_slowest(made: Made) -> None:
    place = made.write()
    timeline = timeline_of(place)
    alone = [each for each in timeline.epochs if each.is_first]
    assert len(alone) == 1
    assert slowest_epoch(place, replace(timeline, epochs=tuple(alone))) is None


def test_an_epoch_is_in_the_oldest_checkpoint_after_it() -> None:
    retained = [row(9, 20), row(8, 14), row(7, 10)]
    epochs = (21, 20, 15, 14, 10, 3)
    assert [checkpoint_with(retained, each) for each in epochs] == [None, 9, 9, 8, 7, 7]
    assert [next(checkpoints_before(retained, each), None) for each in epochs] == [
        9, 8, 8, 7, None, None,
    ]  # fmt: skip
    assert checkpoint_with([CheckpointRow(3, None, "damaged")], 1) is None


def test_the_subtask_is_named_for_phases_of_subtasks_only() -> None:
    times = ((7, 1, 0), (1, 8, 0))
    handles = [
        msgspec.structs.replace(
            each, metrics=EpochMetrics(open_ms=opened, process_ms=done, barrier_ms=barrier)
        )
        for each, (opened, done, barrier) in zip(
            operator(9, 9, parallelism=2).handles, times, strict=True
        )
    ]
    phases = ("open state", "user code", "sink", "plan")
    assert [slowest_subtask(handles, each) for each in phases] == [0, 1, None, None]
    assert slowest_subtask([], "user code") is None
