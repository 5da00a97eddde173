"""The interface of a backend whose own files can be stored as a base snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar


class SnapshotFormat(ABC):
    """What the rest of the library must know about the files of a backend's snapshot.

    A backend without such a format is stored as a change file, which every backend can load. An
    implementation imports the backend's library only when a method needs it.

    `name` is stored with every base snapshot, so it never changes.
    """

    name: ClassVar[str]

    deletes_ranges: ClassVar[bool] = False
    """Whether deleting a range takes as long for many keys as for few, and leaves most files."""

    @abstractmethod
    def is_file(self, name: str) -> bool:
        """Return whether `name` can be the name of a snapshot's file; the name may be hostile."""

    @abstractmethod
    def is_immutable(self, name: str) -> bool:
        """Return whether a snapshot's file is never written again, so it may be hard-linked."""

    @abstractmethod
    def check_file(self, path: Path) -> None:
        """Read an immutable file to its end and compare all of it with its checksums.

        Parameters
        ----------
        path
            The file. A hard link to it exists beside its directory for a moment.

        Raises
        ------
        BackendCorruptError
            If a byte was changed.
        """

    def written_keys(self, directory: Path) -> Iterator[list[bytes]] | None:  # noqa: ARG002
        """Return the keys that some immutable files of a snapshot write.

        Two snapshots that share files are compared by the keys of the other files. Without this
        method all their entries are compared.

        Parameters
        ----------
        directory
            Has the files, under their names, and nothing else. It is changed.

        Returns
        -------
        iterator of list of bytes, or None
            The keys in parts, each key at least once. ``None`` if the files also delete keys, and
            the format cannot say which.

        Raises
        ------
        BackendCorruptError
            If a file cannot be read.
        """
        return None
