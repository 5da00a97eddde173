"""The heap backend: the contract, and its own promises."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from state_backends import (
    BackendCorruptError,
    BackendFullError,
    Changes,
    StateBackend,
    open_backend,
)
from state_backends.backend import VERSION_KEY
from tests.contracts.backend_contract import BackendContract

_LEAF = 2
"""The flag of a page with entries in the file of LMDB."""

_FLIP_A_BIT = """
import os, random, sys
from pathlib import Path
from state_backends import StateBackendError, open_backend

place, seeds = Path(sys.argv[1]), int(sys.argv[2])
data = place / "data.mdb"
good = data.read_bytes()
keys = [b"%05d" % (2 * n) for n in range(3000)]
values = [b"v%05d" % n * 8 for n in range(3000)]
absent = [b"%05d" % (2 * n + 1) for n in range(3000)]

def alone(backend, keys):  # a key alone is read in another way
    return [backend.get_many([key])[0] for key in keys]

def right(read, expected):
    try:
        return read() == expected
    except StateBackendError:
        return True  # it was noticed

def ask():
    try:
        with open_backend("heap", place, create=False) as backend:
            return (
                right(backend.version, "2")
                and right(lambda: backend.get_many(keys), values)
                and right(lambda: backend.get_many(absent), [None] * len(absent))
                and right(lambda: alone(backend, keys[::5]), values[::5])
                and right(lambda: alone(backend, absent[::5]), [None] * len(absent[::5]))
                and right(lambda: list(backend.scan()), list(zip(keys, values)))
                and right(lambda: [key for key, _ in backend.scan(b"01")], keys[500:1000])
            )
    except StateBackendError:
        return True

for seed in range(seeds):
    rng = random.Random(seed)
    at = rng.randrange(len(good))
    flipped = bytes([good[at] ^ 1 << rng.randrange(8)])
    with data.open("r+b") as file:
        file.seek(at)
        file.write(flipped)
    child = os.fork()  # a page number that leads out of the file kills the process
    if not child:
        os._exit(not ask())
    status = os.waitpid(child, 0)[1]
    if status and not os.WIFSIGNALED(status):
        print(f"seed {seed}: byte {at} of {len(good)}")
    with data.open("r+b") as file:
        file.seek(at)
        file.write(good[at : at + 1])
"""

_READ_ALL = """
import sys
from pathlib import Path
from state_backends import StateBackendError, open_backend
try:
    with open_backend("heap", Path(sys.argv[1]), create=False) as backend:
        print(backend.version(), sum(1 for _ in backend.scan()))
except StateBackendError as exc:
    print(type(exc).__name__)
"""


def read_in_another_process(directory: Path) -> tuple[int, str]:
    command = [sys.executable, "-c", _READ_ALL, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Return a backend of 3,000 entries on some hundred pages."""
    directory = tmp_path / "filled"
    with open_backend("heap", directory, create=True) as backend:
        backend.load([Changes([b"%05d" % n for n in range(3000)], [b"v" * 100] * 3000)], "1")
    return directory


class TestHeapBackend(BackendContract):
    backend_type = "heap"


def test_another_process_sees_the_same_copy_while_it_is_open(filled: Path) -> None:
    with open_backend("heap", filled, create=False) as backend:
        backend.apply([Changes([b"new"], [b""])], "2")
        assert read_in_another_process(filled) == (0, "2 3001")


def test_a_scan_is_of_one_version_whatever_is_applied_meanwhile(filled: Path) -> None:
    with open_backend("heap", filled, create=False) as backend:
        scan = backend.scan()
        first = next(scan)
        backend.apply([Changes([b"%05d" % n for n in range(3000)], [None] * 3000)], "2")
        assert len([first, *scan]) == 3000
        assert list(backend.scan()) == []


def test_pages_that_were_never_written_are_not_missed(tmp_path: Path) -> None:
    large = Changes([b"a", b"a"], [b"v" * 400_000, None])
    with open_backend("heap", tmp_path / "state", create=True) as backend:
        backend.load([], "0")
        for version, parts in (("1", []), ("2", []), ("3", [large])):
            backend.apply(parts, version)
    assert read_in_another_process(tmp_path / "state") == (0, "3 0")


def test_a_full_map_is_an_error_that_leaves_the_old_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_backends.heap.MOST_MAP_BYTES", 1 << 20)
    with open_backend("heap", tmp_path / "small", create=True) as backend:
        backend.apply([Changes([b"a"], [b"1"])], "1")
        with pytest.raises(BackendFullError, match="small"):
            backend.apply([Changes([b"a", b"b"], [b"2", b"v" * (2 << 20)])], "2")
        assert backend.version() == "1"
        assert list(backend.scan()) == [(b"a", b"1")]
        backend.apply([Changes([b"a"], [b"3"])], "3")
        assert backend.get_many([b"a"]) == [b"3"]


@pytest.mark.parametrize("eighths", range(8))
def test_a_cut_file_is_corrupt_and_does_not_kill_the_process(filled: Path, eighths: int) -> None:
    """Scenario 7: the heap's local file, cut."""
    data = filled / "data.mdb"
    data.write_bytes(data.read_bytes()[: data.stat().st_size * eighths // 8])
    assert read_in_another_process(filled) == (0, "BackendCorruptError")


@pytest.mark.parametrize("seed", range(4))
def test_an_overwritten_page_never_gives_a_partial_scan(filled: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray((filled / "data.mdb").read_bytes())
    start = rng.randrange(2, len(data) // 4096) * 4096
    data[start : start + 4096] = rng.randbytes(4096)
    (filled / "data.mdb").write_bytes(data)
    code, answer = read_in_another_process(filled)
    assert code == 0, answer
    assert answer in ("1 3000", "BackendCorruptError")


def test_a_file_of_something_else_is_corrupt(filled: Path) -> None:
    data = filled / "data.mdb"
    data.write_bytes((b"something else" * data.stat().st_size)[: data.stat().st_size])
    with pytest.raises(BackendCorruptError, match="filled"):
        open_backend("heap", filled, create=False)


def test_a_flipped_bit_never_changes_or_hides_an_entry(tmp_path: Path) -> None:
    """Scenario 7: the heap's local file, one bit."""
    place = tmp_path / "state"
    keys = [b"%05d" % (2 * n) for n in range(3000)]
    values = [b"v%05d" % n * 8 for n in range(3000)]
    with open_backend("heap", place, create=True) as backend:
        backend.load([Changes(keys, values)], "1")
        backend.apply([Changes(keys[::7], values[::7])], "2")  # so there are free pages, too
    command = [sys.executable, "-c", _FLIP_A_BIT, str(place), "80"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""


def _is_noticed(backend: StateBackend, keys: list[bytes], value: bytes) -> bool:
    try:
        assert backend.get_many(keys) == [value] * len(keys)
    except BackendCorruptError:
        return True
    return False


def test_an_entry_whose_pointer_leads_elsewhere_is_not_missing(tmp_path: Path) -> None:
    """Entries of 64 bytes: one bit of a pointer leads to another entry, which is whole."""
    place = tmp_path / "state"
    value = b"v" * 46
    keys = [b"%05d" % (2 * n) for n in range(3000)]
    with open_backend("heap", place, create=True) as backend:
        backend.load([Changes(keys, [value] * len(keys))], "1")
    good = (place / "data.mdb").read_bytes()
    with lmdb.open(str(place), readonly=True, lock=False) as environment:
        page_bytes = environment.stat()["psize"]
    hidden = 0
    for page in range(2, len(good) // page_bytes - 16):
        start = page * page_bytes
        _, _, flags, lower, _ = struct.unpack_from("<QHHHH", good, start)
        if flags != _LEAF:
            continue
        for at in range(start + 16, start + lower, 16):
            (pointer,) = struct.unpack_from("<H", good, at)
            node = start + pointer
            key = good[node + 8 : node + 8 + struct.unpack_from("<H", good, node + 6)[0]]
            for bit in range(6, 16):
                damaged = bytearray(good)
                struct.pack_into("<H", damaged, at, pointer ^ 1 << bit)
                (place / "data.mdb").write_bytes(damaged)
                with open_backend("heap", place, create=False) as backend:
                    hidden += _is_noticed(backend, [key], value)  # read in another way
                    hidden += _is_noticed(backend, [key, key], value)
    assert hidden > 2000


def test_an_entry_that_lies_elsewhere_is_not_missing(filled: Path) -> None:
    """The first letter of a key is changed, so a look-up misses it."""
    data = (filled / "data.mdb").read_bytes()
    # LMDB does not clear its pages: what was in memory before may be in their unused parts.
    (filled / "data.mdb").write_bytes(data.replace(b"01234v", b"91234v"))
    with open_backend("heap", filled, create=False) as backend:
        for read in (
            lambda: backend.get_many([b"01234"]),
            lambda: backend.get_many([b"01234", b"01235"]),
            lambda: list(backend.scan()),
        ):
            with pytest.raises(BackendCorruptError, match="filled"):
                read()
        with pytest.raises(BackendCorruptError):
            list(backend.scan_in_parts(1000, 1 << 20))


def test_a_file_has_nothing_of_another_state_of_the_process(tmp_path: Path) -> None:
    """LMDB's pages are memory that the process had for something else; savepoints copy them."""
    keys = [b"%06d" % n for n in range(100)]
    for attempt in range(3):
        place = tmp_path / f"state{attempt}"
        with (
            open_backend("heap", tmp_path / f"other{attempt}", create=True) as other,
            open_backend("heap", place, create=True) as backend,
        ):
            for epoch in range(20):
                other.apply([Changes(keys, [b"secret" * 20] * len(keys))], str(epoch))
            other.close()
            backend.load([Changes(keys, [b"v" * 100] * len(keys))], "1")
            for epoch in range(10):
                backend.apply([Changes(keys[epoch::50], [b"w"] * 2)], str(epoch + 2))
            backend.snapshot_files(tmp_path / f"snapshot{attempt}")
        assert b"secret" not in (tmp_path / f"snapshot{attempt}" / "data.mdb").read_bytes()


def test_a_copy_of_a_version_without_checksums_is_rebuilt(tmp_path: Path) -> None:
    place = tmp_path / "old"
    with lmdb.open(str(place)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"a", b"1")
        transaction.put(VERSION_KEY, b"1")
    (place / "size").write_text(f"{(place / 'data.mdb').stat().st_size:020}")
    with open_backend("heap", place, create=False) as backend, pytest.raises(BackendCorruptError):
        backend.version()


def test_the_file_shrinks_once_most_of_it_is_free(tmp_path: Path) -> None:
    place = tmp_path / "state"
    keys = [b"%05d" % n for n in range(10_000)]
    parts = [Changes(keys[n : n + 100], [b"v" * 10_000] * 100) for n in range(0, 10_000, 100)]
    with open_backend("heap", place, create=True) as backend:
        backend.load(parts, "1")
        full = (place / "data.mdb").stat().st_size
        assert full > 64 << 20
        kept = 1000
        backend.apply([Changes(keys[kept:], [None] * (len(keys) - kept))], "2")
        assert (place / "data.mdb").stat().st_size < full / 4
        assert backend.version() == "2"
        assert len(list(backend.scan())) == kept
        backend.apply([Changes([b"new"], [b"1"])], "3")
    with open_backend("heap", place, create=False) as backend:
        assert backend.version() == "3"
        assert len(list(backend.scan())) == kept + 1
    assert {path.name for path in place.iterdir()} == {"data.mdb", "lock.mdb", "size"}


def test_address_space_follows_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state may become many times as large as the space first reserved."""
    monkeypatch.setattr("state_backends.heap.ROOM_BYTES", 4 << 20)
    keys = [b"%05d" % n for n in range(2_000)]
    parts = [Changes(keys[n : n + 100], [b"v" * 20_000] * 100) for n in range(0, 2_000, 100)]
    with open_backend("heap", tmp_path / "state", create=True) as backend:
        backend.load(parts, "1")
        assert len(list(backend.scan())) == 2_000


def test_a_part_that_changes_many_pages_fits_into_limited_address_space(tmp_path: Path) -> None:
    """Each entry divides a page: of a part that is one transaction there is no room for all."""
    program = """
import resource, sys
from pathlib import Path
from state_backends import Changes, open_backend

resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
N = 20_000
full = [b"%06d" % n for n in range(0, 10 * N, 5)]
between = [b"%06d" % n for n in range(2, 10 * N, 10)]
with open_backend("heap", Path(sys.argv[1]), create=True) as backend:
    for start in 0, 1:  # pages are full then
        backend.apply([Changes(full[start::2], [b"v" * 1960] * N)], "1")
    backend.apply([Changes(between, [b"w" * 560] * N), Changes(full[:N], [None] * N)], "2")
    print(sum(1 for _ in backend.scan()), backend.version())
    print(backend.get_many([full[0], between[0], full[N], between[-1]]) ==
          [None, b"w" * 560, b"v" * 1960, b"w" * 560])
"""
    printed = subprocess.check_output(
        [sys.executable, "-c", program, str(tmp_path / "state")], text=True
    )
    assert printed.split() == ["40000", "2", "True"]


def test_limited_address_space_is_shared_with_others(tmp_path: Path) -> None:
    """As under spark.executor.pyspark.memory, which limits what a worker may map (RLIMIT_AS)."""
    program = """
import resource, sys
from pathlib import Path
from state_backends import Changes, open_backend
from state_backends.errors import BackendResourceError

resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
keys = [b"%06d" % n for n in range(60_000)]
with open_backend("heap", Path(sys.argv[1]), create=True) as backend:
    backend.load([Changes(keys, [b"v" * 500] * len(keys))], "1")
    print(len(list(backend.scan())), backend.version())
    try:
        backend.apply((Changes([b"x%d" % n], [b"v" * (16 << 20)]) for n in range(60)), "2")
    except BackendResourceError as error:
        print(error)
"""
    printed = subprocess.check_output(
        [sys.executable, "-c", program, str(tmp_path / "state")], text=True
    )
    counted, error = printed.splitlines()
    assert counted == "60000 1"
    assert "600 MiB" in error
    assert "spark.executor.pyspark.memory" in error
