"""The sweep removes expired and deleted entries, a stretch at a time, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.state import removal as expiry_sweep
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.table.catalog import FREE
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.operator.time import EpochClock
from tests.unit.operator.subtask_epochs import NUMBER, TEXT, SubtaskEpochs

MANY = [(encode_key_group(number // 100), b"%04d" % number) for number in range(1000)]
STRETCH = 100
TTL_MS = 10
LONG_MS = 10_000


class Reads:
    """A backend that counts the entries that are scanned."""

    def __init__(self, epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries = 0
        scan = epochs.backend.scan

        def counted(prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            for entry in scan(prefix, start):
                self.entries += 1
                yield entry

        monkeypatch.setattr(epochs.backend, "scan", counted)


@pytest.fixture
def reads(subtask_epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch) -> Reads:
    monkeypatch.setattr(expiry_sweep, "LEAST_ENTRIES", STRETCH)
    subtask_epochs.limit_bytes = max(subtask_epochs.limit_bytes, 100_000)
    return Reads(subtask_epochs, monkeypatch)


def fill(epochs: SubtaskEpochs, name: str, ttl_ms: int | None) -> None:
    epochs.set_time(1000)
    state = epochs.begin(keys=MANY).getValueState(name, NUMBER, ttl_ms)
    for position in range(len(MANY)):
        epochs.to_key(position)
        state.update((position,))
    epochs.end()


def test_the_sweep_keeps_up_with_writes_in_memory_and_on_disk(
    subtask_epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_sweep, "LEAST_ENTRIES", 0)
    subtask_epochs.limit_bytes = max(subtask_epochs.limit_bytes, 20_000)
    for epoch in range(6):
        subtask_epochs.set_time(1000 * (epoch + 1))
        keys = [(group, b"%d-%s" % (epoch, key)) for group, key in MANY]
        state = subtask_epochs.begin(keys=keys).getValueState("v", NUMBER, TTL_MS)
        for position in range(len(keys)):
            subtask_epochs.to_key(position)
            state.update((position,))
        assert subtask_epochs.writes.is_spilled == (subtask_epochs.limit_bytes == 20_000)
        subtask_epochs.end()
        # Those of the epoch before are expired.
        assert len(subtask_epochs.entries()) == len(keys)


def test_expired_entries_go_in_stretches_and_no_epoch_reads_them_all(
    subtask_epochs: SubtaskEpochs, reads: Reads
) -> None:
    fill(subtask_epochs, "v", TTL_MS)
    subtask_epochs.set_time(2000)
    left = []
    for _ in range(len(MANY) // STRETCH + 1):
        reads.entries = 0
        subtask_epochs.begin(keys=MANY).getValueState("v", NUMBER, TTL_MS)
        subtask_epochs.end()
        assert reads.entries <= STRETCH + 1
        left.append(len(subtask_epochs.entries()))
        reads.entries = 0
    assert left[0] == len(MANY) - STRETCH
    assert left[-1] == 0
    assert left == sorted(left, reverse=True)


def test_the_stretch_grows_with_what_the_epoch_writes(
    subtask_epochs: SubtaskEpochs, reads: Reads
) -> None:
    fill(subtask_epochs, "v", TTL_MS)
    subtask_epochs.set_time(2000)
    state = subtask_epochs.begin(keys=MANY).getValueState("v", NUMBER, TTL_MS)
    for position in range(50):
        subtask_epochs.to_key(position)
        state.update((7,))
    reads.entries = 0
    subtask_epochs.end()
    assert STRETCH < reads.entries <= STRETCH + 2 * 50 + 1
    assert len(subtask_epochs.entries()) == len(MANY) - (STRETCH + 2 * 50 - 50)


def test_live_and_rewritten_entries_and_other_states_stay(
    subtask_epochs: SubtaskEpochs,
) -> None:
    subtask_epochs.set_time(1000)
    handle = subtask_epochs.begin()
    handle.getValueState("plain", NUMBER).update((1,))
    handle.getOperatorListState("o", NUMBER).appendValue((2,))
    handle.registerTimer(3)
    aged = handle.getMapState("m", TEXT, NUMBER, TTL_MS)
    for name in ("dead", "rewritten", "removed"):
        aged.updateValue((name,), (1,))
    subtask_epochs.end()
    subtask_epochs.set_time(1005)
    handle = subtask_epochs.begin()
    handle.getMapState("m", TEXT, NUMBER, TTL_MS).updateValue(("alive",), (1,))
    subtask_epochs.end()
    subtask_epochs.set_time(1010)
    handle = subtask_epochs.begin()
    aged = handle.getMapState("m", TEXT, NUMBER, TTL_MS)
    aged.updateValue(("rewritten",), (2,))
    aged.removeKey(("removed",))
    subtask_epochs.end()
    handle = subtask_epochs.begin()
    assert handle.getValueState("plain", NUMBER).get() == (1,)
    assert list(handle.getOperatorListState("o", NUMBER).get()) == [(2,)]
    assert list(handle.listTimers()) == [3]
    assert list(handle.getMapState("m", TEXT, NUMBER, TTL_MS).iterator()) == [
        (("alive",), (1,)), (("rewritten",), (2,)),
    ]  # fmt: skip
    subtask_epochs.end()
    assert len(subtask_epochs.entries()) == 1 + 2 + 2 + 2


def test_a_lists_first_entry_stays_as_long_as_a_chunk_does(subtask_epochs: SubtaskEpochs) -> None:
    """It may expire before a chunk, if the time in which they age was changed."""
    in_event_time = StateTtlConfig(TTL_MS, time="event")

    def at(watermark_ms: int, ttl: int | StateTtlConfig = in_event_time) -> ListState:
        subtask_epochs.clock = EpochClock(TimeMode.PROCESSING_TIME, 1000, watermark_ms)
        return subtask_epochs.begin().getListState("l", NUMBER, ttl)

    ahead = at(900)
    subtask_epochs.to_key(0, event_time_ms=2000)
    ahead.appendValue((1,))
    subtask_epochs.end()
    at(900, TTL_MS).appendValue((2,))  # the first entry has a processing time from now on
    subtask_epochs.end()
    assert list(at(905).get()) == [(1,), (2,)]  # which counts as 905 in event time
    subtask_epochs.end()
    for _ in range(2):
        state = at(1500)
        assert state.exists()
        assert list(state.get()) == [(1,)]
        subtask_epochs.end()
    assert len(subtask_epochs.entries()) == 2
    at(1505).appendValue((3,))
    subtask_epochs.end()
    assert list(at(1509).get()) == [(1,), (3,)]
    subtask_epochs.end()
    assert list(at(1515).get()) == [(1,)]
    subtask_epochs.end()
    assert not at(2010).exists()
    subtask_epochs.end()
    assert subtask_epochs.entries() == {}


def test_a_list_longer_than_a_stretch_goes_with_its_first_entry_last(
    subtask_epochs: SubtaskEpochs, reads: Reads
) -> None:
    subtask_epochs.set_time(1000)
    for number in range(3 * STRETCH):
        subtask_epochs.begin().getListState("l", NUMBER, LONG_MS).appendValue((number,))
        subtask_epochs.end()
    subtask_epochs.set_time(1000 + LONG_MS)
    header = min(subtask_epochs.entries())
    left = []
    while entries := subtask_epochs.entries():
        assert header in entries
        left.append(len(entries))
        assert len(left) < 10
        reads.entries = 0
        subtask_epochs.begin().getListState("l", NUMBER, LONG_MS)
        subtask_epochs.end()
        assert reads.entries <= STRETCH + 1
    assert len(left) >= 3


@pytest.mark.parametrize("ttl", [TTL_MS, StateTtlConfig(TTL_MS, time="event")])
def test_a_state_that_is_no_longer_asked_for_expires_all_the_same(
    subtask_epochs: SubtaskEpochs, ttl: int | StateTtlConfig
) -> None:
    subtask_epochs.set_time(1000)
    subtask_epochs.begin().getMapState("m", TEXT, NUMBER, ttl).updateValue(("a",), (1,))
    subtask_epochs.end()
    without_watermark = EpochClock(TimeMode.PROCESSING_TIME, 1000 + TTL_MS - 1, None)
    for clock, left in (
        (without_watermark, 1),
        (EpochClock(TimeMode.NONE, 1000 + TTL_MS - 1, 1000 + TTL_MS - 1), 1),
        (EpochClock(TimeMode.NONE, 1000 + TTL_MS, 1000 + TTL_MS), 0),
    ):
        subtask_epochs.clock = clock
        subtask_epochs.begin()
        subtask_epochs.end()
        assert len(subtask_epochs.entries()) == left


def test_without_expiring_or_deleted_states_nothing_is_read(
    subtask_epochs: SubtaskEpochs, reads: Reads
) -> None:
    fill(subtask_epochs, "v", None)
    subtask_epochs.sweep_from = b"\x00\x05"
    subtask_epochs.begin().getValueState("v", NUMBER)
    subtask_epochs.end()
    assert reads.entries == 0
    assert subtask_epochs.sweep_from == b""


def test_a_deleted_state_goes_bit_by_bit_and_then_its_place_is_free(
    subtask_epochs: SubtaskEpochs, reads: Reads
) -> None:
    fill(subtask_epochs, "gone", None)
    handle = subtask_epochs.begin(keys=MANY)
    handle.deleteIfExists("gone")
    again = handle.getValueState("gone", NUMBER)
    assert not again.exists()
    again.update((7,))
    subtask_epochs.end()
    epochs = 1
    while subtask_epochs.states[0].kind != FREE:
        reads.entries = 0
        assert subtask_epochs.begin(keys=MANY).getValueState("gone", NUMBER).get() == (7,)
        subtask_epochs.end()
        assert reads.entries <= STRETCH + 10
        epochs += 1
        assert epochs < 30
    assert epochs > len(MANY) // STRETCH
    assert len(subtask_epochs.entries()) == 1
    handle = subtask_epochs.begin(keys=MANY)
    new = handle.getListState("new", NUMBER)
    assert not new.exists()
    subtask_epochs.end()
    assert [state.name for state in subtask_epochs.states] == ["new", "gone"]


def test_what_is_written_to_a_state_as_it_is_deleted_goes_too(
    subtask_epochs: SubtaskEpochs,
) -> None:
    handle = subtask_epochs.begin()
    state = handle.getListState("l", NUMBER, TTL_MS)
    state.appendValue((1,))
    handle.deleteIfExists("l")
    with pytest.raises(StateUseError, match="'l'"):
        state.appendValue((2,))
    for _ in range(3):
        subtask_epochs.end()
        handle = subtask_epochs.begin()
    assert subtask_epochs.entries() == {}
    assert [state.kind for state in subtask_epochs.states] == [FREE]
    assert not handle.getListState("l", NUMBER).exists()
    subtask_epochs.drop()


def test_a_deleted_operator_state_goes_as_well(subtask_epochs: SubtaskEpochs) -> None:
    handle = subtask_epochs.begin()
    subtask_epochs.leave_key()
    handle.getOperatorListState("o", NUMBER).appendValue((1,))
    handle.getBroadcastState("b", TEXT, NUMBER).updateValue(("a",), (1,))
    handle.getBroadcastState("kept", TEXT, NUMBER).updateValue(("a",), (1,))
    subtask_epochs.end()
    handle = subtask_epochs.begin()
    handle.deleteIfExists("o")
    handle.deleteIfExists("b")
    subtask_epochs.end()
    subtask_epochs.begin()
    subtask_epochs.end()
    assert len(subtask_epochs.entries()) == 1
    assert [state.kind for state in subtask_epochs.states] == [FREE, FREE, "broadcast"]


def test_an_attempt_that_is_given_up_sweeps_nothing(subtask_epochs: SubtaskEpochs) -> None:
    handle = subtask_epochs.begin()
    handle.getValueState("v", NUMBER).update((1,))
    subtask_epochs.end()
    before = subtask_epochs.entries(), subtask_epochs.states
    subtask_epochs.begin().deleteIfExists("v")
    subtask_epochs.drop()
    assert (subtask_epochs.entries(), subtask_epochs.states) == before
    assert subtask_epochs.begin().getValueState("v", NUMBER).get() == (1,)
    subtask_epochs.drop()
