"""The state table: an epoch's writes above the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operator.rows.keys import MAX_MAX_PARALLELISM
from pyspark_ckpt.operator.table import table as state_table
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import EpochWrites
from state_backends import Changes, StateBackend
from state_backends.backend import FIRST_RESERVED_KEY
from tests.unit.operator.subtask_epochs import IN_MEMORY

MakeTable = Callable[[Sequence[tuple[bytes, bytes]]], StateTable]

GROUP = encode_key_group(5)
KEYS = [(GROUP, b"k%03d" % number) for number in range(25)]
ONE, OTHER = b"\x00", b"\x01"
"""Two states."""


def fill(backend: StateBackend, entries: dict[bytes, bytes]) -> None:
    backend.apply([Changes(list(entries), list(entries.values()))], "filled")


def go_to(table: StateTable, position: int) -> None:
    table.current.key_group, table.current.key = KEYS[position]
    table.current.position = position


def pairs(table: StateTable) -> Iterator[tuple[bytes, bytes | None]]:
    """Return the epoch's writes, as the barrier gets them."""
    for frame in table.changes():
        yield from zip(frame.keys, frame.values, strict=True)


class Reads:
    """A backend that counts what is read from it."""

    def __init__(self, backend: StateBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[int] = []
        get_many = backend.get_many

        def counted(keys: Sequence[bytes]) -> list[bytes | None]:
            self.keys.append(len(keys))
            return get_many(keys)

        monkeypatch.setattr(backend, "get_many", counted)


def test_stored_keys_begin_with_key_group_and_state(make_table: MakeTable) -> None:
    table = make_table([(b"\x01\x02", b"key")])
    assert table.stored_key(b"\x07") == b"\x01\x02\x07key"


def test_key_groups_keep_their_order_below_the_reserved_keys() -> None:
    encoded = [encode_key_group(group) for group in range(MAX_MAX_PARALLELISM)]
    assert encoded == sorted(set(encoded))
    assert {len(group) for group in encoded} == {2}
    assert encoded[-1] + b"\xff" * 9 < FIRST_RESERVED_KEY


def test_reads_go_through_and_writes_come_first(
    backend: StateBackend, make_table: MakeTable
) -> None:
    fill(backend, {b"a": b"1", b"b": b"2"})
    table = make_table(KEYS)
    assert [table.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"2", None]
    table.put(b"a", b"new")
    table.delete(b"b")
    table.put(b"c", b"")
    assert [table.get(key) for key in (b"a", b"b", b"c")] == [b"new", None, b""]


def test_the_backend_is_not_written_to(backend: StateBackend, make_table: MakeTable) -> None:
    fill(backend, {b"a": b"1"})
    table = make_table(KEYS)
    table.put(b"a", b"2")
    table.write_below(b"p", b"pq", b"3")
    table.delete(b"z")
    assert sum(map(len, table.changes())) == 3
    assert list(backend.scan()) == [(b"a", b"1")]
    assert backend.version() == "filled"


def test_changes_hold_the_last_write_of_each_key_in_key_order(make_table: MakeTable) -> None:
    table = make_table(KEYS)
    table.put(b"c", b"1")
    table.put(b"a", b"1")
    table.write_below(b"b", b"b1", b"1")
    table.put(b"a", b"2")
    table.delete(b"c")
    table.write_below(b"b", b"b0", None)
    assert [*pairs(table)] == [
        (b"a", b"2"),
        (b"b0", None),
        (b"b1", b"1"),
        (b"c", None),
    ]


def test_a_table_without_writes_has_no_changes(
    backend: StateBackend, make_table: MakeTable
) -> None:
    fill(backend, {KEYS[0][0] + ONE + KEYS[0][1]: b"1"})
    table = make_table(KEYS)
    assert table.get_prefetched(ONE) == b"1"
    assert list(table.changes()) == []


def test_what_states_hold_back_is_asked_for_at_the_barrier(make_table: MakeTable) -> None:
    table = make_table(KEYS)
    table.before_barrier(lambda: table.put(b"b", b"held back"))
    table.before_barrier(lambda: table.put(b"a", b"held back too"))
    assert table.get(b"b") is None
    assert [key for key, _ in pairs(table)] == [b"a", b"b"]


def test_the_values_of_all_keys_are_read_at_once_for_each_state(
    backend: StateBackend, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {group + ONE + key: b"one " + key for group, key in KEYS[::2]}
    entries |= {group + OTHER + key: b"other " + key for group, key in KEYS}
    fill(backend, entries)
    table = make_table(KEYS)
    reads = Reads(backend, monkeypatch)
    for position, (_, key) in enumerate(KEYS):
        go_to(table, position)
        assert table.get_prefetched(ONE) == (None if position % 2 else b"one " + key)
        assert table.get_prefetched(OTHER) == b"other " + key
    few = 4  # first, to learn how large they are
    assert reads.keys == [few, few, len(KEYS) - few, len(KEYS) - few]


def test_read_ahead_is_bounded(
    backend: StateBackend, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_table, "PREFETCH_KEYS", 10)
    fill(backend, {group + ONE + key: key for group, key in KEYS})
    table = make_table(KEYS)
    reads = Reads(backend, monkeypatch)
    for position, (_, key) in enumerate(KEYS):
        go_to(table, position)
        assert table.get_prefetched(ONE) == key
    assert reads.keys == [4, 10, 10, 1]


def test_read_ahead_of_large_values_is_bounded_by_their_bytes(
    backend: StateBackend, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_table, "PREFETCH_BYTES", 100_000)
    fill(backend, {group + ONE + key: key * 5_000 for group, key in KEYS})
    table = make_table(KEYS)
    reads = Reads(backend, monkeypatch)
    for position, (_, key) in enumerate(KEYS):
        go_to(table, position)
        assert table.get_prefetched(ONE) == key * 5_000
        go_to(table, position)
        assert table.get_prefetched(OTHER) is None
    of_large = [4, *[5] * 4, 1]  # 20 KB each
    assert sorted(reads.keys) == sorted([*of_large, 4, 21])


def test_a_part_begins_with_what_is_known_of_the_values(
    backend: StateBackend, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(backend, {group + ONE + key: key for group, key in KEYS})
    table = make_table(KEYS)
    for position in (0, 4):
        go_to(table, position)
        assert table.get_prefetched(ONE) == KEYS[position][1]
    table.begin_part(KEYS)
    reads = Reads(backend, monkeypatch)
    go_to(table, 0)
    assert table.get_prefetched(ONE) == KEYS[0][1]
    assert reads.keys == [len(KEYS)]


def test_writes_hide_what_was_read_ahead(backend: StateBackend, make_table: MakeTable) -> None:
    fill(backend, {group + ONE + key: b"old" for group, key in KEYS})
    table = make_table(KEYS)
    assert table.get_prefetched(ONE) == b"old"
    go_to(table, 3)
    table.put(table.stored_key(ONE), b"new")
    assert table.get_prefetched(ONE) == b"new"
    table.delete(table.stored_key(ONE))
    assert table.get_prefetched(ONE) is None
    go_to(table, 4)
    assert table.get_prefetched(ONE) == b"old"


_ENTRIES = st.dictionaries(st.binary(max_size=2), st.binary(max_size=2), max_size=8)
_WRITES = st.lists(st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=2)), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stored=_ENTRIES, written=_WRITES, spills_after=st.none() | st.integers(0, 8))
def test_a_scan_merges_stored_and_written_entries(
    backend: StateBackend,
    stored: dict[bytes, bytes],
    written: list[tuple[bytes, bytes | None]],
    spills_after: int | None,
) -> None:
    old = [key for key, _ in backend.scan()]
    backend.apply([Changes(old, [None] * len(old))], "cleared")
    fill(backend, {b"p" + key: value for key, value in stored.items()} | {b"o": b"", b"q": b""})
    writes = EpochWrites(1 << 20, IN_MEMORY and Path(IN_MEMORY))
    table = StateTable(backend, (), writes)
    expected: dict[bytes, bytes | None] = {b"p" + key: value for key, value in stored.items()}
    for place, (key, value) in enumerate(written):
        if place == spills_after:
            writes.spill()
        table.write_below(b"p", b"p" + key, value)
        expected[b"p" + key] = value
    table.write_below(b"o", b"o2", b"below another prefix")
    remaining = sorted((key, value) for key, value in expected.items() if value is not None)
    assert list(table.scan(b"p")) == remaining
    assert table.first_below(b"p") == next((key for key, _ in remaining), None)
    assert table.has_any_below(b"p") == bool(remaining)
    assert [table.get(key) for key in expected] == list(expected.values())
    table.close()


WINDOWS = [b"w%d" % number for number in range(3)]
"""What is asked for below a key."""


def test_entries_at_one_place_of_many_keys_in_a_row_are_read_together(
    backend: StateBackend, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = WINDOWS
    entries = {group + ONE + key + first: b"one " + key for group, key in KEYS[::2]}
    entries |= {group + ONE + key + second: b"other " + key for group, key in KEYS}
    fill(backend, entries)
    table = make_table(KEYS)
    reads = Reads(backend, monkeypatch)
    for position, (_, key) in enumerate(KEYS):
        go_to(table, position)
        for _ in range(2):
            assert table.get_entry(ONE, first) == (None if position % 2 else b"one " + key)
            assert table.get_entry(ONE, second) == b"other " + key
    # As many of the next keys as were asked in a row. Twice for a key is once in a row.
    of_one = [*[1] * 6, 4, 8, 10]
    assert sorted(reads.keys) == sorted(of_one * 2)
    assert table.cache_hits == table.reads - 2 * len(of_one)


def test_entries_at_places_that_change_are_read_one_by_one(
    backend: StateBackend, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(backend, {group + ONE + key + below: key for group, key in KEYS for below in WINDOWS})
    table = make_table(KEYS)
    reads = Reads(backend, monkeypatch)
    for position, (_, key) in enumerate(KEYS):
        go_to(table, position)
        assert table.get_entry(ONE, WINDOWS[position % 3]) == key
    assert reads.keys == [1] * len(KEYS)


def test_entries_that_are_large_are_not_read_together(
    backend: StateBackend, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_table, "PREFETCH_BYTES", 64 * 10_000)
    fill(backend, {group + ONE + key + b"w": key * 5_000 for group, key in KEYS})
    table = make_table(KEYS)
    reads = Reads(backend, monkeypatch)
    for position, (_, key) in enumerate(KEYS):
        go_to(table, position)
        assert table.get_entry(ONE, b"w") == key * 5_000
    assert reads.keys == [1, 1, 1, 4, *[1] * 18]


def test_places_are_forgotten_when_there_are_many(
    backend: StateBackend, make_table: MakeTable
) -> None:
    table = make_table(KEYS)
    for number in range(1_000):
        assert table.get_entry(ONE, b"%d" % number) is None
    assert len(table._runs) <= state_table._MOST_RUNS


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 2) | st.integers(-3, 9),
        st.sampled_from(WINDOWS),
        st.sampled_from(["get", "get", "get", "write", "delete"]),
    ),
    max_size=80,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(steps=_STEPS, spills_after=st.none() | st.integers(0, 40), part=st.integers(0, 20))
def test_what_is_read_together_is_what_is_read_alone(
    backend: StateBackend,
    steps: list[tuple[int, bytes, str]],
    spills_after: int | None,
    part: int,
) -> None:
    old = [key for key, _ in backend.scan()]
    backend.apply([Changes(old, [None] * len(old))], "cleared")
    expected: dict[bytes, bytes | None] = {
        group + ONE + key + below: key + below
        for place, (group, key) in enumerate(KEYS)
        for below in WINDOWS
        if place % 3
    }
    fill(backend, {key: value for key, value in expected.items() if value is not None})
    writes = EpochWrites(1 << 20, IN_MEMORY and Path(IN_MEMORY))
    table = StateTable(backend, KEYS, writes)
    position = 0
    for number, (forward, below, action) in enumerate(steps):
        if number == spills_after:
            writes.spill()
        if number == part:
            table.begin_part(KEYS)
        position = (position + forward) % len(KEYS)
        table.enter(position)
        key = table.stored_key(ONE) + below
        if action == "get":
            assert table.get_entry(ONE, below) == expected.get(key)
            continue
        value = b"%d" % number if action == "write" else None
        table.write_below(table.stored_key(ONE), key, value)
        expected[key] = value
    table.close()
