"""Draining: whatever interrupts it, all timers fire and the true watermark is restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, FencedError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import DRAIN_MARKER, DRAINED_COMMIT
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.descriptor import Drain
from pyspark_ckpt.query.stopping import drain
from pyspark_ckpt.query.stopping.drain import MAX_EPOCHS, LastEpochs
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.faults.leases import ALONE, LeaseOf

WATERMARK_MS = 5_000


def alone() -> None:
    """Stand in for the check of a driver that no other follows."""


class PowerCutError(Exception):
    """The driver dies here."""


class Failing(LocalStorage):
    """A storage that dies before or after the n-th change of a file."""

    steps_left: int | None = None

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        self.step()
        return super().write(relative, chunks)

    def delete(self, relatives: Iterable[str]) -> None:
        self.step()
        super().delete(relatives)

    def replace(self, relative: str, content: bytes) -> None:
        Storage.replace(self, relative, content)  # the file is away for a moment

    def step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise PowerCutError


class Query:
    """A stopped query: its logs, and timers by their times. It runs an epoch as Spark would."""

    def __init__(self, storage: Failing, handle: Handle, timers: list[int]) -> None:
        self.storage = storage
        self.log = SparkLog(storage)
        self.handle = msgspec.structs.replace(handle, time_mode=TimeMode.EVENT_TIME)
        self.timers = timers
        self.chain: list[int] = []
        self.fired: list[int] = []
        self.epochs: list[tuple[int, int, int | None]] = []
        Path(storage.root / "offsets").mkdir(parents=True)
        Path(storage.root / "commits").mkdir()
        self.put(4, WATERMARK_MS - 1000, WATERMARK_MS)

    def put(self, epoch: int, watermark_ms: int, next_ms: int) -> None:
        times = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 7, "conf": {"a": "b"}}
        offsets = f"v1\n{json.dumps(times)}\n" + '{"logOffset":3}'
        (self.storage.root / "offsets" / str(epoch)).write_text(offsets)
        self.commit(epoch, next_ms)

    def commit(self, epoch: int, next_ms: int) -> None:
        text = f'v2\n{{"nextBatchWatermarkMs":{next_ms},"stateUniqueIds":{{}}}}'
        (self.storage.root / "commits" / str(epoch)).write_text(text)

    def handles(self, epoch: int) -> list[Handle]:
        timeout_ms = min(self.timers) - 1 if self.timers else None
        return [msgspec.structs.replace(self.handle, timeout_ms=timeout_ms)]

    def run_epoch(self, drain: Drain | None) -> None:
        epoch = self.log.begun_epoch()
        assert epoch == (self.log.committed_epoch() or 0) + 1
        drained_at_ms = self.log.offsets_entry(epoch).metadata["batchWatermarkMs"]
        assert drain is None or drain.epoch == epoch
        self.epochs.append((epoch, drained_at_ms, drain and drain.watermark_ms))
        if self.timers and drained_at_ms > min(self.timers) - 1:
            self.fired += sorted(self.timers)
            self.timers = self.chain[:1]
            self.chain = self.chain[1:]
        self.commit(epoch, drained_at_ms)

    def last_epochs(self) -> LastEpochs:
        return LastEpochs(self.log, self.run_epoch)

    def check_settled(self, epoch: int) -> None:
        assert self.log.committed_epoch() == self.log.begun_epoch() == epoch
        assert self.log.offsets_entry(epoch).metadata["batchWatermarkMs"] == WATERMARK_MS
        assert self.log.offsets_entry(epoch).source_offsets == ('{"logOffset":3}',)
        assert self.log.watermark_ms(epoch) == WATERMARK_MS
        assert "stateUniqueIds" in self.log.commits_entry(epoch)
        assert not list(self.storage.root.glob("_drain*"))


@pytest.fixture
def query(storage: LocalStorage, handle: Handle) -> Query:
    return Query(Failing(storage.root), handle, [9_000, 7_000])


def test_all_timers_fire_in_one_epoch_at_the_true_watermark(query: Query) -> None:
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.fired == [7_000, 9_000]
    assert query.epochs == [(5, 7_000, WATERMARK_MS)]
    query.check_settled(5)


def test_timers_set_by_timers_take_another_epoch(query: Query) -> None:
    query.chain = [20_000, 30_000]
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.fired == [7_000, 9_000, 20_000, 30_000]
    query.check_settled(7)


def test_a_query_without_timers_runs_no_epoch(query: Query) -> None:
    query.timers = []
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.epochs == []
    assert query.log.committed_epoch() == 4


def test_timers_for_ever_are_an_error(query: Query) -> None:
    query.chain = list(range(10_000, 10_000 + 2 * MAX_EPOCHS))
    with pytest.raises(CheckpointAbortedError, match="still set new timers"):
        query.last_epochs().drain(query.handles, 1, ALONE)
    query.check_settled(4 + MAX_EPOCHS)


@pytest.mark.parametrize(("operators", "timer"), [(1, 1 << 62), (2, 10_000_000_000_000)])
def test_a_timer_beyond_sparks_reach_is_an_error(query: Query, operators: int, timer: int) -> None:
    query.timers = [timer]
    with pytest.raises(CheckpointAbortedError, match="later than"):
        query.last_epochs().drain(query.handles, operators, ALONE)
    assert query.epochs == []


STEPS = 16
"""So many times a drain of one epoch changes files: writes, or deletes what is there."""


def test_a_drain_has_so_many_steps(query: Query) -> None:
    query.storage.steps_left = STEPS
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.storage.steps_left == 0


@pytest.mark.parametrize("step", range(STEPS))
def test_a_start_finds_spark_s_files_wherever_the_drain_was_interrupted(
    query: Query, step: int
) -> None:
    """It reads the last committed epoch before it may run one, and runs none twice."""
    query.storage.steps_left = step
    with pytest.raises(PowerCutError):
        query.last_epochs().drain(query.handles, 1, ALONE)
    ran = len(query.epochs)
    query.storage.steps_left = None
    is_over = step == STEPS - 1  # only the marker is left
    assert query.last_epochs().finish_last_step() == (ran == 1 and not is_over)
    committed = query.log.committed_epoch()
    assert committed is not None
    assert query.log.is_committed(committed)
    query.last_epochs().finish_interrupted(ALONE)
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.fired == [7_000, 9_000]
    assert len(query.epochs) == 1
    query.check_settled(5)


def test_an_epoch_that_runs_again_has_the_same_processing_time(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first run may have written output and state by it."""
    times: list[int] = []

    def die(_: Drain | None) -> None:
        times.append(query.log.offsets_entry(5).metadata["batchTimestampMs"])
        raise PowerCutError

    with pytest.raises(PowerCutError):
        LastEpochs(query.log, die).drain(query.handles, 1, ALONE)
    monkeypatch.setattr(drain, "now_ms", lambda: times[0] + 1)
    with pytest.raises(PowerCutError):
        LastEpochs(query.log, die).finish_interrupted(ALONE)
    assert times == [times[0]] * 2


def test_the_commit_that_a_slow_driver_left_is_not_of_this_drain(query: Query) -> None:
    """It was fenced, and another driver has finished its drain."""
    query.last_epochs().drain(query.handles, 1, ALONE)
    left = {"epoch": 5, "commit": "v2\n{}"}
    query.storage.write(DRAINED_COMMIT, [json.dumps(left).encode()])
    query.timers = [30_000]
    query.last_epochs().drain(query.handles, 1, ALONE)
    query.check_settled(6)


def test_a_kept_commit_that_was_changed(query: Query) -> None:
    query.storage.steps_left = 6
    with pytest.raises(PowerCutError):
        query.last_epochs().drain(query.handles, 1, ALONE)
    query.storage.steps_left = None
    (query.storage.root / DRAINED_COMMIT).write_text("{")
    with pytest.raises(CorruptFileError, match=r"_drained: it holds no commit of Spark"):
        query.last_epochs().finish_last_step()


@pytest.mark.parametrize("step", range(STEPS))
def test_the_next_start_finishes_an_interrupted_drain(query: Query, step: int) -> None:
    """The drain is interrupted before each change of a file, and again while it is finished."""
    storage = query.storage
    storage.steps_left = step
    with pytest.raises(PowerCutError):
        query.last_epochs().drain(query.handles, 1, ALONE)
    storage.steps_left = 1
    with suppress(PowerCutError):
        query.last_epochs().finish_interrupted(ALONE)
    storage.steps_left = None
    query.last_epochs().finish_interrupted(ALONE)
    assert not storage.exists(DRAIN_MARKER)
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.fired == [7_000, 9_000]
    query.check_settled(5)


@pytest.mark.parametrize("step", range(STEPS))
def test_another_stop_finishes_an_interrupted_drain(query: Query, step: int) -> None:
    """Its epoch is not one of the query: it has another watermark, by which no state may age."""
    storage = query.storage
    storage.steps_left = step
    with pytest.raises(PowerCutError):
        query.last_epochs().drain(query.handles, 1, ALONE)
    storage.steps_left = None
    query.last_epochs().finish_begun(ALONE)
    assert not storage.exists(DRAIN_MARKER)
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.fired == [7_000, 9_000]
    assert {from_ms for _, _, from_ms in query.epochs} == {WATERMARK_MS}
    query.check_settled(5)


def test_where_no_epoch_can_run_nothing_is_begun(query: Query) -> None:
    last = LastEpochs(query.log, None)
    last.finish_begun(ALONE)
    with pytest.raises(CheckpointAbortedError, match="attached"):
        last.drain(query.handles, 1, ALONE)
    assert not query.storage.exists(DRAIN_MARKER)
    assert query.log.begun_epoch() == 4


def test_an_epoch_that_was_cut_is_finished(query: Query) -> None:
    (query.storage.root / "commits" / "4").rename(query.storage.root / "commits" / "3")
    (query.storage.root / "offsets" / "3").write_text("v1\n{}\n-")
    query.last_epochs().finish_begun(ALONE)
    assert [epoch for epoch, _, _ in query.epochs] == [4]
    query.last_epochs().finish_begun(ALONE)
    assert query.log.committed_epoch() == 4
    assert len(query.epochs) == 1


def test_an_epoch_that_does_not_commit_is_an_error(query: Query) -> None:
    def nothing(_: Drain | None) -> None:
        """The query ends without a commit."""

    last = LastEpochs(query.log, nothing)
    with pytest.raises(CheckpointAbortedError, match="start the query again to finish"):
        last.drain(query.handles, 1, ALONE)
    assert query.storage.exists(DRAIN_MARKER)
    query.last_epochs().finish_interrupted(ALONE)
    query.check_settled(5)


DRAINED_AT_MS = 7_000

CHECKS = 3
"""So many times the driver of a drain of one epoch looks for one that was started after it."""


@pytest.mark.parametrize("number", range(CHECKS))
def test_a_driver_that_is_fenced_leaves_the_drain_to_the_next(query: Query, number: int) -> None:
    checks = [alone] * number + [fenced] * (CHECKS - number)
    with pytest.raises(FencedError):
        query.last_epochs().drain(query.handles, 1, LeaseOf(lambda: checks.pop(0)()))
    assert len(checks) == CHECKS - number - 1  # it does nothing more
    assert query.storage.exists(DRAIN_MARKER) == (number == 2)  # else nothing was begun
    assert len(query.epochs) == max(number - 1, 0)
    assert query.log.watermark_ms(4 + len(query.epochs)) == (7_000 if number == 2 else WATERMARK_MS)
    query.last_epochs().finish_last_step()
    query.last_epochs().finish_interrupted(ALONE)
    query.last_epochs().drain(query.handles, 1, ALONE)
    assert query.fired == [7_000, 9_000]
    assert len(query.epochs) == 1
    query.check_settled(5)


def fenced() -> None:
    msg = "another driver has taken over"
    raise FencedError(msg)


def begin_drain(query: Query, steps: int = 2) -> None:
    """Begin a drain, as a driver does that is killed, or slow, after its marker and decision."""
    query.storage.steps_left = steps
    with pytest.raises(PowerCutError):
        query.last_epochs().drain(query.handles, 1, ALONE)
    query.storage.steps_left = None


def contents(query: Query) -> dict[Path, bytes]:
    files = [path for path in query.storage.root.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize("steps", [1, 2])
def test_a_start_that_is_fenced_leaves_an_interrupted_drain(query: Query, steps: int) -> None:
    """It neither makes void what was not begun, nor runs the epoch of what was."""
    begin_drain(query, steps)
    before = contents(query)
    with pytest.raises(FencedError):
        query.last_epochs().finish_interrupted(LeaseOf(fenced))
    assert query.epochs == []
    assert contents(query) == before


def begin_next(query: Query, watermark_ms: int) -> None:
    """Begin epoch 6 with new input, as Spark does once epoch 5 is committed."""
    times = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 8, "conf": {}}
    text = f"v1\n{json.dumps(times)}\n" + '{"logOffset":4}'
    (query.storage.root / "offsets" / "6").write_text(text)


def test_the_epoch_that_drains_is_committed_by_the_driver_before(query: Query) -> None:
    """Spark has begun the next epoch at its watermark, and the tasks of that one refused it."""

    def run_epoch(drain: Drain | None) -> None:
        query.run_epoch(drain)
        begin_next(query, DRAINED_AT_MS)
        fenced()

    begin_drain(query)
    LastEpochs(query.log, run_epoch).finish_interrupted(ALONE)
    assert query.log.offsets_entry(6).metadata["batchWatermarkMs"] == WATERMARK_MS
    assert query.log.offsets_entry(6).source_offsets == ('{"logOffset":4}',)
    assert query.log.offsets_entry(5).metadata["batchWatermarkMs"] == WATERMARK_MS
    assert query.log.watermark_ms(5) == WATERMARK_MS
    assert not query.storage.exists(DRAIN_MARKER)


def test_an_epoch_that_fails_before_its_commit_is_not_taken_for_drained(query: Query) -> None:
    begin_drain(query)
    with pytest.raises(FencedError):
        LastEpochs(query.log, lambda _: fenced()).finish_interrupted(ALONE)
    assert query.storage.exists(DRAIN_MARKER)


def test_an_epoch_at_the_watermark_of_a_drain_is_told(query: Query) -> None:
    """No task was called, because all its rows were late: each start refuses the location."""

    def run_epoch(drain: Drain | None) -> None:
        query.run_epoch(drain)
        begin_next(query, DRAINED_AT_MS)
        query.commit(6, DRAINED_AT_MS)

    begin_drain(query)
    with pytest.raises(CheckpointAbortedError, match="before 6"):
        LastEpochs(query.log, run_epoch).finish_interrupted(ALONE)
    with pytest.raises(CheckpointAbortedError, match="before 6"):
        query.last_epochs().finish_last_step()
    assert query.storage.exists(DRAIN_MARKER)


@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("finishes", [LastEpochs.finish_last_step, LastEpochs.finish_interrupted])
def test_a_drain_that_was_not_begun_is_void(
    query: Query, epochs: int, finishes: Callable[..., object]
) -> None:
    """Its driver was fenced, or killed, after the marker; others have run epochs since."""
    begin_drain(query, steps=1)
    for epoch in range(5, 5 + epochs):
        query.put(epoch, WATERMARK_MS, WATERMARK_MS + 1_000)
    before = {path.name: path.read_text() for path in query.storage.root.rglob("*/[0-9]")}
    finishes(query.last_epochs(), *([ALONE] if finishes is LastEpochs.finish_interrupted else []))
    assert not list(query.storage.root.glob(f"{DRAIN_MARKER}*"))
    assert query.epochs == []
    assert {p.name: p.read_text() for p in query.storage.root.rglob("*/[0-9]")} == before


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_slow_driver_does_not_begin_a_drain_that_was_made_void(
    query: Query, is_removed: bool
) -> None:
    """It is paused between its look for newer drivers and its decision."""
    checks: list[bool] = []

    def paused() -> None:
        checks.append(True)
        if len(checks) == 2:
            if is_removed:
                query.last_epochs().finish_last_step()
            else:  # the newer driver is about to remove the marker
                marker = json.loads(query.storage.read(DRAIN_MARKER))
                query.storage.write(f"{DRAIN_MARKER}-{marker['token']}", [b"void\n"])

    with pytest.raises(FencedError, match="before the drain began"):
        query.last_epochs().drain(query.handles, 1, LeaseOf(paused))
    assert query.epochs == []
    assert query.log.begun_epoch() == 4
    query.last_epochs().finish_interrupted(ALONE)
    assert not query.storage.exists(DRAIN_MARKER)
    assert query.epochs == []
