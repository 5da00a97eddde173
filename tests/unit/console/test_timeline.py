"""The time of an epoch by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from pyspark_ckpt.console.data.timeline import NOTES_SHOWN, _epochs, phases_of
from pyspark_ckpt.history.run_log import EpochRecord, OperatorEpoch, RunNote

EPOCH = EpochRecord(
    epoch=7, began_at_ms=0, duration_ms=1000, rows=1,
    phases_ms={
        "latestOffset": 20, "getBatch": 1, "walCommit": 30, "queryPlanning": 40, "addBatch": 800,
        "commitOffsets": 50,
    },
)  # fmt: skip


def done(began_ms: int, **phases: int) -> OperatorEpoch:
    found = dict.fromkeys(("open_ms", "read_ms", "user_ms", "write_ms", "barrier_ms"), 0) | phases
    return OperatorEpoch(uid="op", epoch=7, began_ms=began_ms, **found)


def test_the_time_of_an_epoch_is_divided_without_a_gap() -> None:
    operators = [
        done(171, open_ms=10, read_ms=20, user_ms=300, write_ms=40, barrier_ms=50),
        done(400, user_ms=100),
    ]
    found = phases_of(EPOCH, operators)
    assert found == {
        "plan": 61, "shuffle": 100, "open state": 10, "read": 20, "user code": 400, "write": 40,
        "barrier": 50, "sink": 180, "tasks and sink": 0, "Spark's logs": 80, "other": 59,
    }  # fmt: skip
    assert sum(found.values()) == EPOCH.duration_ms


def test_an_epoch_whose_operators_are_not_known_is_not_divided() -> None:
    found = phases_of(EPOCH, [])
    assert found["tasks and sink"] == 800
    assert (found["user code"], found["sink"], found["shuffle"]) == (0, 0, 0)
    assert sum(found.values()) == EPOCH.duration_ms


@pytest.mark.parametrize(("began_ms", "shuffle"), [(-5_000, 0), (10**9, 500)])
def test_a_host_whose_clock_is_wrong_does_not_make_a_phase_longer_than_its_epoch(
    began_ms: int, shuffle: int
) -> None:
    found = phases_of(EPOCH, [done(began_ms, user_ms=300)])
    assert (found["shuffle"], found["sink"]) == (shuffle, 500 - shuffle)
    assert sum(found.values()) == EPOCH.duration_ms


@pytest.mark.parametrize(("notes_before", "first"), [(0, [3, 7]), (NOTES_SHOWN - 3, [7])])
def test_the_first_epoch_of_each_run_is_marked(notes_before: int, first: list[int]) -> None:
    """The notes of an old run may not be all of it, so its first epoch is not known."""

    def note(run: str, *epochs: int) -> RunNote:
        return RunNote(
            run_id=run,
            at_ms=0,
            epochs=tuple(
                EpochRecord(epoch=each, began_at_ms=each, duration_ms=1, rows=1) for each in epochs
            ),
        )

    notes = [note("a")] * notes_before + [note("a", 3, 4), note("a", 5), note("b", 8, 7)]
    rows = _epochs(notes, ())
    assert [row.record.epoch for row in rows] == [3, 4, 5, 7, 8]
    assert [row.record.epoch for row in rows if row.is_first] == first


def note_of(run: str, epochs: Sequence[int], done: Mapping[int, int]) -> RunNote:
    """Return a note with epochs, and the time that the user's code took in some."""
    return RunNote(
        run_id=run,
        at_ms=0,
        epochs=tuple(msgspec.structs.replace(EPOCH, epoch=each) for each in epochs),
        operator_epochs=tuple(
            OperatorEpoch(
                uid=uid, epoch=epoch, began_ms=91, open_ms=0, read_ms=0, user_ms=user_ms,
                write_ms=0, barrier_ms=0,
            )
            for uid in ("first", "second")
            for epoch, user_ms in done.items()
        ),
    )  # fmt: skip


def user_ms(notes: list[RunNote]) -> dict[int, int]:
    rows = _epochs(notes, ())
    assert all(sum(row.phases_ms.values()) == EPOCH.duration_ms for row in rows)
    return {row.record.epoch: row.phases_ms["user code"] for row in rows}


def test_epochs_that_a_restarted_query_describes_again_count_once() -> None:
    """A handle has the phases of epochs before the restart; one of them no note has described."""
    notes = [
        note_of("a", [3, 4, 5], {3: 30, 4: 40}),
        note_of("b", [6], {3: 30, 4: 40, 5: 50, 6: 60}),
    ]
    assert user_ms(notes) == {3: 60, 4: 80, 5: 100, 6: 120}


def test_what_was_done_before_a_rollback_is_not_of_the_new_epoch() -> None:
    before = [note_of("a", [3, 4], {3: 30, 4: 40})]
    without_checkpoint = [*before, note_of("b", [4], {})]
    assert user_ms(without_checkpoint) == {3: 60, 4: 0}
    assert user_ms([*without_checkpoint, note_of("b", [5], {4: 7, 5: 8})]) == {3: 60, 4: 14, 5: 16}


def test_an_epoch_may_be_described_before_spark_has_reported_it() -> None:
    assert user_ms([note_of("a", [], {3: 30}), note_of("a", [3], {})]) == {3: 60}
