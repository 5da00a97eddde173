"""A backend of one small file: the state of a simulated subtask, without a database to open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from state_backends import BackendCorruptError, Changes, StateBackend
from state_backends.backend import VERSION_KEY

_FILE = "state"


class FileBackend(StateBackend):
    """State in a file that is replaced whole.

    Parameters
    ----------
    directory
        Where it is.
    create
        Whether it is new.
    """

    def __init__(self, directory: Path, *, create: bool, read_only: bool = False) -> None:
        self._file = directory / _FILE
        self._state: dict[bytes, bytes] = {}
        if create:
            directory.mkdir(parents=True, exist_ok=True)
            return
        try:
            self._state = msgspec.msgpack.decode(self._file.read_bytes(), type=dict[bytes, bytes])
        except (OSError, msgspec.MsgspecError) as exc:
            raise BackendCorruptError(f"{self._file}: {exc}") from exc

    def marker(self) -> bytes | None:
        return self._state.get(VERSION_KEY)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._state.get(key) for key in keys]

    def scan(self, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self._state):
            if key != VERSION_KEY and key >= start and key.startswith(prefix):
                yield key, self._state[key]

    def apply(self, changes: Iterable[Changes], version: str) -> None:
        state = dict(self._state)
        for part in changes:
            for key, value in zip(part.keys, part.values, strict=True):
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        state[VERSION_KEY] = version.encode()
        new = self._file.with_name("new")
        new.write_bytes(msgspec.msgpack.encode(state))
        new.replace(self._file)
        self._state = state

    def load(self, changes: Iterable[Changes], version: str) -> None:
        self.apply(changes, version)

    def snapshot_files(self, directory: Path) -> list[str]:
        directory.mkdir()
        (directory / _FILE).write_bytes(msgspec.msgpack.encode(self._state))
        return [_FILE]

    def close(self) -> None:
        """Do nothing: nothing is open."""
