"""A database is divided by its key groups; what the new subtasks get is what entries say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import (
    BaseFile,
    BaseSnapshot,
    Handle,
    Segment,
    StateDescriptor,
    new_version,
)
from pyspark_ckpt.formats.layout import segment_path, snapshot_path
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.durable.stored_files import read_base
from pyspark_ckpt.operator.rows.keys import key_groups_of
from pyspark_ckpt.operator.table.stored_keys import (
    OPERATOR_STATE,
    RAW_STATE,
    TIME_BYTES,
    TIME_INDEX,
    TIMERS_ID,
    encode_key_group,
    encode_time,
)
from pyspark_ckpt.storage.base import chunks_of
from pyspark_ckpt.storage.local import LocalStorage
from pyspark_ckpt.stored.division import Share, divided, shares_of
from pyspark_ckpt.stored.unify import UnifiedStates
from state_backends import Changes, open_backend
from tests.query.harness import flip_bit

MAX, UID = 16, "op"
SCHEMA = '{"type":"struct","fields":[]}'
STATE = StateDescriptor(name="n", kind="value", value_schema=SCHEMA)
WANTED = OperatorDescriptor(uid=UID, parallelism=4, max_parallelism=MAX, key_schema=SCHEMA)
Entries = dict[bytes, bytes]


def entry(key_group: int, number: int) -> bytes:
    return encode_key_group(key_group) + b"\x00" + number.to_bytes(4, "big")


def timer(key_group: int, number: int, time_ms: int) -> Entries:
    key, time = number.to_bytes(4, "big"), encode_time(time_ms)
    group = encode_key_group(key_group)
    return {group + TIMERS_ID + key + time: b"", TIME_INDEX + time + group + key: b""}


def entries_of(groups: range) -> Entries:
    """Two hundred entries of each key group, and a timer of each; the last group has the first."""
    found = {entry(group, number): b"v%d" % number for group in groups for number in range(200)}
    for group in groups:
        found |= timer(group, 7, 1000 - group)
    return found


def key_group_of(key: bytes) -> int:
    start = len(TIME_INDEX) + TIME_BYTES if key.startswith(TIME_INDEX) else 0
    return int.from_bytes(key[start : start + 2], "big")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "stored")


def first_of(subtask: int, parallelism: int = 2) -> Handle:
    return Handle(
        query_id="old",
        uid=UID,
        subtask=subtask,
        parallelism=parallelism,
        max_parallelism=MAX,
        epoch=3,
        key_schema=SCHEMA,
        states=(STATE,),
        has_state_of_no_key=False,
    )


def stored(
    storage: LocalStorage,
    directory: Path,
    subtask: int,
    parts: Sequence[Entries],
    parallelism: int = 2,
) -> Handle:
    """Store the handle of a subtask whose database has a file for each part."""
    first = first_of(subtask, parallelism)
    version = new_version(3)
    with open_backend("rocksdb", directory / f"{subtask}", create=True) as backend:
        for part in parts:
            backend.apply([Changes(sorted(part), [part[key] for key in sorted(part)])], version)
        place = directory / f"{subtask}-snapshot"
        names = backend.snapshot_files(place)
    files = []
    for name in names:
        with (place / name).open("rb") as file:
            path = snapshot_path(UID, subtask, 3, "0123456789abcdef")
            files.append(BaseFile(name, storage.write(path, chunks_of(file))))
    base = BaseSnapshot(version, 3, None, tuple(files), "rocksdb")
    return msgspec.structs.replace(first, base=base)


def stored_changes(storage: LocalStorage, subtask: int, parallelism: int, part: Entries) -> Handle:
    """Store the handle of a subtask whose base is a change file, as of the heap."""
    first = first_of(subtask, parallelism)
    changes = Changes(sorted(part), [part[key] for key in sorted(part)])
    path = f"{UID}/{subtask}/state.chg"
    files = (BaseFile("state.chg", storage.write(path, encode_changes([changes]))),)
    return msgspec.structs.replace(first, base=BaseSnapshot(new_version(3), 3, len(part), files))


def with_segment(
    storage: LocalStorage, handle: Handle, puts: Entries, deletes: Sequence[bytes]
) -> Handle:
    changes = Changes([*puts, *deletes], [*puts.values(), *[None] * len(deletes)])
    path = segment_path(UID, handle.subtask, 4)
    reference = storage.write(path, encode_changes([changes]))
    segment = Segment(new_version(4), 4, len(changes), reference.size_bytes, file=reference)
    return msgspec.structs.replace(handle, segments=(segment,))


def shares(handles: Sequence[Handle], operator: OperatorDescriptor = WANTED) -> tuple[Share, ...]:
    found = shares_of(handles, operator, UnifiedStates(UID, handles))
    assert found is not None
    return found


def made(
    storage: LocalStorage, share: Share, scratch: Path, operator: OperatorDescriptor = WANTED
) -> Handle:
    scratch.mkdir()
    first = operator.first_handle("new", share.subtask, 9)
    first = msgspec.structs.replace(first, states=(STATE,))
    return divided(first, share, storage, storage, scratch, has_same_clock=True)


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def content(storage: LocalStorage, handle: Handle) -> Entries:
    assert handle.base is not None
    found: dict[bytes, bytes | None] = {}
    for part in read_base(storage, handle.base):
        found.update(zip(part.keys, part.values, strict=True))
    return {key: value for key, value in found.items() if value is not None}


def test_each_subtask_gets_its_key_groups(storage: LocalStorage, tmp_path: Path) -> None:
    """Two become four; the second old one has no state. Large files are shared."""
    whole = entries_of(range(8))
    large = {
        entry(group, 10_000 + n): random.randbytes(4096) for group in (0, 7) for n in range(1500)
    }
    handle = stored(storage, tmp_path, 0, [large, whole])
    whole |= large
    written, removed = {entry(1, 999): b"later", entry(6, 5): b"new"}, [entry(2, 3), entry(5, 4)]
    handle = with_segment(storage, handle, written, removed)
    expected = {k: v for k, v in (whole | written).items() if k not in removed}
    results = [made(storage, share, tmp_path / f"s{share.subtask}") for share in shares([handle])]
    assert [each.subtask for each in results] == [0, 1]
    for each in results:
        groups = key_groups_of(each.subtask, 4, MAX)
        assert content(storage, each) == {
            key: value for key, value in expected.items() if key_group_of(key) in groups
        }
        assert each.timeout_ms == 1000 - groups[-1] - 1
        assert (each.query_id, each.epoch, each.parallelism) == ("new", 9, 4)
        assert each.version not in handle.lineage
    shared = set.intersection(*({file.path for file in each.files()} for each in results))
    assert shared


def test_the_timeout_of_the_first_possible_timer(storage: LocalStorage, tmp_path: Path) -> None:
    """A handle has no number below those of 64 bits."""
    first_ms = -(1 << 63)
    handle = stored(storage, tmp_path, 0, [entries_of(range(8)) | timer(0, 8, first_ms)])
    result = made(storage, shares([handle])[0], tmp_path / "scratch")
    assert result.timeout_ms == first_ms


DATABASE, CHANGE_FILE, SEGMENT_ONLY = "database", "change file", "segment only"


def stored_as(
    form: str, storage: LocalStorage, directory: Path, subtask: int, parallelism: int, all_: Entries
) -> Handle:
    """Store a subtask in a form; its last write is in a segment, which also deletes an entry."""
    last, before = max(all_), dict(all_)
    value = before.pop(last)
    before[entry(key_group_of(min(all_)), 77_777)] = b"deleted later"
    segment = {last: value}, [entry(key_group_of(min(all_)), 77_777)]
    if form == DATABASE:
        handle = stored(storage, directory, subtask, [before], parallelism)
    elif form == CHANGE_FILE:
        handle = stored_changes(storage, subtask, parallelism, before)
    else:
        return with_segment(storage, first_of(subtask, parallelism), all_, ())
    return with_segment(storage, handle, *segment)


@pytest.mark.parametrize(
    ("before", "after"), [(1, 3), (2, 3), (3, 2), (4, 2), (4, 1), (16, 5), (5, 16), (4, 4)]
)
@pytest.mark.parametrize("forms", [(DATABASE,), (CHANGE_FILE,), (DATABASE, CHANGE_FILE), None])
def test_every_entry_goes_where_its_key_group_goes(
    storage: LocalStorage,
    tmp_path: Path,
    before: int,
    after: int,
    forms: tuple[str, ...] | None,
) -> None:
    """Old subtasks of several forms; `None` leaves one without state and one with a segment only.

    The handles come in any order. Nothing is lost, and nothing is in two subtasks.
    """
    whole = entries_of(range(MAX))
    handles, given = [], dict(whole)
    for subtask in range(before):
        groups = key_groups_of(subtask, before, MAX)
        own = {key: value for key, value in whole.items() if key_group_of(key) in groups}
        form = (forms or (DATABASE, SEGMENT_ONLY, CHANGE_FILE))[subtask % len(forms or "123")]
        if forms is None and subtask == 2:
            given = {key: value for key, value in given.items() if key not in own}
            continue
        handles.append(stored_as(form, storage, tmp_path, subtask, before, own))
    random.Random(7).shuffle(handles)
    operator = msgspec.structs.replace(WANTED, parallelism=after)
    found: Entries = {}
    for share in shares(handles, operator):
        handle = made(storage, share, tmp_path / f"s{share.subtask}", operator)
        groups = key_groups_of(handle.subtask, after, MAX)
        expected = {key: value for key, value in given.items() if key_group_of(key) in groups}
        assert content(storage, handle) == expected
        times = [
            1000 - group for group in groups if timer(group, 7, 1000 - group).keys() <= given.keys()
        ]
        assert handle.timeout_ms == min(times) - 1
        assert not found.keys() & expected.keys()
        found |= expected
    assert found == given


def test_divided_and_joined_again(storage: LocalStorage, tmp_path: Path) -> None:
    """Both halves have the same old files, and each has deleted the range of the other one."""
    whole = entries_of(range(MAX))
    joined = [stored(storage, tmp_path, 0, [whole], parallelism=1)]
    for parallelism in (2, 4, 1, 3, 1):
        operator = msgspec.structs.replace(WANTED, parallelism=parallelism)
        handles, joined = joined, []
        for share in shares(handles, operator):
            number = len(list(tmp_path.iterdir()))
            result = made(storage, share, tmp_path / f"s{number}", operator)
            assert result.base is not None
            assert result.base.format == "rocksdb"
            joined.append(result)
        found: Entries = {}
        for each in joined:
            found |= content(storage, each)
        assert found == whole, parallelism


@pytest.mark.parametrize("head", [OPERATOR_STATE, RAW_STATE])
def test_state_that_belongs_to_no_key(storage: LocalStorage, tmp_path: Path, head: bytes) -> None:
    """The handle denies it, so it is wrong. Such state is neither lost nor given to all."""
    handle = stored(storage, tmp_path, 1, [entries_of(range(8, 16)) | {head + b"\x00": b"x"}])
    share = shares([handle])[0]
    assert share.subtask == 2
    with pytest.raises(CorruptFileError, match=r"subtask 1: .* belongs to no key"):
        made(storage, share, tmp_path / "scratch")


@pytest.mark.parametrize("head", [OPERATOR_STATE, RAW_STATE])
@pytest.mark.parametrize("forms", [(DATABASE, CHANGE_FILE), (CHANGE_FILE, CHANGE_FILE)])
def test_state_that_belongs_to_no_key_of_a_subtask_that_is_read(
    storage: LocalStorage, tmp_path: Path, head: bytes, forms: tuple[str, str]
) -> None:
    handles = [
        stored_as(form, storage, tmp_path, subtask, 2, entries_of(range(8 * subtask, 8)) | more)
        for subtask, (form, more) in enumerate(
            zip(forms, [{}, entries_of(range(8, 16)) | {head + b"\x00": b"x"}], strict=True)
        )
    ]
    operator = msgspec.structs.replace(WANTED, parallelism=1)
    share = shares(handles, operator)[0]
    assert (share.kept is None) == (forms[0] == CHANGE_FILE)
    before = files_below(tmp_path / "stored")
    with pytest.raises(CorruptFileError, match=r"subtask 1: .* belongs to no key"):
        made(storage, share, tmp_path / "scratch", operator)
    assert files_below(tmp_path / "stored") == before


def test_a_damaged_file(storage: LocalStorage, tmp_path: Path) -> None:
    """It is found when the database is divided, or by its digest when the result is read."""
    handle = stored(storage, tmp_path, 0, [entries_of(range(8))])
    flip_bit(storage.path(max(handle.files(), key=lambda file: file.size_bytes).path), 100)
    with pytest.raises(CorruptFileError):  # noqa: PT012  # either of the two
        result = made(storage, shares([handle])[0], tmp_path / "scratch")
        content(storage, result)


@pytest.mark.parametrize("form", [DATABASE, CHANGE_FILE])
def test_a_damaged_file_that_is_read(storage: LocalStorage, tmp_path: Path, form: str) -> None:
    """Its entries become new files, so it has to be found when it is read."""
    handles = [
        stored_as(DATABASE, storage, tmp_path, 0, 2, entries_of(range(8))),
        stored_as(form, storage, tmp_path, 1, 2, entries_of(range(8, 16))),
    ]
    operator = msgspec.structs.replace(WANTED, parallelism=1)
    share = shares(handles, operator)[0]
    for read in share.read:
        assert read.base is not None
        largest = max(read.base.files, key=lambda each: each.file.size_bytes)
        flip_bit(storage.path(largest.file.path), 100)
    with pytest.raises(CorruptFileError):
        made(storage, share, tmp_path / "scratch", operator)


def test_when_entries_have_to_move(storage: LocalStorage, tmp_path: Path) -> None:
    handles = [
        stored(storage, tmp_path, 0, [entries_of(range(8))]),
        stored(storage, tmp_path, 1, [entries_of(range(8, 16))]),
    ]
    states = UnifiedStates(UID, handles)

    def possible(old: Sequence[Handle], parallelism: int, maximum: int = MAX) -> bool:
        operator = msgspec.structs.replace(WANTED, parallelism=parallelism, max_parallelism=maximum)
        return shares_of(old, operator, states) is not None

    assert possible(handles, 4)
    assert possible(handles, 16)
    assert possible(handles, 3)
    assert possible(handles, 1)
    assert not possible(handles, 4, 32)
    without_files = [msgspec.structs.replace(handle, base=None) for handle in handles]
    assert possible(without_files, 8)
    assert not possible(without_files, 10)  # five tasks would read all of a subtask
    assert possible([handles[0], without_files[1]], 8)
    other = msgspec.structs.replace(STATE, name="before")
    renumbered = msgspec.structs.replace(handles[0], states=(other, STATE))
    assert not shares_of(
        [renumbered, handles[1]], WANTED, UnifiedStates(UID, [handles[1], renumbered])
    )
    with_broadcast = msgspec.structs.replace(handles[0], has_state_of_no_key=True)
    assert not possible([with_broadcast, handles[1]], 4)
