"""A stored state is what a dictionary has, however it is spread over files and read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.canonical_file import ArrowEntries, encode_canonical
from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import (
    CANONICAL_FORMAT,
    EMPTY_VERSION,
    BaseFile,
    BaseSnapshot,
    Handle,
    Segment,
)
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stored import state as module
from pyspark_ckpt.stored.state import EVERYTHING, StoredRange, StoredState
from state_backends import BACKEND_TYPES, Changes
from state_backends.backend import FIRST_RESERVED_KEY
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask

KEY = st.binary(min_size=1, max_size=3).filter(lambda key: key < FIRST_RESERVED_KEY)
VALUE = st.binary(max_size=2)
WRITES = st.dictionaries(KEY, st.none() | VALUE, max_size=30)
State = dict[bytes, bytes | None]


def changes(writes: State, size: int = 4) -> list[Changes]:
    keys = sorted(writes)
    parts = [keys[start : start + size] for start in range(0, len(keys), size)]
    return [Changes(part, [writes[key] for key in part]) for part in parts]


def encoded(parts: list[Changes]) -> bytes:
    return b"".join(encode_changes(parts))


def pairs(parts: Iterable[ArrowEntries] | None) -> list[tuple[bytes, bytes | None]]:
    assert parts is not None
    return [
        pair
        for part in parts
        for pair in zip(part.keys.to_pylist(), part.values.to_pylist(), strict=True)
    ]


def puts(state: State) -> list[tuple[bytes, bytes | None]]:
    return sorted((key, value) for key, value in state.items() if value is not None)


_names = itertools.count()


def with_base(
    storage: Storage, handle: Handle, base: dict[bytes, bytes], part_size: int, form: str
) -> Handle:
    parts = changes(dict(base), part_size)
    if form == "canonical":
        file = storage.write(f"base-{next(_names)}", encode_canonical(handle, parts))
        snapshot = BaseSnapshot("b", 0, len(base), (BaseFile("x", file),), CANONICAL_FORMAT)
    else:
        file = storage.write(f"base-{next(_names)}", [encoded(parts)])
        snapshot = BaseSnapshot("b", 0, len(base), (BaseFile("state.chg", file),))
    return msgspec.structs.replace(handle, base=snapshot)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored")


@pytest.mark.parametrize("run_bytes", [40, 1 << 20], ids=["spilling", "in memory"])
@given(
    base=st.none() | st.dictionaries(KEY, VALUE, max_size=30),
    segments=st.lists(WRITES, max_size=4),
    part_size=st.sampled_from([1, 4, 40]),
    form=st.sampled_from(["changes", "canonical"]),
    asked=st.lists(KEY, max_size=10),
    prefix=KEY,
    version=st.integers(0, 4),
)
def test_it_is_what_a_dictionary_has(
    place: Path,
    run_bytes: int,
    base: dict[bytes, bytes] | None,
    segments: list[State],
    part_size: int,
    form: str,
    asked: list[bytes],
    prefix: bytes,
    version: int,
) -> None:
    storage = LocalStorage(place)
    handle = Handle(
        query_id="q", uid="op", subtask=0, parallelism=1, max_parallelism=8, epoch=1,
        key_schema="{}",
        segments=tuple(
            Segment(str(n), n, len(each), 0, inline=encoded(changes(each)))
            for n, each in enumerate(segments)
        ),
    )  # fmt: skip
    state: State = {}
    if base is not None:
        handle = with_base(storage, handle, base, part_size, form)
        state.update(base)
    history = [dict(state)]
    for each in segments:
        state.update(each)
        history.append(dict(state))
    scratch = place / "scratch"
    scratch.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_RUN_BYTES", run_bytes)
        stored = StoredState(storage, handle, scratch)
        assert pairs(stored.scan()) == puts(state)
        for wanted in (prefix, prefix[:1]):
            found = pairs(stored.scan(StoredRange.below(wanted)))
            assert found == [pair for pair in puts(state) if pair[0].startswith(wanted)]
        keys = [*asked, *itertools.islice(state, 3)]
        assert stored.get_many(keys) == [state.get(key) for key in keys]
        before = min(version, len(segments))
        since = handle.lineage[before]
        assert pairs(stored.at(since).scan()) == puts(history[before])
        assert stored.at(since).get_many(keys) == [history[before].get(key) for key in keys]
        written = [pair for each in segments[before:] for pair in sorted(each.items())]
        assert pairs(stored.changes(since)) == written
        assert stored.last_changes(since) == dict(written)
        assert stored.changes("another") is None
        with pytest.raises(ValueError, match="not in the lineage"):
            stored.last_changes("another")
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("part_size", [10, 100])
@pytest.mark.parametrize(
    "writes",
    [
        {b"00": b"first"}, {b"99": b"last"}, {b"10": b"the first"}, {b"59": b"the last"},
        {b"10": None}, {b"59": None}, {b"305": b"between"}, {b"305": None},
        {b"30": b"one", b"31": b"and the next"}, {b"29": None, b"295": b"new", b"30": None},
    ],
)  # fmt: skip
def test_few_writes_into_a_large_part(
    storage: Storage, handle: Handle, writes: State, part_size: int
) -> None:
    state: State = {b"%d" % number: b"base" for number in range(10, 60)}
    handle = with_base(storage, handle, dict(state), part_size, "changes")  # type: ignore[arg-type]
    handle = msgspec.structs.replace(
        handle, segments=(Segment("1", 1, len(writes), 0, inline=encoded(changes(writes))),)
    )
    state.update(writes)
    assert pairs(StoredState(storage, handle).scan()) == puts(state)


def test_a_handle_without_files_has_nothing(storage: Storage, handle: Handle) -> None:
    stored = StoredState(storage, msgspec.structs.replace(handle, base=None, segments=()))
    assert pairs(stored.scan()) == []
    assert pairs(stored.scan(StoredRange.of_raw_state())) == []
    assert stored.get_many([b"a"]) == [None]
    assert pairs(stored.changes(EMPTY_VERSION)) == []


@pytest.mark.parametrize(
    "keys", [[b"b", b"a"], [b"a", b"b", b"b", b"c"], [b"a", b"a"], [b"a", b"c", b"b", b"d"]]
)
@pytest.mark.parametrize("segments", [(), (Segment("1", 1, 0, 0, inline=encoded([])),)])
@pytest.mark.parametrize("form", ["changes", "canonical"])
def test_a_base_out_of_order_is_refused(
    storage: Storage,
    handle: Handle,
    keys: list[bytes],
    segments: tuple[Segment, ...],
    form: str,
) -> None:
    parts = [Changes(keys[start : start + 2], [b""] * 2) for start in range(0, len(keys), 2)]
    content = encode_canonical(handle, parts) if form == "canonical" else [encoded(parts)]
    file = storage.write("shared/base", content)
    kind = {"format": CANONICAL_FORMAT} if form == "canonical" else {}
    snapshot = BaseSnapshot("b", 0, len(keys), (BaseFile("state.chg", file),), **kind)
    hostile = msgspec.structs.replace(handle, base=snapshot, segments=segments)
    with pytest.raises(CorruptFileError, match="key order"):
        list(StoredState(storage, hostile).scan())


SEED = 20
GROUPS = 4


def key_of(number: int) -> bytes:
    return bytes([0, number % GROUPS, number % 3]) + f"{number:05}".encode() * (1 + number % 3)


@pytest.fixture(params=BACKEND_TYPES)
def subtask(
    request: pytest.FixtureRequest, tmp_path: Path, storage: Storage, handle: Handle
) -> MaterializedSubtask:
    """A base snapshot of 3,000 entries, and segments that change, delete and add some."""
    made = MaterializedSubtask(tmp_path / "local", str(request.param), storage, handle)
    numbers = random.Random(SEED)
    made.epoch({key_of(n): b"%d" % n for n in range(3000)})
    made.epoch(settings=ALWAYS)
    assert made.uploads is not None
    made.uploads.run()
    made.epoch()
    for epoch in range(3):
        writes = {key_of(n): b"later %d" % epoch for n in numbers.sample(range(4000), 30)}
        writes |= {key_of(n): None for n in numbers.sample(range(4000), 30)}  # type: ignore[misc]
        made.epoch(writes, NEVER)
    assert made.handle.base is not None
    assert made.handle.segments
    return made


def ranges() -> list[StoredRange]:
    numbers = random.Random(SEED)
    prefixes = [key_of(n) for n in numbers.sample(range(4100), 40)]
    prefixes += [bytes([0, group]) for group in range(GROUPS + 1)]
    prefixes += [b"\0", key_of(17)[:5], b"\xff", key_of(2999)]
    return [
        EVERYTHING,
        *map(StoredRange.below, prefixes),
        *map(StoredRange.of_keyed_state, range(4)),
        StoredRange(key_of(1), key_of(2)),
        StoredRange(bytes([0, 1]), bytes([0, 3]), 2),
        StoredRange(bytes([0, 2])),
    ]


def is_in(key: bytes, wanted: StoredRange) -> bool:
    is_before_end = wanted.end is None or key < wanted.end
    return wanted.start <= key and is_before_end and wanted.state_id in (None, key[2])


def test_ranges_and_keys_of_each_backend(subtask: MaterializedSubtask) -> None:
    stored = StoredState(subtask.storage, subtask.handle)
    for wanted in ranges():
        expected = {key: value for key, value in subtask.state.items() if is_in(key, wanted)}
        assert pairs(stored.scan(wanted)) == sorted(expected.items()), wanted
    keys = [key_of(n) for n in range(0, 4100, 7)]
    assert stored.get_many(keys) == [subtask.state.get(key) for key in keys]


def test_reading_ends_where_a_step_raises(subtask: MaterializedSubtask) -> None:
    steps = itertools.count()

    def on_step() -> None:
        if next(steps) == 1:
            raise TimeoutError

    for wanted in (EVERYTHING, StoredRange.below(bytes([0, 1]))):
        steps = itertools.count()
        with pytest.raises(TimeoutError):
            list(StoredState(subtask.storage, subtask.handle).scan(wanted, on_step))


def test_a_damaged_base_is_refused(subtask: MaterializedSubtask) -> None:
    assert subtask.handle.base is not None
    for each in subtask.handle.base.files:
        path = subtask.storage.local_path(each.file.path)
        assert path is not None
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    stored = StoredState(subtask.storage, subtask.handle)
    with pytest.raises(CorruptFileError):
        list(stored.scan(StoredRange.below(key_of(17))))
    with pytest.raises(CorruptFileError):
        list(stored.scan())
    with pytest.raises(CorruptFileError):
        stored.get_many([key_of(17)])
