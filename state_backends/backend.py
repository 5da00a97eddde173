"""The interface that every state backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType

VERSION_KEY = b"\xff\xffversion"
"""Reserved key of the version marker; state keys must sort before ``b"\\xff\\xff"``."""

FIRST_RESERVED_KEY = b"\xff\xff"

STEP_BYTES = 8 << 20
"""A step of `apply` ends when its changes have so many bytes; the last part may exceed them."""

_DELETED_AT_ONCE = 10_000

_APPLYING = b"\x00applying\x00"
"""Prefix of the marker of a copy to which only some of the changes are applied."""


@dataclass(frozen=True, slots=True)
class HalfApplied:
    """The changes that were being applied to a copy when its process ended.

    Apply all changes from the version `before` to `after` again, in their order, to bring the copy
    to `after`. This is safe because each change sets an entry, whatever its value was.
    """

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Puts and deletes as two columns of equal length; a value of ``None`` is a delete."""

    keys: Sequence[bytes]
    values: Sequence[bytes | None]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise ValueError(f"changes of {len(self.keys)} keys have {len(self.values)} values")

    def __len__(self) -> int:
        return len(self.keys)


def in_parts(
    pairs: Iterator[tuple[bytes, bytes | None]], entries: int, size_bytes: int
) -> Iterator[Changes]:
    """Gather keys and values into parts of `entries` entries, or of at least `size_bytes` bytes."""
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

    One task at a time opens, uses and closes it, on an executor. A backend directory is a local
    copy and never the truth: a task that opens it compares :meth:`version` with the expected
    version, and rebuilds the copy from durable files if they differ.
    """

    def version(self) -> str | None:
        """Return the version of the whole state.

        ``None`` for a copy that was never completed, or to which only some changes are applied.
        """
        marker = self.marker()
        return None if marker is None or marker.startswith(_APPLYING) else marker.decode()

    def half_applied(self) -> HalfApplied | None:
        """Return which changes are applied in part, ``None`` if the copy is at a version."""
        marker = self.marker()
        if marker is None or not marker.startswith(_APPLYING):
            return None
        before, _, after = marker.removeprefix(_APPLYING).decode().partition("\x00")
        return HalfApplied(before, after)

    @abstractmethod
    def marker(self) -> bytes | None:
        """Return the value under :data:`VERSION_KEY`."""

    def marker_applying(self, version: str) -> bytes | None:
        """Return the marker to store while changes that lead to a version are applied.

        ``None`` for a copy without a version: it has no earlier version to complete from.
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
            If a value cannot be read; the result is never ``None`` then.
        """

    def figures(self) -> dict[str, int]:
        """Return the backend's own figures by name, without zeros; for metrics.

        By default, it has none.
        """
        return {}

    @abstractmethod
    def scan(self, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield every key that starts with `prefix`, with its value, in byte order of the keys.

        Keys below `start` are not read. The version marker is not part of the scan.

        Raises
        ------
        BackendCorruptError
            If the scan cannot reach its end. A scan that ends without an error is complete.
        """

    def scan_in_parts(self, entries: int, size_bytes: int) -> Iterator[Changes]:
        """Yield all keys with their values, in byte order, several at once.

        A part ends when it has `entries` entries or `size_bytes` bytes. The caller applies no
        changes during the scan.

        Raises
        ------
        BackendCorruptError
            As :meth:`scan`.
        """
        yield from in_parts(self.scan(), entries, size_bytes)

    @abstractmethod
    def apply(self, changes: Iterable[Changes], version: str) -> None:
        """Apply `changes` in order and set the version, in bounded memory.

        If the process is killed, the copy is at the old or new version, or half applied. Changes of
        more than :data:`STEP_BYTES` are applied in several steps. Between the steps the copy has
        no version, and :meth:`half_applied` says how to complete it. The copy does not have to
        survive a crash of the host.

        Parameters
        ----------
        changes
            The changes; they are read once and held in memory only for one step.
        version
            The version of the state after the changes.

        Raises
        ------
        BackendFullError
            If the disk is full; the copy stays at the old version, or half applied.
        """

    def delete_ranges(self, ranges: Sequence[tuple[bytes, bytes]], version: str) -> None:
        """Delete all keys in some ranges and set the version.

        If the process is killed, the copy is of no use: it may be at the version before all keys
        are deleted.

        Parameters
        ----------
        ranges
            The first key of each range, and the first key behind it.
        version
            The version of the state afterwards.
        """
        for start, end in ranges:
            while keys := [key for key, _ in islice(self.scan(start=start), _DELETED_AT_ONCE)]:
                deleted = [key for key in keys if key < end]
                self.apply([Changes(deleted, [None] * len(deleted))], version)
                if len(deleted) < len(keys):
                    break
        self.apply((), version)

    @abstractmethod
    def load(self, changes: Iterable[Changes], version: str) -> None:
        """Fill an empty backend in bounded memory and set the version last.

        A killed process may leave data without a version, which is of no use.
        """

    @abstractmethod
    def snapshot_files(self, directory: Path) -> list[str]:
        """Write a consistent view of the whole state into a new local directory.

        Later changes of this backend do not change the view. A copy of the directory, opened with
        ``create=False``, is a backend with the same content and version. The files may be shared
        with this backend and must not be changed.

        Parameters
        ----------
        directory
            The new directory. Its parent exists, on the file system of the backend's directory.

        Returns
        -------
        list of str
            The names of the snapshot's files; other files in the directory do not matter.

        Raises
        ------
        FileExistsError
            If `directory` exists; it is left as it is.
        BackendFullError
            If the disk is full.
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
