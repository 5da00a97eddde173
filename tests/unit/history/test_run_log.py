"""The log of runs: bounded, in its order, and readable whatever somebody put into it."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.clock import ms_of_text
from pyspark_ckpt.formats.counters import EpochPhases
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history import run_log
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.history.run_log import (
    RUNS,
    EpochRecord,
    RecordedRuns,
    RunEnded,
    RunLog,
    RunNote,
    RunStarted,
    decode_run_record,
    encode_run_record,
    run_record_name,
)
from pyspark_ckpt.query.run_recorder import RunRecorder, epoch_record, settings_in_force
from pyspark_ckpt.settings import read_settings
from pyspark_ckpt.storage.open import LocalStorage, Storage


def start(run: str = "r") -> RunStarted:
    return RunStarted(run_id=run, at_ms=1, query_id="q")


def note(epoch: int) -> RunNote:
    record = EpochRecord(epoch=epoch, began_at_ms=0, duration_ms=1, rows=1)
    return RunNote(run_id="r", at_ms=2, epoch=epoch, epochs=(record,))


def alive(at_ms: int) -> RunNote:
    return RunNote(run_id="r", at_ms=at_ms)


def test_the_oldest_notes_go_and_signs_of_life_are_replaced(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "KEPT_NOTES", 3)
    log = RunLog(storage)
    log.write(start())
    for number in range(5):
        log.write(note(number))
        log.write(alive(number))
    found = RecordedRuns(storage)
    assert [each.epoch for each in found.notes(10) if not each.is_empty] == [2, 3, 4]
    assert [each.at_ms for each in found.notes(10) if each.is_empty] == [4]
    assert found.starts_and_ends() == [start()], "starts do not go with notes"


def test_another_start_continues_the_numbers_and_the_bound(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "KEPT_NOTES", 2)
    RunLog(storage).write(note(0))
    RunLog(storage).write(note(1))
    second = RunLog(storage)
    second.write(note(2))
    assert [each.epoch for each in RecordedRuns(storage).notes(10)] == [1, 2]


def test_the_first_start_stays(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "KEPT_RUNS", 3)
    assert RecordedRuns(storage).first_start() is None
    RunLog(storage).write(note(0))
    for number in range(5):  # each by its own driver
        RunLog(storage).write(start(str(number)))
    found = RecordedRuns(storage)
    assert [each.run_id for each in found.starts_and_ends()] == ["0", "3", "4"]
    assert found.first_start() == start("0")


def test_a_record_that_is_damaged_foreign_or_newer_is_left_out(storage: Storage) -> None:
    RunLog(storage).write(start())
    newer = encode_run_record(RunEnded(run_id="r", at_ms=1, version=99))
    for data in (b"{", b"\xff\xfe", b"[]", newer, b'{"what": "other"}', b"[" * 100_000):
        storage.write(f"{RUNS}/{run_record_name(9, RunEnded(run_id='r', at_ms=1))}", [data])
    storage.write(f"{RUNS}/something.json", [b"{}"])
    assert RecordedRuns(storage).starts_and_ends() == [start()]


def test_a_start_may_have_fields_of_an_earlier_or_a_later_version() -> None:
    fields = msgspec.json.decode(encode_run_record(start()))
    assert not fields.pop("outlives_client")
    assert decode_run_record(msgspec.json.encode(fields)) == start()
    assert decode_run_record(msgspec.json.encode({**fields, "more": 1})) == start()


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("not a directory")
    assert not RunLog(LocalStorage(tmp_path)).write(start())


def report(epoch: int, duration_ms: int) -> dict[str, object]:
    return {
        "batchId": epoch,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "durationMs": {"addBatch": duration_ms - 1, "triggerExecution": duration_ms},
        "sources": [{"numInputRows": 3}, {"numInputRows": -1}],
    }


def test_a_note_describes_the_slowest_epochs_and_sums_the_others(storage: Storage) -> None:
    asked: list[int | None] = []
    reports = [report(epoch, 10 + epoch % 7) for epoch in range(60)]

    def progress(epoch: int | None) -> list[dict[str, object]]:
        asked.append(epoch)
        return reports if epoch is None else []

    recorder = RunRecorder(storage, start(), progress, lambda _: None)
    recorder.start()
    recorder.end(ValueError("why"))
    (found,) = RecordedRuns(storage).notes(10)
    assert len(found.epochs) == 20
    assert found.other_epochs == 40
    assert sum(each.duration_ms for each in found.epochs) + found.other_ms == sum(
        10 + epoch % 7 for epoch in range(60)
    )
    assert min(each.duration_ms for each in found.epochs) >= 14
    assert found.epoch == 59
    ended = RecordedRuns(storage).starts_and_ends()[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.error, ended.error_kind) == ("why", "ValueError")


def test_a_note_describes_the_slowest_epochs_of_an_operator_once(
    storage: Storage, snapshot: CheckpointMetadata
) -> None:
    """Checkpoints have epochs in common; each epoch is described once."""
    retained: dict[int, CheckpointMetadata] = {}
    recorder = RunRecorder(storage, start(), lambda _: [], retained.get)
    (operator,) = snapshot.operators
    for number, numbers in enumerate((range(30), range(20, 50), range(45, 60))):
        phases = tuple(EpochPhases(each, 0, 0, 0, each % 10, 0, 0) for each in numbers)
        handles = (msgspec.structs.replace(operator.handles[0], phases=phases),)
        operators = (msgspec.structs.replace(operator, handles=handles),)
        retained[number] = msgspec.structs.replace(snapshot, operators=operators)
        recorder.onCheckpointCompleted(CompletedCheckpoint(number, "", numbers[-1], 0, 0, 0))
    recorder.start()
    recorder.end(None)
    (note,) = RecordedRuns(storage).notes(10)
    found = [(each.epoch, each.user_ms) for each in note.operator_epochs]
    slower = [(each, each % 10) for each in range(60) if each % 10 > 3]
    assert len(found) == 40
    assert set(slower) <= set(found)
    assert sorted(set(found)) == found


def test_spark_that_cannot_answer_is_not_asked_at_the_end(storage: Storage) -> None:
    never = threading.Event()

    def hangs(_: int | None) -> list[dict[str, object]]:
        never.wait()
        return []

    recorder = RunRecorder(storage, start(), hangs, lambda _: None)
    recorder.start()
    recorder.end(None, asks_spark=False)
    assert [type(each) for each in RecordedRuns(storage).starts_and_ends()] == [
        RunStarted,
        RunEnded,
    ]


FAR = "+57982-06-12T00:00:00.000Z"
"""A watermark of a program that takes milliseconds for seconds, as Spark shows it."""


def test_a_run_with_a_watermark_of_a_far_year_is_recorded(storage: Storage) -> None:
    report = {
        "batchId": 3,
        "timestamp": "2026-01-05T03:00:12.345Z",
        "durationMs": {"triggerExecution": 120},
        "eventTime": {"watermark": FAR},
    }
    recorder = RunRecorder(
        storage, start(), lambda epoch: [report] if epoch is None else [], lambda _: None
    )
    recorder.start()
    recorder.end(ValueError("no"))
    found = RecordedRuns(storage)
    assert [type(each) for each in found.starts_and_ends()] == [RunStarted, RunEnded]
    (epoch,) = found.notes(1)[0].epochs
    assert (epoch.began_at_ms, epoch.watermark_ms) == (1_767_582_012_345, ms_of_text(FAR))


def test_a_failure_behind_the_end_is_the_end(storage: Storage) -> None:
    """A restart in place ends the run before it is known that no other one begins."""
    recorder = RunRecorder(storage, start(), lambda _: [], lambda _: None)
    recorder.start()
    recorder.failed(ValueError("before the end: it gets the error"))
    recorder.end(None)
    recorder.failed(ValueError("the restart failed"))
    recorder.failed(ValueError("the first one counts"))
    _, *ends = RecordedRuns(storage).starts_and_ends()
    assert [each.error for each in ends if isinstance(each, RunEnded)] == [
        None,
        "the restart failed",
    ]


def test_a_report_that_is_not_understood_ends_no_record(storage: Storage) -> None:
    recorder = RunRecorder(storage, start(), lambda _: [{"batchId": 1}], lambda _: None)
    recorder.start()
    recorder.end(None)
    assert [type(each) for each in RecordedRuns(storage).starts_and_ends()] == [
        RunStarted,
        RunEnded,
    ]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("2026-01-05T03:00:12.345Z", 1_767_582_012_345),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0000-01-01T00:00:00.000Z", -62_167_219_200_000),
        ("-0001-01-01T00:00:00.000Z", -62_198_755_200_000),
        ("+10000-01-01T00:00:00.000Z", 253_402_300_800_000),
    ],
)
def test_times_of_sparks_progress(text: str, ms: int) -> None:
    assert ms_of_text(text) == ms


def test_an_epoch_has_the_rows_of_all_sources() -> None:
    found = epoch_record(report(3, 8))
    assert (found.epoch, found.rows, found.duration_ms) == (3, 3, 8)
    assert found.phases_ms == {"addBatch": 7}
    assert found.began_at_ms == 1_767_323_045_678


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://user:secret@bucket/x", "s3://***@bucket/x"),
        ("s3://bucket/x?sig=secret", "s3://bucket/x?***"),
    ],
)
def test_secrets_in_urls_are_not_recorded(url: str, shown: str) -> None:
    key = "spark.ckpt.execution.checkpointing.dir"
    found = settings_in_force(read_settings({key: url}, {}))
    (setting,) = [each for each in found if each.key == key]
    assert setting.value == shown
