"""The interface of every storage, and the two parts of it that tasks and the driver need.

A storage is a root and the files below it. Relative paths are checked to stay inside the root,
because most paths are read from files. Correctness depends on one promise: :meth:`Storage.write`
durably creates a whole file under an unused name, or it creates no file. No storage has to rename
files, and no decision depends on a listing (docs/design/0014-storages.md).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from pyspark_ckpt.errors import CorruptFileError, UnsafePathError
from pyspark_ckpt.storage.chunks import chunks_of
from pyspark_ckpt.storage.corrupt_file import RESTORE
from pyspark_ckpt.storage.file_reference import FileReference

DIRECTORY_MARKER = "_directory"
"""The file that makes an empty directory exist in a storage that has no directories."""


class Storage(ABC):
    """Files below one root.

    `url` is the root as a user would write it; :func:`open_storage` accepts it. `is_shared` says
    whether other processes see the files. `is_remote` says whether each operation is a request that
    waits for a network.
    """

    url: str
    is_shared = True
    is_remote = False

    @property
    def name(self) -> str:
        """The last part of the root's path."""
        return self.url.rpartition("/")[2]

    @abstractmethod
    def child(self, relative: str) -> Storage:
        """Return the storage whose root is the directory `relative`; nothing is created.

        Raises
        ------
        UnsafePathError
            If the path is absolute or leaves the root.
        """

    @abstractmethod
    def parent(self) -> Storage:
        """Return the storage whose root is the directory above."""

    @abstractmethod
    def url_of(self, relative: str) -> str:
        """Return the full name of a file or directory, for users and :func:`open_storage`.

        Raises
        ------
        UnsafePathError
            If the path is absolute or leaves the root.
        """

    def local_path(self, relative: str) -> Path | None:  # noqa: ARG002  # for those that override
        """Return a file's path on this machine, ``None`` if the storage is not on this machine.

        Raises
        ------
        UnsafePathError
            If the path is absolute or leaves the root.
        """
        return None

    @abstractmethod
    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        """Write a new file, which is durable on return; its name must not exist yet.

        Of several writers of one name, also in other processes, exactly one succeeds.

        Raises
        ------
        FileExistsError
            If there is a file of that name; that file stays unchanged.
        OSError
            If it is unknown whether the file was written; read it to know.
        """

    @abstractmethod
    def make_directory(self, relative: str) -> None:
        """Make a new directory, which is durable on return.

        Raises
        ------
        FileExistsError
            If there is a directory of that name.
        """

    @abstractmethod
    def open_verified(self, reference: FileReference) -> AbstractContextManager[BinaryIO]:
        """Open a file whose size and digest were checked first.

        Raises
        ------
        CorruptFileError
            If it is missing or differs from `reference`.
        """

    @abstractmethod
    def read(self, relative: str) -> bytes:
        """Return the content of a file.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        """

    @abstractmethod
    def size_bytes(self, relative: str) -> int | None:
        """Return the size of a file, ``None`` if there is no file of that name."""

    @abstractmethod
    def exists(self, relative: str) -> bool:
        """Return whether there is a file or directory of that name."""

    @abstractmethod
    def list(self, directory: str | None = None) -> list[str]:
        """Return the names in a directory, by default the root; no names if it does not exist.

        A file that a killed process was writing has a temporary name, which starts with a dot and
        ends with ``.tmp``. Deleting it frees its bytes.
        """

    @abstractmethod
    def delete(self, relatives: Iterable[str]) -> None:
        """Delete the files that are there; durable on return."""

    @abstractmethod
    def delete_directory(self, relative: str) -> None:
        """Delete a directory and what is in it, as far as that is possible."""

    def copy_in(self, source: Storage, reference: FileReference, relative: str) -> FileReference:
        """Copy a file of another storage into this one, checked against its reference."""
        with source.open_verified(reference) as file:
            return self.write(relative, chunks_of(file))

    def verify_size(self, reference: FileReference) -> None:
        """Check that a file exists with the size that was written.

        Raises
        ------
        CorruptFileError
            If it is missing or has another size.
        """
        size_bytes = self.size_bytes(reference.path)
        if size_bytes is None:
            raise CorruptFileError(f"{self.url_of(reference.path)} is missing; {RESTORE}")
        if size_bytes != reference.size_bytes:
            raise CorruptFileError(
                f"{self.url_of(reference.path)} has {size_bytes} bytes, but "
                f"{reference.size_bytes} were written; {RESTORE}"
            )


def path_parts(relative: str, root: str) -> tuple[str, ...]:
    """Return the parts of a path below the storage `root`.

    Raises
    ------
    UnsafePathError
        If it is empty, absolute or a URL, or steps upwards.
    """
    parts = PurePosixPath(relative).parts
    if (
        not parts
        or relative.startswith("/")
        or ".." in parts
        or "\0" in relative
        or _URL.search(relative)
    ):
        raise UnsafePathError(
            f"path {relative!r} does not stay inside {root}: the file that names this path is "
            "damaged or hostile; do not use that file"
        )
    return parts


_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/|://")


class WorkerStorage(Protocol):
    """The part of a storage for tasks, which write unique names and read by references.

    Tasks look for completed checkpoints, and never delete.
    """

    url: str

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        """Write a new file, durable on return."""

    def open_verified(self, reference: FileReference) -> AbstractContextManager[BinaryIO]:
        """Open a file, checked first."""

    def local_path(self, relative: str) -> Path | None:
        """Return a file's path on this machine, if the storage is on this machine."""

    def list(self, directory: str | None = None) -> list[str]:
        """Return the names in a directory."""

    def exists(self, relative: str) -> bool:
        """Return whether there is a file or directory."""


class CoordinatorStorage(Protocol):
    """The part of a storage for the driver, which creates, publishes, lists and discards."""

    url: str

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        """Create or publish a file exclusively, durable on return."""

    def read(self, relative: str) -> bytes:
        """Return the content of a file."""

    def size_bytes(self, relative: str) -> int | None:
        """Return the size of a file, ``None`` if there is no such file."""

    def exists(self, relative: str) -> bool:
        """Return whether there is a file or directory."""

    def list(self, directory: str | None = None) -> list[str]:
        """Return the names in a directory."""

    def url_of(self, relative: str) -> str:
        """Resolve a path to the full name that users see."""

    def delete(self, relatives: Iterable[str]) -> None:
        """Discard files, durable on return."""

    def delete_directory(self, relative: str) -> None:
        """Discard a directory."""
