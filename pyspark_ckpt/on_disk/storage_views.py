"""What the two kinds of users see of a storage: as little as they need.

Every :class:`~pyspark_ckpt.on_disk.storage.Storage` is both.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from pyspark_ckpt.on_disk.file_reference import FileReference


class WorkerStorage(Protocol):
    """A task's view: it writes files of unique names and reads files by references.

    It looks for completed checkpoints, and never deletes.
    """

    url: str

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        """Write a new file, durable on return."""

    def open_verified(self, reference: FileReference) -> AbstractContextManager[BinaryIO]:
        """Open a file, checked first."""

    def local_path(self, relative: str) -> Path | None:
        """Return where a file is on this machine, if it is."""

    def list(self, directory: str | None = None) -> list[str]:
        """Return the names in a directory."""

    def exists(self, relative: str) -> bool:
        """Tell whether there is a file or directory."""


class CoordinatorStorage(Protocol):
    """The driver's view: it creates, publishes, lists, resolves and discards."""

    url: str

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        """Create or publish a file exclusively, durable on return."""

    def read(self, relative: str) -> bytes:
        """Return the content of a file."""

    def size_bytes(self, relative: str) -> int | None:
        """Return the size of a file, ``None`` if there is none."""

    def exists(self, relative: str) -> bool:
        """Tell whether there is a file or directory."""

    def list(self, directory: str | None = None) -> list[str]:
        """Return the names in a directory."""

    def url_of(self, relative: str) -> str:
        """Resolve a path to the full name that users see."""

    def delete(self, relatives: Iterable[str]) -> None:
        """Discard files, durable on return."""

    def delete_directory(self, relative: str) -> None:
        """Discard a directory."""
