"""The interface that every state backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

VERSION_KEY = b"\xff\xffversion"
"""Reserved key of the version marker; state keys must sort before ``b"\\xff\\xff"``."""

FIRST_RESERVED_KEY = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class Changes:
    """Puts and deletes as two columns of equal length; a value of ``None`` is a delete."""

    keys: Sequence[bytes]
    values: Sequence[bytes | None]

    def __len__(self) -> int:
        return len(self.keys)


def in_parts(
    pairs: Iterator[tuple[bytes, bytes | None]], entries: int, size_bytes: int
) -> Iterator[Changes]:
    """Gather keys and values into parts of so many entries, or of so many bytes at least."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    gathered_bytes = 0
    for key, value in pairs:
        keys.append(key)
        values.append(value)
        gathered_bytes += len(key) + (0 if value is None else len(value))
        if len(keys) == entries or gathered_bytes >= size_bytes:
            yield Changes(keys, values)
            keys, values, gathered_bytes = [], [], 0
    if keys:
        yield Changes(keys, values)


class StateBackend(ABC):
    """An ordered byte store that holds one subtask's state at exactly one version.

    Opened, used and closed by one task at a time, on an executor. A backend directory is a local
    copy, never the truth: whoever opens it compares :meth:`version` with what it expects and
    rebuilds the copy from durable files when they differ.
    """

    @abstractmethod
    def version(self) -> str | None:
        """Return the version last applied, or ``None`` for a copy that was never completed."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, ``None`` where a key is absent.

        Sorted keys are read fastest.

        Raises
        ------
        BackendCorruptError
            If a value cannot be read; never answered with ``None``.
        """

    @abstractmethod
    def scan(self, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield every key that starts with `prefix`, with its value, in byte order of the keys.

        Keys below `start` are left out without being read. The version marker is not part of the
        scan.

        Raises
        ------
        BackendCorruptError
            If the scan cannot reach its end; a scan that ends quietly is complete.
        """

    def scan_in_parts(self, entries: int, size_bytes: int) -> Iterator[Changes]:
        """Yield all keys with their values, in byte order, several at once.

        A part ends where it has so many entries or so many bytes. Nothing may be applied meanwhile.

        Raises
        ------
        BackendCorruptError
            As :meth:`scan`.
        """
        yield from in_parts(self.scan(), entries, size_bytes)

    @abstractmethod
    def apply(self, changes: Iterable[Changes], version: str) -> None:
        """Apply `changes` in order and set the version, all of it or nothing.

        A process killed at any moment leaves the copy at the old version or at the new one. The
        copy is not made durable against a crash of the host.

        Raises
        ------
        BackendFullError
            If there is no room; the copy stays at the old version.
        """

    @abstractmethod
    def load(self, changes: Iterable[Changes], version: str) -> None:
        """Fill an empty backend in bounded memory and set the version last.

        Unlike :meth:`apply` a kill may leave part of the data behind, without a version.
        """

    @abstractmethod
    def snapshot_files(self, directory: Path) -> list[str]:
        """Put a consistent view of the whole state into a new local directory.

        What is done to this backend later does not show in it. Opened with ``create=False``, a
        copy of the directory is a backend with the same content and version; the files themselves
        may be shared with this backend and must not be changed.

        Parameters
        ----------
        directory
            Does not exist yet; its parent does, on the file system of the backend's directory.

        Returns
        -------
        list of str
            The names of the files that make up the snapshot; others in the directory do not matter.

        Raises
        ------
        FileExistsError
            If there is something at `directory`; it is left as it is.
        BackendFullError
            If there is no room.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all files and locks; safe to call twice."""

    def __enter__(self) -> StateBackend:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
