"""Random histories of a backend against a dict."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from state_backends import Changes, open_backend

_short_keys = st.binary(min_size=1, max_size=3).filter(lambda key: key < b"\xff\xff")
_long_keys = st.builds(
    lambda length, tail: b"k" * length + tail,
    st.sampled_from([446, 447, 448, 449, 479, 480, 511, 2000]),
    st.sampled_from([b"", b"\x00", b"k", b"z", b"\xff" * 33]),
)
KEYS = _short_keys | st.sampled_from([b"a", b"ab", b"abc", b"\xff\xfe"]) | _long_keys
VALUES = st.binary(max_size=8) | st.sampled_from([1500, 5000, 40_000]).map(bytes)
CHANGES = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=8)
HOW_MANY = st.integers(0, 3)
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Histories are long, and nothing here is about disks."""


class BackendMachine(RuleBasedStateMachine):
    """Applied changes are there, at their version; failed ones are not."""

    backend_type: str

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.root = Path(self.temporary.name)
        self.directory = self.root / "state"
        self.backend = open_backend(self.backend_type, self.directory, create=True)
        self.model: dict[bytes, bytes] = {}
        self.version: str | None = None
        self.applied = 0

    @initialize(entries=st.dictionaries(KEYS, st.binary(max_size=8), max_size=8))
    def load(self, entries: dict[bytes, bytes]) -> None:
        parts = [Changes([key], [value]) for key, value in entries.items()]
        self.backend.load(parts, "loaded")
        self.model, self.version = dict(entries), "loaded"

    @rule(parts=st.lists(CHANGES, max_size=3))
    def apply(self, parts: list[list[tuple[bytes, bytes | None]]]) -> None:
        self.applied += 1
        self.version = str(self.applied)
        self.backend.apply((_changes(part) for part in parts), self.version)
        for part in parts:
            for key, value in part:
                self.model.pop(key, None)
                if value is not None:
                    self.model[key] = value

    @rule(part=CHANGES)
    def fail_to_apply(self, part: list[tuple[bytes, bytes | None]]) -> None:
        def broken() -> Iterator[Changes]:
            yield _changes(part)
            raise InterruptedError

        with pytest.raises(InterruptedError):
            self.backend.apply(broken(), "never")

    @rule(keys=st.lists(KEYS, max_size=6))
    def get_random_keys(self, keys: list[bytes]) -> None:
        assert self.backend.get_many(keys) == [self.model.get(key) for key in keys]

    @rule()
    def get_all_keys(self) -> None:
        keys = list(self.model)
        assert self.backend.get_many(keys) == list(self.model.values())

    @rule(key=KEYS, length=st.integers(0, 2000))
    def scan(self, key: bytes, length: int) -> None:
        prefix = key[:length]
        found = [pair for pair in sorted(self.model.items()) if pair[0].startswith(prefix)]
        assert list(self.backend.scan(prefix)) == found

    @rule(key=KEYS, length=st.integers(0, 500), start=KEYS)
    def scan_from_a_start(self, key: bytes, length: int, start: bytes) -> None:
        prefix = key[:length]
        found = [
            pair
            for pair in sorted(self.model.items())
            if pair[0].startswith(prefix) and pair[0] >= start
        ]
        assert list(self.backend.scan(prefix, start)) == found

    @rule(consumed=HOW_MANY)
    def reopen(self, consumed: int) -> None:
        scan = self.backend.scan()
        assert list(islice(scan, consumed)) == sorted(self.model.items())[:consumed]
        self.backend.close()
        self.backend = open_backend(self.backend_type, self.directory, create=False)

    @invariant()
    def content_is_the_model(self) -> None:
        assert self.backend.version() == self.version
        assert list(self.backend.scan()) == sorted(self.model.items())

    def teardown(self) -> None:
        self.backend.close()
        self.temporary.cleanup()


def _changes(part: list[tuple[bytes, bytes | None]]) -> Changes:
    return Changes([key for key, _ in part], [value for _, value in part])


class RocksDBMachine(BackendMachine):
    backend_type = "rocksdb"


class HeapMachine(BackendMachine):
    backend_type = "heap"


TestRocksDBHistory = RocksDBMachine.TestCase
TestRocksDBHistory.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestHeapHistory = HeapMachine.TestCase
TestHeapHistory.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_changes_have_a_value_for_each_key() -> None:
    for values in ([b"2"], [b"2", b"3", b"4"]):
        with pytest.raises(ValueError, match="2 keys"):
            Changes([b"a", b"b"], values)
