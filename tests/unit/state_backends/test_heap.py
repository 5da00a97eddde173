"""The heap backend: the contract, and what only it promises."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from state_backends import BackendCorruptError, BackendFullError, Changes, open_backend
from state_backends.contract import BackendContract

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
    """A backend of 3,000 entries on some hundred pages."""
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
    monkeypatch.setattr("state_backends.heap.MAP_SIZE_BYTES", 1 << 20)
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
