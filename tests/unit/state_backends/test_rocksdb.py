"""The RocksDB backend: the contract, and its own promises."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from state_backends import (
    BACKEND_TYPES,
    BackendCorruptError,
    BackendLockedError,
    Changes,
    StateBackend,
    StateBackendError,
    open_backend,
)
from state_backends.rocksdb_format import RocksDBFormat
from tests.contracts.backend_contract import BackendContract

_HOLD = """
import sys
from pathlib import Path
from state_backends import open_backend
with open_backend("rocksdb", Path(sys.argv[1]), create=False):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def entries() -> dict[bytes, bytes]:
    rng = random.Random(7)
    return {b"%05d" % number: rng.randbytes(60) for number in range(3000)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, entries: dict[bytes, bytes]) -> Path:
    """A backend whose entries are spread over three SST files."""
    directory = tmp_path_factory.mktemp("rocksdb") / "stored"
    keys = list(entries)
    with open_backend("rocksdb", directory, create=True) as backend:
        for part in range(3):
            chosen = keys[part::3]
            backend.apply([Changes(chosen, [entries[key] for key in chosen])], str(part))
    assert len(list(directory.glob("*.sst"))) == 3
    return directory


@pytest.fixture
def copied(stored: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may damage."""
    return Path(shutil.copytree(stored, tmp_path / "copied"))


class TestRocksDBBackend(BackendContract):
    backend_type = "rocksdb"


def test_a_second_process_is_locked_out_until_the_first_is_done(copied: Path) -> None:
    """Scenario 26: two processes."""
    command = [sys.executable, "-c", _HOLD, str(copied)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(BackendLockedError, match="copied"):
            open_backend("rocksdb", copied, create=False)
        holder.communicate()
    open_backend("rocksdb", copied, create=False).close()


def test_a_second_opener_of_one_process_is_locked_out_too(copied: Path) -> None:
    """Scenario 26: one process."""
    with open_backend("rocksdb", copied, create=False):
        with pytest.raises(BackendLockedError, match="copied"):
            open_backend("rocksdb", copied, create=False)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_of_many_threads_one_has_it_until_its_task_is_over(copied: Path, fails: bool) -> None:
    """Scenario 26: threads; the lock is released with the task, even if a scan is open."""
    threads = 8
    all_tried, outcomes = threading.Barrier(threads), []

    def task() -> None:
        try:
            with open_backend("rocksdb", copied, create=False) as backend:
                scan = backend.scan()
                next(scan)
                all_tried.wait(60)
                if fails:
                    raise RuntimeError("the task")
                outcomes.append("ended")
        except (BackendLockedError, RuntimeError) as exc:
            outcomes.append(type(exc).__name__)
            if isinstance(exc, BackendLockedError):
                all_tried.wait(60)

    for _ in range(2):
        running = [threading.Thread(target=task) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
        held = "RuntimeError" if fails else "ended"
        assert sorted(outcomes) == sorted([held, *["BackendLockedError"] * (threads - 1)])
        outcomes.clear()


def test_a_directory_called_lock_is_not_taken_for_a_locked_one(copied: Path) -> None:
    directory = copied.rename(copied.with_name("lock"))
    (directory / "CURRENT").unlink()
    for missing in (directory, directory / "lock"):
        with pytest.raises(BackendCorruptError, match="lock"):
            open_backend("rocksdb", missing, create=False)


@pytest.mark.parametrize("seed", range(15))
def test_a_flipped_bit_in_a_data_file_is_found_or_does_no_harm(
    copied: Path, entries: dict[bytes, bytes], seed: int
) -> None:
    """Scenario 7: a bit of an SST file."""
    rng = random.Random(seed)
    file = rng.choice(sorted(copied.glob("*.sst")))
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    expected = list(entries.values())
    outcomes = [
        _outcome(copied, lambda backend: dict(backend.scan()) == entries),
        _outcome(copied, lambda backend: _in_parts(backend) == entries),
        _outcome(copied, lambda backend: backend.get_many(list(entries)) == expected),
        _outcome(copied, lambda backend: [backend.get_many([k])[0] for k in entries] == expected),
        _outcome(copied, lambda backend: _in_parts(backend) == entries, read_only=True),
    ]
    assert set(outcomes) <= {True, BackendCorruptError}, f"seed {seed}: {outcomes}"


def _in_parts(backend: StateBackend) -> dict[bytes, bytes | None]:
    parts = backend.scan_in_parts(100, 1 << 20)
    return {key: value for part in parts for key, value in zip(part.keys, part.values, strict=True)}


def _outcome(
    directory: Path, read: Callable[[StateBackend], bool], *, read_only: bool = False
) -> object:
    """Return what `read` says, or the type of the error that it ends with."""
    try:
        with open_backend("rocksdb", directory, create=False, read_only=read_only) as backend:
            return read(backend)
    except StateBackendError as exc:
        return type(exc)


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_missing_file_is_corrupt_and_costs_no_other_file(copied: Path, pattern: str) -> None:
    """Scenario 7: one or several files of a database are missing."""
    for path in [*copied.glob("*.log"), *copied.glob(pattern)]:
        path.unlink()
    remaining = {path.name for path in copied.glob("*.sst")}
    for read_only in (False, True, False):
        with pytest.raises(BackendCorruptError, match="copied"):
            open_backend("rocksdb", copied, create=False, read_only=read_only)
    assert {path.name for path in copied.glob("*.sst")} == remaining


def test_a_database_opened_for_reading_is_not_changed(
    copied: Path, entries: dict[bytes, bytes]
) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    with open_backend("rocksdb", copied, create=False, read_only=True) as backend:
        assert (backend.version(), _in_parts(backend)) == ("2", entries)
        with open_backend("rocksdb", copied, create=False, read_only=True) as another:
            assert dict(another.scan()) == entries
        with pytest.raises(StateBackendError, match="copied"):
            backend.apply([Changes([b"new"], [b"value"])], "3")
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


def test_what_cannot_be_opened_for_reading(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read only"):
        open_backend("rocksdb", tmp_path / "new", create=True, read_only=True)
    with pytest.raises(ValueError, match="heap"):
        open_backend("heap", copied, create=False, read_only=True)


def test_stored_bytes_are_never_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    value = b"\x06cos\nsystem\n(S'touch " + bytes(canary) + b"'\ntR."
    with open_backend("rocksdb", tmp_path / "db", create=True) as backend:
        backend.apply([Changes([b"a"], [value])], "1")
    with open_backend("rocksdb", tmp_path / "db", create=False) as backend:
        assert backend.get_many([b"a"]) == [value]
        assert list(backend.scan()) == [(b"a", value)]
    assert not canary.exists()


@pytest.mark.slow
def test_small_runs_are_merged_and_large_ones_left_alone(tmp_path: Path) -> None:
    """In short epochs, a merge of large runs would never end and would start again each time."""
    place = tmp_path / "db"
    rng = random.Random(3)
    state: dict[bytes, bytes] = {}
    merged_bytes: list[int] = []

    def epoch(version: str, changes: dict[bytes, bytes]) -> None:
        state.update(changes)
        with open_backend("rocksdb", place, create=not place.exists()) as backend:
            backend.apply([Changes(list(changes), list(changes.values()))], version)
        log = (place / "LOG").read_text()  # also those of cancelled merges
        begun = re.findall(r'"compaction_started".*"input_data_size": (\d+)', log)
        merged_bytes.extend(map(int, begun))

    # As after a load: each smaller than the one before it, all at most three times the largest.
    for run, size in enumerate((100_000, 80_000, 60_000, 50_000)):
        numbers = range(run, 4 * size, 4)
        epoch(f"large {run}", {b"%06d" % number: rng.randbytes(100) for number in numbers})
    assert not merged_bytes
    assert min(path.stat().st_size for path in place.glob("*.sst")) > 4 << 20
    deadline = time.monotonic() + 60
    epochs = 0
    while len(merged_bytes) < 5:
        assert time.monotonic() < deadline, "small runs pile up"
        epoch(f"small {epochs}", {b"%06d" % rng.randrange(200_000): b"new" for _ in range(50)})
        epochs += 1
    assert max(merged_bytes) < 1 << 20
    with open_backend("rocksdb", place, create=False) as backend:
        keys = sorted(state)
        assert backend.get_many(keys) == [state[key] for key in keys]
        assert dict(backend.scan()) == state


@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
@pytest.mark.parametrize("entries_of_a_part", [1, 63, 64, 65, 1000])
def test_parts_of_a_scan(tmp_path: Path, backend_type: str, entries_of_a_part: int) -> None:
    """A part ends with the entry that reaches a limit, also if large values follow small ones."""
    sizes = [10] * 200 + [5000] * 100 + [10, 25_000, 10, 10] * 50 + [10] * 300
    stored = {b"%04d" % place: bytes(size) for place, size in enumerate(sizes)}
    with open_backend(backend_type, tmp_path / "db", create=True) as backend:
        backend.load([Changes(list(stored), list(stored.values()))], "1")
        parts = list(backend.scan_in_parts(entries_of_a_part, 20_000))
    assert [key for part in parts for key in part.keys] == list(stored)
    assert [value for part in parts for value in part.values] == list(stored.values())
    assert max(map(len, parts)) <= entries_of_a_part
    for part in parts:
        sizes = [4 + len(value or b"") for value in part.values]
        assert sum(sizes[:-1]) < 20_000
        assert part is parts[-1] or len(part) == entries_of_a_part or sum(sizes) >= 20_000


def only_files(directory: Path, target: Path, names: set[str]) -> Path:
    target.mkdir()
    for name in names:
        (target / name).hardlink_to(directory / name)
    return target


def snapshot_of(backend: StateBackend, directory: Path) -> set[str]:
    return {name for name in backend.snapshot_files(directory) if name.endswith(".sst")}


@pytest.fixture
def one_file(tmp_path: Path, entries: dict[bytes, bytes]) -> Path:
    """A backend with one SST file; RocksDB merges none as long as there are few."""
    directory = tmp_path / "one_file"
    with open_backend("rocksdb", directory, create=True) as backend:
        backend.apply([Changes([*entries], [*entries.values()])], "1")
    return directory


def test_keys_of_some_files(one_file: Path, tmp_path: Path) -> None:
    """The keys that were written after a snapshot are those of the files that it does not have."""
    with open_backend("rocksdb", one_file, create=False) as backend:
        first = snapshot_of(backend, tmp_path / "first")
        written = [b"00007", b"00008", b"new"]
        backend.apply([Changes(written, [b"", b"x", b"y"])], "later")
        second = snapshot_of(backend, tmp_path / "second")
    own = only_files(tmp_path / "second", tmp_path / "own", second - first)
    parts = RocksDBFormat().written_keys(own)
    assert parts is not None
    assert [key for part in parts for key in part] == written


@pytest.mark.parametrize("deletes", ["a key", "a range"])
def test_keys_of_files_with_deletions_are_not_known(
    one_file: Path, tmp_path: Path, deletes: str
) -> None:
    with open_backend("rocksdb", one_file, create=False) as backend:
        first = snapshot_of(backend, tmp_path / "first")
        if deletes == "a key":
            backend.apply([Changes([b"00007", b"00008"], [None, b"x"])], "later")
        else:
            backend.delete_ranges([(b"00007", b"00009")], "later")
        second = snapshot_of(backend, tmp_path / "second")
    own = only_files(tmp_path / "second", tmp_path / "own", second - first)
    assert RocksDBFormat().written_keys(own) is None


def test_keys_of_a_damaged_file_are_an_error(copied: Path, tmp_path: Path) -> None:
    names = {path.name for path in copied.glob("*.sst")}
    own = only_files(copied, tmp_path / "own", names)
    damaged = own / min(names)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 1
    damaged.unlink()
    damaged.write_bytes(content)
    with pytest.raises(BackendCorruptError):
        RocksDBFormat().written_keys(own)
