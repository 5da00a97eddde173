"""State moves to any number of subtasks and back; nothing is lost, doubled or changed."""

from __future__ import annotations

import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import CorruptFileError, IncompatibleStateError, StateValueError
from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import (
    BaseFile,
    BaseSnapshot,
    Handle,
    StateDescriptor,
    TtlDescriptor,
)
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.modes import TimeMode, TtlTime, TtlUpdate, TtlVisibility
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.rows.keys import KeyPlaces, key_groups_of
from pyspark_ckpt.operator.schema.report import ROWS_STATE
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.operator_states import RAW_CHUNK_BYTES, RawState
from pyspark_ckpt.operator.table.stored_keys import (
    TIME_INDEX,
    encode_key_group,
    encode_time,
    is_keyed,
)
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.operator.table.writes import DEFAULT_LIMIT_BYTES
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.restore.planned import MovedOperator
from pyspark_ckpt.restore.rescale import rewrite_of
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stored.redistribution import Entry, Redistribution
from pyspark_ckpt.stored.rewrite import StateRewrite
from pyspark_ckpt.stored.state import StoredState
from pyspark_ckpt.stored.unify import UnifiedStates
from pyspark_ckpt.stored.writing import TWICE_STORED, Destination, Twice, write_base
from pyspark_ckpt.values.codec import key_encoder
from state_backends import Changes, open_backend
from tests import rewrites
from tests.unit.operator.subtask_epochs import BOTH, IN_MEMORY, NUMBER, TEXT, SubtaskEpochs

PARALLELISMS = (1, 2, 3, 4, 5, 7, 16, 128)
MAX = 128
encode = key_encoder()
KEYS = [(f"k{number}",) for number in range(40)]
NOW_MS = 1_000_000
FIRST_MS = -(1 << 63)
TTL = StateTtlConfig(1000)

State = dict[bytes, bytes]


def key_group_of(key: bytes, max_parallelism: int) -> int:
    return KeyPlaces(TEXT, max_parallelism).group_of_stored(key)


class Subtask:
    """An old subtask: its handle and its stored entries."""

    def __init__(self, handle: Handle, entries: State) -> None:
        self.handle, self.entries = handle, entries


def handle_of(
    subtask: int, parallelism: int, states: tuple[StateDescriptor, ...], maximum: int = MAX,
    epoch: int = 1,
) -> Handle:  # fmt: skip
    return Handle(
        query_id="q", uid="u", subtask=subtask, parallelism=parallelism, max_parallelism=maximum,
        epoch=epoch, key_schema=TEXT.json(), states=states, time_mode=TimeMode.PROCESSING_TIME,
    )  # fmt: skip


def fill(subtask: int, parallelism: int, directory: Path, maximum: int = MAX) -> Subtask | None:
    """Write states of every kind for the subtask's own keys; none if there are none."""
    encoded = [(key_group_of(encode(key), maximum), encode(key)) for key in KEYS]
    groups = key_groups_of(subtask, parallelism, maximum)
    keys = sorted((encode_key_group(group), key) for group, key in encoded if group in groups)
    if not keys:
        return None
    with open_backend("heap", directory, create=True) as backend:
        epochs = SubtaskEpochs(backend, DEFAULT_LIMIT_BYTES, Path(mkdtemp(dir=IN_MEMORY)))
        handle = epochs.begin(keys=keys)
        n, items = handle.getValueState("n", NUMBER), handle.getListState("items", NUMBER, TTL)
        tally = handle.getMapState("tally", TEXT, NUMBER)
        seen = handle.getOperatorListState("seen", NUMBER)
        shared = handle.getOperatorListState("shared", NUMBER, "union")
        rules = handle.getBroadcastState("rules", TEXT, NUMBER)
        epochs.leave_key()
        for number in range(5):
            seen.appendValue((100 * subtask + number,))
        shared.appendValue((subtask,))
        rules.updateValue(("r",), (1,))
        epochs.table.write_below(b"\x82\x00", b"\x82\x00" + bytes(6), b"raw %d" % subtask)
        for position in range(len(keys)):
            epochs.to_key(position)
            number = zlib.crc32(keys[position][1])
            n.update((number,))
            items.appendList([(number,), (-number,)])
            tally.updateValue(("a",), (number,))
            tally.updateValue(("b",), (number,))
            handle.registerTimer(number)
            handle.registerTimer(NOW_MS)
        epochs.end()
        return Subtask(handle_of(subtask, parallelism, epochs.states, maximum), epochs.entries())


def filled(parallelism: int, directory: Path, maximum: int = MAX) -> list[Subtask]:
    made = [
        fill(number, parallelism, directory / f"{parallelism}-{number}", maximum)
        for number in range(parallelism)
    ]
    return [subtask for subtask in made if subtask is not None]


def stored(subtask: Subtask, storage: Storage) -> Handle:
    """Return the handle of a subtask whose entries are in a base snapshot."""
    keys = sorted(subtask.entries)
    part = Changes(keys, [subtask.entries[key] for key in keys])
    file = storage.write(f"old-{subtask.handle.subtask}", encode_changes([part]))
    base = BaseSnapshot("1", 1, len(keys), (BaseFile("state.chg", file),))
    return msgspec.structs.replace(subtask.handle, base=base)


def moving(
    subtasks: Sequence[Subtask],
    parallelism: int,
    storage: Storage,
    maximum: int = MAX,
    wanted: Sequence[StateDescriptor] = (),
    migrations: dict[str, Migration] | None = None,
    time_mode: TimeMode = TimeMode.PROCESSING_TIME,
) -> StateRewrite:
    """Return the job of a restore that moves the state of some subtasks."""
    handles = tuple(stored(each, storage) for each in subtasks)
    descriptor = OperatorDescriptor(
        uid="u", parallelism=parallelism, max_parallelism=maximum, key_schema=TEXT.json(),
        time_mode=time_mode,
    )  # fmt: skip
    metadata = OperatorMetadata(
        operator_id=0, uid="u", parallelism=handles[0].parallelism,
        max_parallelism=handles[0].max_parallelism, key_schema=TEXT.json(), backend="heap",
        handles=handles, time_mode=handles[0].time_mode,
    )  # fmt: skip
    states = UnifiedStates("u", handles, wanted, migrations)
    operator = MovedOperator(
        uid="u", operator_id=0, wanted=descriptor, stored=metadata, states=states, shares=None
    )
    return rewrite_of(operator, storage.url, storage.child("new").url, "q", 1)


def read(handle: Handle, storage: Storage) -> Subtask:
    parts = StoredState(storage.child("new"), handle).scan()
    pairs = ((part.keys.to_pylist(), part.values.to_pylist()) for part in parts)
    entries = [entry for pair in pairs for entry in zip(*pair, strict=True)]
    assert [key for key, _ in entries] == sorted({key for key, _ in entries})
    assert handle.base is not None
    assert handle.base.entries == len(entries)
    return Subtask(handle, dict(entries))


def move(
    subtasks: Sequence[Subtask],
    parallelism: int,
    maximum: int = MAX,
    wanted: Sequence[StateDescriptor] = (),
    migrations: dict[str, Migration] | None = None,
) -> list[Subtask]:
    """Return the new subtasks that get entries."""
    with TemporaryDirectory(dir=IN_MEMORY) as name:
        storage = LocalStorage(Path(name))
        rewrite = moving(subtasks, parallelism, storage, maximum, wanted, migrations)
        return [read(handle, storage) for handle in rewrites.run(rewrite)]


def keyed(subtasks: Iterable[Subtask]) -> Counter[Entry]:
    """Return all entries of keys and timers, duplicates included."""
    return Counter(
        entry
        for subtask in subtasks
        for entry in subtask.entries.items()
        if is_keyed(entry[0]) or entry[0].startswith(b"\x80")
    )


class Opened:
    """The states of a subtask, through the library's own classes."""

    def __init__(self, subtask: Subtask, directory: Path) -> None:
        self.backend = open_backend("rocksdb", directory, create=True)
        entries = subtask.entries
        self.backend.load([Changes(list(entries), list(entries.values()))], "1")
        self.table = StateTable(self.backend)
        clock = EpochClock(TimeMode.PROCESSING_TIME, NOW_MS, None)
        self.handle = ProcessorHandle(self.table, clock, "here", subtask.handle.states, {})

    def lists(self) -> tuple[list[int], list[int], dict[str, int], list[bytes]]:
        seen = self.handle.getOperatorListState("seen", NUMBER).get()
        shared = self.handle.getOperatorListState("shared", NUMBER, "union").get()
        rules = self.handle.getBroadcastState("rules", TEXT, NUMBER).iterator()
        raw = RawState(self.table).streams()
        return (
            [item[0] for item in seen],
            [item[0] for item in shared],
            {key[0]: value[0] for key, value in rules},
            raw,
        )


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(mkdtemp(dir=IN_MEMORY))
    yield path
    shutil.rmtree(path)


@pytest.mark.soak_variants
@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_to_every_parallelism_and_back(parallelism: int, directory: Path) -> None:
    """Scenario 36: keyed state is the same in any number of subtasks, each where it belongs."""
    old = filled(parallelism, directory)
    for other in PARALLELISMS:
        new = move(old, other)
        assert keyed(new) == keyed(old)
        for subtask in new:
            groups = key_groups_of(subtask.handle.subtask, other, MAX)
            for key in filter(is_keyed, subtask.entries):
                assert int.from_bytes(key[:2], "big") in groups
        back = move(new, parallelism)
        assert keyed(back) == keyed(old)


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (4, 4), (5, 2), (2, 7), (16, 5)])
def test_operator_state(old: int, new: int, directory: Path) -> None:
    """Scenario 37: lists are split or go to all, broadcast goes to all, raw streams are split."""
    subtasks = filled(old, directory)
    numbers = [subtask.handle.subtask for subtask in subtasks]
    opened = [
        Opened(subtask, directory / f"new-{number}").lists()
        for number, subtask in enumerate(move(subtasks, new))
    ]
    assert len(opened) == new
    seen = [each[0] for each in opened]
    assert sorted(chain(*seen)) == sorted(100 * s + n for s in numbers for n in range(5))
    assert max(map(len, seen)) - min(map(len, seen)) <= old
    assert all(sorted(each[1]) == numbers for each in opened)
    assert all(each[2] == {"r": 1} for each in opened)
    raw = [each[3] for each in opened]
    assert sorted(chain(*raw)) == sorted(b"raw %d" % number for number in numbers)
    first = [streams[0] if streams else None for streams in raw]
    assert first[0] == b"raw %d" % numbers[0]


def test_another_number_of_key_groups(directory: Path) -> None:
    """Scenario 38: key groups are computed again, also in the order of time, and back."""
    old = filled(3, directory, 128)
    new = move(old, 5, 1000)
    assert keyed(new) != keyed(old)
    assert sum(keyed(new).values()) == sum(keyed(old).values())
    for subtask in new:
        groups = key_groups_of(subtask.handle.subtask, 5, 1000)
        for key in subtask.entries:
            if is_keyed(key):
                assert int.from_bytes(key[:2], "big") in groups
            elif key.startswith(b"\x80"):
                assert int.from_bytes(key[10:12], "big") == key_group_of(key[12:], 1000)
                assert int.from_bytes(key[10:12], "big") in groups
    assert keyed(move(new, 3, 128)) == keyed(old)


def test_more_subtasks_than_keys(directory: Path) -> None:
    """Scenario 36: empty subtasks."""
    new = move(filled(1, directory), 128)
    with_keys = [subtask for subtask in new if any(map(is_keyed, subtask.entries))]
    assert 1 < len(with_keys) <= len(KEYS)


def test_the_written_subtask_is_what_its_handle_says(directory: Path, tmp_path: Path) -> None:
    """Base snapshot, number of entries, first timer, nothing left of sweeps and segments."""
    storage = LocalStorage(tmp_path)
    subtasks = filled(2, directory)
    (handle,) = rewrites.run(moving(subtasks, 1, storage))
    entries = read(handle, storage).entries
    assert handle.base is not None
    assert handle.version == handle.base.version
    earliest = min([NOW_MS, *(zlib.crc32(encode(key)) for key in KEYS)])
    assert handle.timeout_ms == earliest - 1
    assert (handle.segments, handle.sweep_from, handle.epoch) == ((), b"", 1)
    assert keyed([Subtask(handle, entries)]) == keyed(subtasks)
    other = LocalStorage(tmp_path / "other")
    other_clock = moving(subtasks, 1, other, time_mode=TimeMode.EVENT_TIME)
    assert [each.timeout_ms for each in rewrites.run(other_clock)] == [None]


def written(
    target: Path,
    *entries: Entry,
    states: tuple[StateDescriptor, ...] = (),
    twice: Twice = TWICE_STORED,
) -> Handle:
    keys, values = zip(*entries, strict=True)
    part = ArrowEntries(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    storage = LocalStorage(target)
    return write_base(storage, handle_of(0, 1, states), [part], Destination(storage.url, twice))


def test_the_timeout_of_the_first_possible_timer(tmp_path: Path) -> None:
    """A handle has no number below those of 64 bits."""
    for timer_ms, timeout_ms in ((5, 4), (FIRST_MS, FIRST_MS)):
        timer = TIME_INDEX + encode_time(timer_ms) + encode_key_group(0) + encode(("k",))
        assert written(tmp_path / str(timer_ms), (timer, b"")).timeout_ms == timeout_ms


def test_two_entries_of_one_key_are_refused(tmp_path: Path) -> None:
    entry = bytes(3) + encode(("k",)), b"\x90"
    states = (StateDescriptor("n", "value", NUMBER.json()),)
    with pytest.raises(IncompatibleStateError, match=r"'n'.*key \['k'\].*migration"):
        written(tmp_path, entry, entry, states=states)


@pytest.mark.parametrize("is_by_time", [False, True])
def test_a_timer_that_is_stored_twice_is_refused(tmp_path: Path, *, is_by_time: bool) -> None:
    """Two subtasks have it, so one is wrong; a timer that is given twice is one."""
    group, key, time = encode_key_group(0), encode(("k",)), encode_time(5)
    place = TIME_INDEX + time + group + key if is_by_time else group + b"\xff" + key + time
    entry = place, b""
    with pytest.raises(IncompatibleStateError, match="subtask 0: a timer would be there twice"):
        written(tmp_path, entry, entry)
    given = Twice(StateValueError, "", is_one_timer=True)
    base = written(tmp_path, entry, entry, twice=given).base
    assert base is not None
    assert base.entries == 1


@pytest.mark.parametrize("key", [b"\x90\x00x", b"\x80\x00x", b"\x80\x01" + bytes(20), b"\x00"])
def test_a_key_of_no_known_kind_is_refused(key: bytes) -> None:
    handle = handle_of(0, 1, ())
    part = ArrowEntries(pa.array([key], pa.binary()), pa.array([b""], pa.binary()))
    redistribution = Redistribution(UnifiedStates("u", [handle]), 1, MAX, broadcast_giver=0)
    with pytest.raises(CorruptFileError, match="no known kind"):
        list(redistribution.batches(handle, [part]))


def test_raw_state_of_many_chunks_stays_in_order() -> None:
    chunks = [b"a" * RAW_CHUNK_BYTES, b"b" * 7]
    subtasks = [
        Subtask(
            handle_of(number, 4, ()),
            {b"\x82\x00\x00\x00" + n.to_bytes(4, "big"): chunk for n, chunk in enumerate(chunks)},
        )
        for number in range(4)
    ]
    (one,) = move(subtasks, 1)
    assert len(one.entries) == 8
    (table,) = [list(one.entries.values())]
    assert table == chunks * 4
    assert [s.handle.subtask for s in move(subtasks, 8)] == [0, 2, 4, 6]


def value_entry(group: int, state_id: int, key: str, data: bytes) -> Entry:
    return encode_key_group(group) + bytes([state_id]) + encode((key,)), data


def packed(*values: object, version: int | None = None) -> bytes:
    mark = b"" if version is None else bytes([0xCC, version])
    return mark + encode(values)


def states_of(subtask: Subtask) -> dict[str, tuple[StateDescriptor, int]]:
    return {state.name: (state, number) for number, state in enumerate(subtask.handle.states)}


def content(
    subtask: Subtask, name: str, schema: T.StructType, directory: Path
) -> dict[str, object]:
    """Return each key's value of a value state."""
    opened = Opened(subtask, directory)
    state = opened.handle.getValueState(name, schema)
    keys = sorted({(stored[:2], stored[3:]) for stored in filter(is_keyed, subtask.entries)})
    opened.table.begin_part(keys)
    found = {}
    for position, (_, key) in enumerate(keys):
        opened.table.enter(position)
        found[msgspec.msgpack.decode(key)[0]] = state.get()
    return found


LONGS = T.StructType([T.StructField("n", T.LongType()), T.StructField("m", T.LongType())])


def test_subtasks_with_other_ids_and_older_schemas(directory: Path) -> None:
    """One is older; another has its states in another order and has skipped a schema."""
    newest = Subtask(
        handle_of(0, 3, (
            StateDescriptor("x", "value", LONGS.json(), None, (NUMBER.json(), BOTH.json())),
            StateDescriptor("gone", "value", NUMBER.json(), sweeps=0),
        ), epoch=9),
        dict([
            value_entry(1, 0, "first", packed(1)),
            value_entry(2, 0, "second", packed(2, "s", version=1)),
            value_entry(3, 0, "third", packed(3, 30, version=2)),
            value_entry(3, 1, "third", packed(0)),
        ]),
    )  # fmt: skip
    behind = Subtask(
        handle_of(1, 3, (StateDescriptor("x", "value", NUMBER.json()),), epoch=3),
        dict([value_entry(50, 0, "fourth", packed(4))]),
    )
    other = Subtask(
        handle_of(2, 3, (
            StateDescriptor("y", "value", TEXT.json()),
            StateDescriptor("x", "value", LONGS.json(), earlier_schemas=(BOTH.json(),)),
        ), epoch=8),
        dict([
            value_entry(100, 1, "fifth", packed(5, "s")),
            value_entry(101, 1, "sixth", packed(6, 60, version=1)),
            value_entry(101, 0, "sixth", packed("y")),
        ]),
    )  # fmt: skip
    (one,) = move([behind, other, newest], 1)
    assert list(states_of(one)) == ["x", "y"]
    assert content(one, "x", LONGS, directory / "x") == {
        "first": (1, None), "second": (2, None), "third": (3, 30), "fourth": (4, None),
        "fifth": (5, None), "sixth": (6, 60),
    }  # fmt: skip
    assert content(one, "y", TEXT, directory / "y")["sixth"] == ("y",)


def test_times_to_live_that_began_at_different_times() -> None:
    """Entries without a time get the one from which they aged in their own subtask."""

    def subtask(number: int, since_ms: int | None) -> Subtask:
        ttl = None
        if since_ms is not None:
            ttl = TtlDescriptor(
                1000,
                TtlTime.PROCESSING_TIME,
                TtlUpdate.ON_CREATE_AND_WRITE,
                TtlVisibility.NEVER_RETURN_EXPIRED,
                since_ms,
            )
        state = StateDescriptor("x", "value", NUMBER.json(), ttl=ttl, is_stamped=ttl is not None)
        stamped = b"\xd3" + (77).to_bytes(8, "big") + packed(2)
        return Subtask(
            handle_of(number, 3, (state,), epoch=9 - number),
            dict([
                value_entry(number * 43, 0, "old", packed(1)),
                value_entry(number * 43, 0, "new", stamped if ttl else packed(2)),
            ]),
        )  # fmt: skip

    def stamps(subtasks: list[Subtask]) -> list[int | None]:
        (one,) = move(subtasks, 1)
        return [
            int.from_bytes(value[1:9], "big") if value[0] == 0xD3 else None
            for _, value in sorted(one.entries.items())
        ]

    same = [subtask(0, 5), subtask(1, 5)]
    assert stamps(same) == [77, None, 77, None]
    (one,) = move(same, 1)
    assert one.handle.states[0].ttl.since_ms == 5
    differ = [subtask(0, 5), subtask(1, 6), subtask(2, None)]
    assert stamps(differ) == [77, 5, 77, 6, None, None]
    (one,) = move(differ, 1)
    assert one.handle.states[0].ttl.since_ms is None
    assert one.handle.states[0].is_stamped


def in_text(row: T.Row) -> tuple[str]:
    return (str(row.n),)


def test_migrations_are_done_on_the_way(directory: Path) -> None:
    """Some subtasks may have been migrated before; a second name is not needed."""
    wanted = StateDescriptor("text", "value", TEXT.json())
    before = Subtask(
        handle_of(0, 2, (StateDescriptor("n", "value", NUMBER.json()),), epoch=1),
        dict([value_entry(1, 0, "a", packed(1)), value_entry(2, 0, "b", packed(2))]),
    )
    after = Subtask(
        handle_of(1, 2, (StateDescriptor("gone", "value", TEXT.json(), sweeps=1), wanted), epoch=2),
        dict([value_entry(100, 1, "c", packed("3"))]),
    )
    migrations = {"text": Migration(value=in_text, renamed_from="n")}
    for subtasks in ([before, after], [before]):
        (one,) = move(subtasks, 1, MAX, [wanted], migrations)
        found = content(one, "text", TEXT, directory / str(len(subtasks)))
        assert found == {k: (str(n),) for n, k in enumerate("abc"[: len(found)], start=1)}
        assert [state.name for state in one.handle.states] == ["text"]


def test_forms_that_do_not_fit_together_are_refused() -> None:
    one = handle_of(0, 2, (StateDescriptor("x", "value", NUMBER.json()),), epoch=1)
    for state in (
        StateDescriptor("x", "value", TEXT.json()),
        StateDescriptor("x", "list", NUMBER.json()),
    ):
        other = handle_of(1, 2, (state,), epoch=2)
        with pytest.raises(IncompatibleStateError, match=r"subtask 0.*'x'.*migrations"):
            UnifiedStates("u", [one, other])


def test_rows_of_quarantined_keys_do_not_evolve() -> None:
    """A restart refuses other columns while keys are quarantined; so does a rescale."""
    one = handle_of(0, 2, (StateDescriptor(ROWS_STATE, "list", NUMBER.json()),), epoch=1)
    other = handle_of(1, 2, (StateDescriptor(ROWS_STATE, "list", BOTH.json()),), epoch=2)
    with pytest.raises(
        IncompatibleStateError, match=r"keeps rows of quarantined keys.*release the keys"
    ):
        UnifiedStates("u", [one, other])


def test_a_comment_on_a_field_is_no_other_schema() -> None:
    noted = T.StructType([T.StructField("s", T.StringType(), metadata={"comment": "a city"})])
    states = [
        StateDescriptor("m", "map", NUMBER.json(), map_key_schema=key.json())
        for key in (TEXT, noted)
    ]
    handles = [handle_of(n, 2, (state,), epoch=n) for n, state in enumerate(states)]
    unified = UnifiedStates("u", handles)
    assert all(unified.are_those_of(handle) for handle in handles)
