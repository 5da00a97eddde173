"""What every backend must do: the test suite that the tests of each backend inherit.

::

    class TestHeapBackend(BackendContract):
        backend_type = "heap"
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from state_backends.backend import (
    FIRST_RESERVED_KEY,
    STEP_BYTES,
    Changes,
    HalfApplied,
    StateBackend,
)
from state_backends.errors import BackendCorruptError, StateBackendError
from state_backends.registry import open_backend

_HEAD = b"k" * 447
LONG_KEYS = [
    *(b"k" * length for length in (446, 447, 448, 449, 479, 480, 481, 510, 511, 512, 513, 2000)),
    *(_HEAD + b"k" + tail for tail in (b"\x00", b"a", b"a\x00", b"\xff", b"\xff" * 32, b"z" * 99)),
    *(_HEAD + tail for tail in (b"a", b"a" * 33, b"z", b"z" * 64)),
    *(b"m" * length for length in (448, 480, 512)),
]
"""Keys around the lengths at which a store may store keys differently, many with one long head."""

PREFIXES = [b"", b"a", b"ab", b"abc", b"b", b"\x00", b"\xff", b"\xff\xfe", b"k", b"zz"]
SHORT_KEYS = [
    b"\x00", b"\x00\x00", b"\x7f", b"\x80", b"a", b"a\x00", b"a\xff", b"ab", b"abc", b"abd", b"b",
    b"\xff", b"\xff\x00", b"\xff\xfe", b"\xff\xfe\xff\xff",
]  # fmt: skip

_LARGE_PARTS = 4
_LOADED = (
    f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import backend_contract as c"
)
"""Loads this module only, so that a process that is to be killed starts faster."""

_KILLED = f"{_LOADED}; c.apply_and_be_killed(*sys.argv[1:])"
_CHILD = f"{_LOADED}; c.apply_until_killed(*sys.argv[1:])"


class BackendContract:
    """The tests of a backend; inherit the class and set `backend_type`."""

    backend_type: str

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "backend"

    def open(self, directory: Path, *, create: bool = False) -> StateBackend:
        return open_backend(self.backend_type, directory, create=create)

    def make(self, directory: Path, entries: Mapping[bytes, bytes], version: str = "1") -> None:
        with self.open(directory, create=True) as backend:
            backend.apply([puts(entries)], version)

    def check(self, directory: Path, entries: Mapping[bytes, bytes], version: str | None) -> None:
        with self.open(directory) as backend:
            check_content(backend, entries, version)

    def test_a_new_backend_is_empty_and_has_no_version(self, directory: Path) -> None:
        directory.mkdir()
        with self.open(directory, create=True) as backend:
            check_content(backend, {}, None)

    def test_a_missing_key_is_none(self, directory: Path) -> None:
        with self.open(directory, create=True) as backend:
            backend.apply([puts({b"b": b"1"})], "1")
            assert backend.get_many([b"a", b"b", b"b\x00", b"c"]) == [None, b"1", None, None]

    def test_a_put_replaces_and_a_delete_removes(self, directory: Path) -> None:
        self.make(directory, {b"a": b"1", b"b": b"2", b"c": b"3"})
        with self.open(directory) as backend:
            backend.apply([Changes([b"b", b"c", b"never there"], [b"new", None, None])], "2")
        self.check(directory, {b"a": b"1", b"b": b"new"}, "2")

    def test_ranges_are_deleted(self, directory: Path) -> None:
        content = {b"%05d" % number: b"x" for number in range(25_000)}
        self.make(directory, content)
        ranges = [(b"", b"00003"), (b"00010", b"00012"), (b"12000", b"24998"), (b"7", b"8")]
        for start, end in ranges:
            content = {key: b"x" for key in content if not start <= key < end}
        with self.open(directory) as backend:
            backend.delete_ranges(ranges, "2")
        self.check(directory, content, "2")

    def test_changes_are_applied_in_order(self, directory: Path) -> None:
        with self.open(directory, create=True) as backend:
            first = Changes([b"a", b"a", b"b", b"c"], [b"1", b"2", None, b"1"])
            backend.apply([first, Changes([b"b", b"c", b"c"], [b"3", b"2", None])], "1")
            check_content(backend, {b"a": b"2", b"b": b"3"}, "1")

    def test_get_many_keeps_order_and_duplicates(self, directory: Path) -> None:
        with self.open(directory, create=True) as backend:
            backend.apply([puts({b"a": b"1", b"b": b"2"})], "1")
            wanted = [b"b", b"x", b"a", b"b", b"x", b"a"]
            assert backend.get_many(wanted) == [b"2", None, b"1", b"2", None, b"1"]
            assert backend.get_many([]) == []

    @pytest.mark.parametrize("prefix", PREFIXES)
    def test_scan_yields_just_the_prefix_in_byte_order(
        self, directory: Path, prefix: bytes
    ) -> None:
        self.make(directory, {key: b"v" + key for key in reversed(SHORT_KEYS)})
        expected = [(key, b"v" + key) for key in sorted(SHORT_KEYS) if key.startswith(prefix)]
        with self.open(directory) as backend:
            assert list(backend.scan(prefix)) == expected

    @pytest.mark.parametrize("prefix", [*PREFIXES, _HEAD, _HEAD + b"k", b"k" * 512])
    def test_scan_begins_at_start_in_whatever_relation_to_the_prefix(
        self, directory: Path, prefix: bytes
    ) -> None:
        keys = sorted({*SHORT_KEYS, *LONG_KEYS})
        self.make(directory, {key: b"v" + key for key in keys})
        below = [key for key in keys if key.startswith(prefix)]
        starts = [b"", *keys, *(key + b"\x00" for key in keys), b"k" * 9999, FIRST_RESERVED_KEY]
        with self.open(directory) as backend:
            for start in starts:
                expected = [(key, b"v" + key) for key in below if key >= start]
                assert list(backend.scan(prefix, start)) == expected, start
                assert list(backend.scan(start=start, prefix=prefix)) == expected

    def test_scan_from_a_start_does_not_read_what_comes_before(self, directory: Path) -> None:
        self.make(directory, {b"%06d" % number: b"v" * 100 for number in range(20_000)})
        with self.open(directory) as backend:
            for number in range(0, 20_000, 10):  # a million entries, if it did
                first = next(iter(backend.scan(start=b"%06d" % number)))
                assert first == (b"%06d" % number, b"v" * 100)

    @pytest.mark.parametrize(
        ("entries", "size_bytes", "expected"),
        [
            (7, 1 << 20, [7, 7, 7, 4]),
            (25, 1 << 20, [25]),
            (100, 1 << 20, [25]),
            (100, 30, [3] * 8 + [1]),
        ],
    )
    def test_parts_of_a_scan_are_all_of_it(
        self, directory: Path, entries: int, size_bytes: int, expected: list[int]
    ) -> None:
        keys = [b"%04d" % number for number in range(25)]
        self.make(directory, dict.fromkeys(keys, b"v" * 6))
        with self.open(directory) as backend:
            parts = list(backend.scan_in_parts(entries, size_bytes))
            assert [len(part) for part in parts] == expected
            assert [key for part in parts for key in part.keys] == keys
            assert {value for part in parts for value in part.values} == {b"v" * 6}

    def test_an_empty_backend_has_no_parts(self, directory: Path) -> None:
        with self.open(directory, create=True) as backend:
            assert list(backend.scan_in_parts(10, 1000)) == []
            backend.apply([], "1")
            assert list(backend.scan_in_parts(10, 1000)) == []

    def test_scans_can_run_side_by_side(self, directory: Path) -> None:
        keys = [b"%03d" % number for number in range(300)]
        self.make(directory, dict.fromkeys(keys, b""))
        with self.open(directory) as backend:
            pairs = list(zip(backend.scan(), backend.scan(), strict=True))
        assert pairs == [((key, b""), (key, b"")) for key in keys]

    def test_an_empty_value_is_not_a_missing_one(self, directory: Path) -> None:
        entries = {b"a": b"", b"l" * 600: b""}
        self.make(directory, entries)
        self.check(directory, entries, "1")

    def test_values_of_ten_megabytes(self, directory: Path) -> None:
        entries = {bytes([number]): bytes([number]) * 10_000_000 for number in range(3)}
        self.make(directory, entries)
        self.check(directory, entries, "1")

    def test_long_keys_stay_distinct_and_in_order(self, directory: Path) -> None:
        entries = {key: b"%d" % number for number, key in enumerate(LONG_KEYS)}
        assert len(entries) == len(LONG_KEYS)
        self.make(directory, entries)
        self.check(directory, entries, "1")
        with self.open(directory) as backend:
            gone = LONG_KEYS[::2]
            backend.apply([Changes(gone, [None] * len(gone))], "2")
        self.check(directory, {key: entries[key] for key in LONG_KEYS[1::2]}, "2")

    @pytest.mark.parametrize("length", [1, 447, 448, 449, 480, 512, 1000])
    def test_a_prefix_may_be_as_long_as_a_long_key(self, directory: Path, length: int) -> None:
        self.make(directory, dict.fromkeys(LONG_KEYS, b""))
        prefix = b"k" * length
        with self.open(directory) as backend:
            found = [key for key, _ in backend.scan(prefix)]
        assert found == sorted(key for key in LONG_KEYS if key.startswith(prefix))

    def test_applying_nothing_still_sets_the_version(self, directory: Path) -> None:
        self.make(directory, {b"a": b"1"})
        with self.open(directory) as backend:
            backend.apply([], "2")
            check_content(backend, {b"a": b"1"}, "2")
        self.check(directory, {b"a": b"1"}, "2")

    def test_changes_that_fail_half_way_leave_data_and_version(self, directory: Path) -> None:
        self.make(directory, {b"a": b"1", b"b": b"2"})
        with self.open(directory) as backend:
            with pytest.raises(_CutError):
                backend.apply(_cut([Changes([b"a", b"b", b"new"], [b"other", None, b"3"])]), "2")
            check_content(backend, {b"a": b"1", b"b": b"2"}, "1")
            with pytest.raises(ValueError):  # noqa: PT011  # the message is zip's
                backend.apply([Changes([b"a", b"b"], [b"other"])], "2")
            check_content(backend, {b"a": b"1", b"b": b"2"}, "1")
        self.check(directory, {b"a": b"1", b"b": b"2"}, "1")
        with self.open(directory) as backend:
            backend.apply([puts({b"c": b"3"})], "3")
        self.check(directory, {b"a": b"1", b"b": b"2", b"c": b"3"}, "3")

    def test_changes_of_many_steps_are_applied_as_a_whole(self, directory: Path) -> None:
        self.make(directory, {b"a": b"old", b"z": b"old"})
        entries = large_entries(b"new")
        with self.open(directory) as backend:
            backend.apply([*parts_of(entries), Changes([b"z"], [None])], "2")
            assert backend.half_applied() is None
        self.check(directory, {b"a": b"old", **entries}, "2")

    def test_a_copy_half_way_through_many_steps_has_no_version(self, directory: Path) -> None:
        self.make(directory, {b"a": b"old", b"z": b"old"})
        entries = large_entries(b"new")
        for last in (2, 3):  # the second time it is half applied already
            with self.open(directory) as backend, pytest.raises(_CutError):
                backend.apply(_cut(parts_of(entries)[:last]), "2")
            with self.open(directory) as backend:
                assert backend.version() is None
                assert backend.half_applied() == HalfApplied("1", "2")
        with self.open(directory) as backend:
            backend.apply([*parts_of(entries), Changes([b"a"], [None])], "2")
            assert backend.half_applied() is None
        self.check(directory, {b"z": b"old", **entries}, "2")

    def test_a_load_half_way_is_no_version_that_anything_could_be_added_to(
        self, directory: Path
    ) -> None:
        with self.open(directory, create=True) as backend, pytest.raises(_CutError):
            backend.load(_cut(parts_of(large_entries(b"new"))), "1")
        with self.open(directory) as backend:
            assert backend.version() is None
            assert backend.half_applied() is None

    @pytest.mark.parametrize("killed_at", range(5))
    def test_a_process_killed_between_steps_leaves_what_can_be_completed(
        self, directory: Path, killed_at: int
    ) -> None:
        self.make(directory, {b"a": b"old", b"z": b"old"}, "old")
        command = [sys.executable, "-c", _KILLED, self.backend_type, str(directory), str(killed_at)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        entries = large_entries(b"new")
        with self.open(directory) as backend:
            half = backend.half_applied()
            assert (backend.version(), half) in [("old", None), (None, HalfApplied("old", "new"))]
            if half is None:
                check_content(backend, {b"a": b"old", b"z": b"old"}, "old")
            backend.apply(parts_of(entries), "new")
        self.check(directory, {b"a": b"old", b"z": b"old", **entries}, "new")

    def test_load_fills_an_empty_backend_part_by_part(self, directory: Path) -> None:
        entries = {b"%05d" % n: b"v%d" % n for n in range(20_000)}
        keys = list(entries)
        parts = (
            puts({key: entries[key] for key in keys[n : n + 999]}) for n in range(0, 20_000, 999)
        )
        with self.open(directory, create=True) as backend:
            backend.load(parts, "7")
        self.check(directory, entries, "7")

    def test_a_load_that_fails_leaves_no_version(self, directory: Path) -> None:
        with self.open(directory, create=True) as backend, pytest.raises(_CutError):
            backend.load(_cut([puts({b"a": b"1"})] * 3), "1")
        with self.open(directory) as backend:
            assert backend.version() is None

    def test_a_scan_left_half_way_holds_nothing_back(self, directory: Path) -> None:
        entries = {b"%04d" % number: b"v" * 100 for number in range(2000)}
        self.make(directory, entries)
        for _ in range(3):
            backend = self.open(directory)
            scan, untouched = backend.scan(), backend.scan(b"00")
            parts, none = backend.scan_in_parts(10, 1 << 20), backend.scan_in_parts(10, 1 << 20)
            assert next(scan) == (b"0000", b"v" * 100)
            assert len(next(parts)) == 10
            backend.close()
            self.check(directory, entries, "1")
            del scan, untouched, parts, none

    def test_a_scan_does_not_end_quietly_because_the_backend_was_closed(
        self, directory: Path
    ) -> None:
        self.make(directory, {b"%04d" % number: b"" for number in range(2000)})
        backend = self.open(directory)
        scan, parts = backend.scan(), backend.scan_in_parts(10, 1 << 20)
        next(scan)
        next(parts)
        backend.close()
        with pytest.raises(StateBackendError):
            list(scan)
        with pytest.raises(StateBackendError):
            list(parts)

    def test_a_closed_backend_answers_nothing(self, directory: Path) -> None:
        backend = self.open(directory, create=True)
        backend.close()
        backend.close()
        for use in (
            backend.version,
            lambda: backend.get_many([b"a"]),
            lambda: list(backend.scan()),
            lambda: backend.apply([], "1"),
            lambda: backend.load([], "1"),
            lambda: backend.snapshot_files(directory.with_name("snapshot")),
        ):
            with pytest.raises(StateBackendError):
                use()

    def test_a_snapshot_is_the_state_when_it_was_taken(
        self, directory: Path, tmp_path: Path
    ) -> None:
        entries = {b"%05d" % number: b"v" * 100 for number in range(5000)} | {b"k" * 600: b""}
        self.make(directory, entries)
        first, second = tmp_path / "first", tmp_path / "second"
        with self.open(directory) as backend:
            names = backend.snapshot_files(first)
            backend.apply([Changes([*entries, b"new"], [*[None] * len(entries), b"1"])], "2")
            assert backend.snapshot_files(second)
            check_content(backend, {b"new": b"1"}, "2")
        self.check(directory, {b"new": b"1"}, "2")
        contents = {name: (first / name).read_bytes() for name in names}
        for number in range(2):
            copied = tmp_path / f"copy {number}"
            copied.mkdir()
            for name in names:
                shutil.copy(first / name, copied / name)
            self.check(copied, entries, "1")
            with self.open(copied) as backend:
                backend.apply([Changes([b"00000"], [b"changed"])], "3")
        assert {name: (first / name).read_bytes() for name in names} == contents
        shutil.rmtree(first)
        self.check(directory, {b"new": b"1"}, "2")

    def test_a_snapshot_is_whole_while_scans_are_open(
        self, directory: Path, tmp_path: Path
    ) -> None:
        entries = {b"%04d" % number: b"v" * 100 for number in range(2000)}
        self.make(directory, entries)
        with self.open(directory) as backend:
            scan = backend.scan()
            next(scan)
            backend.snapshot_files(tmp_path / "snapshot")
            assert len(list(scan)) == len(entries) - 1
        self.check(tmp_path / "snapshot", entries, "1")

    def test_a_snapshot_takes_no_directory_that_is_there(
        self, directory: Path, tmp_path: Path
    ) -> None:
        taken = tmp_path / "taken"
        taken.mkdir()
        (taken / "file").write_text("something")
        with self.open(directory, create=True) as backend:
            backend.apply([], "1")
            with pytest.raises(FileExistsError, match="taken"):
                backend.snapshot_files(taken)
        assert [path.name for path in taken.iterdir()] == ["file"]

    def test_a_missing_directory_is_no_backend(self, directory: Path) -> None:
        for _ in range(2):  # the first open must not create the directory
            with pytest.raises(BackendCorruptError, match=directory.name):
                self.open(directory)

    @pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
    def test_files_removed_or_cut_to_nothing_are_no_backend(
        self, directory: Path, damage: Callable[[Path], object]
    ) -> None:
        self.make(directory, {b"a": b"1"})
        for path in directory.iterdir():
            damage(path)
        for _ in range(2):
            with pytest.raises(BackendCorruptError, match=directory.name):
                self.open(directory)

    def test_a_new_backend_takes_no_directory_with_files(self, directory: Path) -> None:
        self.make(directory, {b"a": b"1"})
        with pytest.raises(ValueError, match="not empty"):
            self.open(directory, create=True)
        self.check(directory, {b"a": b"1"}, "1")

    @pytest.mark.parametrize("seed", range(5))
    def test_a_killed_process_leaves_one_whole_version(self, directory: Path, seed: int) -> None:
        rng = random.Random(seed)
        command = [sys.executable, "-c", _CHILD, self.backend_type, str(directory), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            printed = [child.stdout.readline() for _ in range(rng.randrange(1, 8))]
            with suppress(subprocess.TimeoutExpired):
                child.wait(rng.random() * 0.03)  # a moment in one of the next calls of apply
            child.kill()
            printed += child.stdout.readlines()
        last = int(printed[-1])
        with self.open(directory) as backend:
            version = backend.version()
            assert version in (str(last), str(last + 1)), f"seed {seed}"
            check_content(backend, entries_at(seed, int(version)), version)


def puts(entries: Mapping[bytes, bytes]) -> Changes:
    """Return changes that put all of `entries`."""
    return Changes(list(entries), list(entries.values()))


def check_content(
    backend: StateBackend, entries: Mapping[bytes, bytes], version: str | None
) -> None:
    """Check version and whole content of an open backend, by scan and by key."""
    assert backend.version() == version
    assert list(backend.scan()) == sorted(entries.items())
    assert backend.get_many(list(entries)) == list(entries.values())


def apply_until_killed(backend_type: str, directory: str, seed: str) -> None:
    """Apply version after version and print each; runs in a child process."""
    with open_backend(backend_type, Path(directory), create=True) as backend:
        for version in itertools.count(1):
            backend.apply(_changes_of(int(seed), version), str(version))
            print(version, flush=True)


def large_entries(value: bytes) -> dict[bytes, bytes]:
    """Return entries that are applied in several steps."""
    size = STEP_BYTES // len(value) // 10
    return {b"l%03d" % number: value * size for number in range(11 * _LARGE_PARTS)}


def parts_of(entries: Mapping[bytes, bytes]) -> list[Changes]:
    """Return puts of large entries in parts, each of which is enough for a step."""
    keys = list(entries)
    size = len(keys) // _LARGE_PARTS
    starts = range(0, len(keys), size)
    return [puts({key: entries[key] for key in keys[n : n + size]}) for n in starts]


def apply_and_be_killed(backend_type: str, directory: str, killed_at: str) -> None:
    """Kill this process while it applies large changes, before a part or at their end."""

    def changes() -> Iterator[Changes]:
        for number, part in enumerate(parts_of(large_entries(b"new"))):
            if number == int(killed_at):
                os.kill(os.getpid(), signal.SIGKILL)
            yield part
        os.kill(os.getpid(), signal.SIGKILL)

    with open_backend(backend_type, Path(directory), create=False) as backend:
        backend.apply(changes(), "new")


def entries_at(seed: int, version: int) -> dict[bytes, bytes]:
    """Return what a backend holds after :func:`apply_until_killed` came to `version`."""
    entries: dict[bytes, bytes | None] = {}
    for number in range(1, version + 1):
        for part in _changes_of(seed, number):
            entries.update(zip(part.keys, part.values, strict=True))
    return {key: value for key, value in entries.items() if value is not None}


def _changes_of(seed: int, version: int) -> Iterator[Changes]:
    rng = random.Random(f"{seed} {version}")
    for _ in range(4):
        keys = [b"%04d" % rng.randrange(3000) for _ in range(500)]
        values = [rng.randbytes(200) if rng.random() < 0.8 else None for _ in keys]
        yield Changes(keys, values)


class _CutError(Exception):
    """Ends an iteration of changes."""


def _cut(parts: Iterable[Changes]) -> Iterator[Changes]:
    yield from parts
    raise _CutError
