"""The interface of a backend whose own files can be stored as a base snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar


class SnapshotFormat(ABC):
    """What the rest of the library must know about the files of a backend's snapshot.

    A backend without such a format is stored as a change file, which every backend can load. An
    implementation imports the backend's library only when a method needs it.

    `name` is stored with every base snapshot, so it never changes.
    """

    name: ClassVar[str]

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
