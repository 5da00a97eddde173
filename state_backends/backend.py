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

STEP_BYTES = 8 << 20
"""Changes of at least so many bytes, and at most one part more, are applied in one step."""

_APPLYING = b"\x00applying\x00"
"""Begins the marker of a copy to which only a part of some changes is applied."""


@dataclass(frozen=True, slots=True)
class HalfApplied:
    """What was being applied to a copy when its process ended.

    All changes that lead from the version `before` to `after`, applied once more in their order,
    bring the copy to `after`: each of them sets an entry, whatever it was.
    """

    before: str
    after: str


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

    def version(self) -> str | None:
        """Return the version of the whole state.

        ``None`` for a copy that was never completed, or to which a part of some changes is applied.
        """
        marker = self.marker()
        return None if marker is None or marker.startswith(_APPLYING) else marker.decode()

    def half_applied(self) -> HalfApplied | None:
        """Return which changes are applied in part, ``None`` if there is no trace of such."""
        marker = self.marker()
        if marker is None or not marker.startswith(_APPLYING):
            return None
        before, _, after = marker.removeprefix(_APPLYING).decode().partition("\x00")
        return HalfApplied(before, after)

    @abstractmethod
    def marker(self) -> bytes | None:
        """Return what is stored under :data:`VERSION_KEY`."""

    def marker_applying(self, version: str) -> bytes | None:
        """Return what to store while changes are applied that lead to a version.

        ``None`` for a copy without a version, which has nothing that they could be added to.
        """
        half = self.half_applied()
        before = self.version() if half is None else half.before
        return None if before is None else _APPLYING + f"{before}\x00{version}".encode()

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
        """Apply `changes` in order and set the version, in bounded memory.

        A process killed at any moment leaves the copy at the old version or at the new one. Changes
        of more than :data:`STEP_BYTES` are applied in several steps. In between the copy has no
        version, and :meth:`half_applied` tells how to complete it. The copy is not made durable
        against a crash of the host.

        Parameters
        ----------
        changes
            Are read once, and held in memory only for the length of a step.
        version
            The version of the state after them.

        Raises
        ------
        BackendFullError
            If there is no room; the copy stays at the old version, or half applied.
        """

    @abstractmethod
    def load(self, changes: Iterable[Changes], version: str) -> None:
        """Fill an empty backend in bounded memory and set the version last.

        A kill may leave part of the data behind, without a version and of no use.
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
