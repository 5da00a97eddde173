"""The interface of every storage, and what storages read and return: chunks, references, errors.

A storage is a root and the files below it. Relative paths are checked to stay inside the root,
because most paths are read from files. Correctness depends on one promise: :meth:`Storage.write`
durably creates a whole file under an unused name, or it creates no file. No checkpoint renames a
file, and no decision depends on a listing (docs/design/storages.md).

A ``checkpointLocation`` is a storage too. Spark names it by its own URL, and a rollback moves what
is in it (docs/design/locations.md).
"""

from __future__ import annotations

import errno
import hashlib
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, TypeVar

import msgspec

from pyspark_ckpt.errors import CorruptFileError, UnsafePathError

DIRECTORY_MARKER = "_directory"
"""The file that makes an empty directory exist in a storage that has no directories."""

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/|://")
CHUNK_BYTES = 1 << 20

ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, KeyError, ValueError, NotImplementedError, RuntimeError,
    EOFError,
)  # fmt: skip
"""What Python's ``zipfile`` raises for a damaged archive, besides errors of the disk."""

JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a damaged file; the last for one that a stranger has nested deeply."""

RESTORE = "restore from another checkpoint or savepoint"

AT_ONCE = 32
"""The number of requests that one process has under way at the same time."""

Thing = TypeVar("Thing")
Result = TypeVar("Result")


class Storage(ABC):
    """Files below one root.

    `url` is the root as a user would write it; :func:`open_storage` accepts it. `is_shared` says
    whether other processes see the files. `is_remote` says whether each operation is a request that
    waits for a network. `moves_at_once` says whether :meth:`move` is one step, also of a directory.
    """

    url: str
    is_shared = True
    is_remote = False
    moves_at_once = False

    @property
    def hadoop_url(self) -> str:
        """The root as Spark and Hadoop name it."""
        return self.url

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

    def requests(self) -> dict[str, int]:
        """Return how many requests this storage and those below it have sent, by kind.

        Only this process's requests are counted; a storage on this machine sends none.
        """
        return {}

    def check_usable(self) -> None:  # noqa: B027  # most storages are
        """Check that the storage can create files exclusively, before a query depends on it.

        Raises
        ------
        ConfigurationError
            If it is known that it cannot; the error says what to use instead.
        """

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

    def replace(self, relative: str, content: bytes) -> None:
        """Give a file another content; durable on return.

        On this machine the name is never away. Elsewhere the file is away for a moment: whoever
        calls it has to be able to repeat the call, without the file.

        Raises
        ------
        FileExistsError
            If somebody else has written the file in that moment.
        """
        self.delete([relative])
        self.write(relative, [content])

    @abstractmethod
    def make_directory(self, relative: str) -> None:
        """Make a new directory, which is durable on return.

        Raises
        ------
        FileExistsError
            If there is a directory of that name.
        """

    def make_durable(self, directory: str | None = None) -> None:  # noqa: B027  # most names are
        """Make the names in a directory durable, also those that another process gave.

        A process may be killed between the moment at which others see its file and the moment at
        which the file's name is durable. Whoever relies on such a file calls this first.
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

    def chunks(self, relative: str) -> Iterator[bytes]:
        """Yield the content of a file, which may be larger than memory.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        """
        yield self.read(relative)

    def read_start(self, relative: str, most_bytes: int) -> bytes:
        """Return the content of a file, of a larger one only so many bytes.

        For files that should be small, and that somebody may have made large.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        """
        start = bytearray()
        for chunk in self.chunks(relative):
            start += chunk[: most_bytes - len(start)]
            if len(start) == most_bytes:
                break
        return bytes(start)

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

    def entries(self, directory: str | None = None) -> dict[str, bool]:
        """Return the names in a directory, each with whether it is a directory.

        A search goes by it. A storage whose listing says it sends no further request.
        """
        below = "" if directory is None else f"{directory}/"
        names = self.list(directory)
        return {name: self.size_bytes(f"{below}{name}") is None for name in names}

    @abstractmethod
    def delete(self, relatives: Iterable[str]) -> None:
        """Delete the files that are there; durable on return."""

    @abstractmethod
    def delete_directory(self, relative: str) -> None:
        """Delete a directory and what is in it, as far as that is possible."""

    def remove_if_empty(self, relative: str) -> None:  # noqa: B027  # some have no directories
        """Delete a directory if nothing is in it; what is in it stays."""

    def files_below(self, directory: str) -> tuple[str, ...]:
        """Return the paths of all files below a directory, sorted; none if it does not exist."""
        found: list[str] = []
        for name in self.list(directory):
            path = f"{directory}/{name}"
            if self.size_bytes(path) is None:
                found += self.files_below(path)
            else:
                found.append(path)
        return tuple(sorted(found))

    def fingerprint(self, relative: str) -> str:
        """Return a text that differs once the file's name was given to another file.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        """
        digest = hashlib.sha256()
        for chunk in self.chunks(relative):
            digest.update(chunk)
        return digest.hexdigest()

    def move(self, relative: str, target: str) -> None:
        """Give a file or directory another place, durably.

        Unless :attr:`moves_at_once`, a call that is interrupted leaves every file whole, in one
        place or in both. The same call then moves the rest, because it moves what is still there.
        Only files that were copied are deleted, and a listing is repeated until it has no more.

        Raises
        ------
        FileExistsError
            If the storage moves at once and there is something at that place; nothing is moved.
        OSError
            If the storage moves at once and there is no directory for the target; nothing is moved.
        """
        self.move_files(relative, target, lambda: None)

    def move_files(self, relative: str, target: str, check: Callable[[], None]) -> None:
        """Move a file, or the files of a directory, one by one; `check` stops it.

        `check` is called before a file is deleted from its old place, and raises if it may not be.
        """
        moved: set[str] = set()
        while files := set(self._files_at(relative)) - moved:
            places = [(path, f"{target}{path.removeprefix(relative)}") for path in sorted(files)]
            all_of(lambda pair: self._move_file(*pair, check), places, at_once=self.is_remote)
            moved |= files

    def _files_at(self, relative: str) -> tuple[str, ...]:
        """Return the files below a directory, or the file of that name itself."""
        below = self.files_below(relative)
        is_file = not below and self.size_bytes(relative) is not None
        return (relative,) if is_file else below

    def _move_file(self, source: str, target: str, check: Callable[[], None]) -> None:
        """Move one file, and nothing else: a listing may lack files that are next to it."""
        try:
            self.copy_within(source, target)
        except FileNotFoundError:
            if not self.exists(target):
                raise
            return  # it was moved before: a listing may have it still
        check()
        self.delete([source])

    def copy_within(self, relative: str, target: str) -> None:
        """Copy a file whole; a copy of it that is there already may stay or be replaced."""
        with suppress(FileExistsError):
            self.write(target, self.chunks(relative))

    def remove_directory(self, relative: str) -> None:
        """Delete a directory and what is in it.

        Raises
        ------
        OSError
            If something of it is still there.
        """
        self.delete_directory(relative)
        if self.exists(relative):
            raise OSError(
                errno.ENOTEMPTY, "the directory could not be deleted", self.url_of(relative)
            )

    def copy_in(self, source: Storage, reference: FileReference, relative: str) -> FileReference:
        """Copy a file of another storage into this one, checked against its reference."""
        with source.open_verified(reference) as file:
            return self.write(relative, chunks_of(file))

    def link_or_copy_in(
        self, source: Storage, reference: FileReference, relative: str
    ) -> FileReference:
        """Have a file of another storage in this one, checked against its reference.

        The file may be deleted in either place without the other losing it. Where both are on one
        file system that has hard links, its content is there once, so that it takes no room.
        """
        return self.copy_in(source, reference, relative)

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
    """Return the parts of a path below the storage `root`."""
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

    def requests(self) -> dict[str, int]:
        """Return how many requests were sent, by kind."""


class CoordinatorStorage(Protocol):
    """The part of a storage for the driver, which creates, publishes, lists and discards."""

    url: str

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        """Create or publish a file exclusively, durable on return."""

    def read(self, relative: str) -> bytes:
        """Return the content of a file."""

    def read_start(self, relative: str, most_bytes: int) -> bytes:
        """Return the content of a file, of a larger one only so many bytes."""

    def size_bytes(self, relative: str) -> int | None:
        """Return the size of a file, ``None`` if there is no such file."""

    def exists(self, relative: str) -> bool:
        """Return whether there is a file or directory."""

    def list(self, directory: str | None = None) -> list[str]:
        """Return the names in a directory."""

    def url_of(self, relative: str) -> str:
        """Resolve a path to the full name that users see."""

    def make_durable(self, directory: str | None = None) -> None:
        """Make the names in a directory durable, whoever gave them."""

    def delete(self, relatives: Iterable[str]) -> None:
        """Discard files, durable on return."""

    def delete_directory(self, relative: str) -> None:
        """Discard a directory."""


def chunks_of(file: BinaryIO) -> Generator[bytes, None, None]:
    """Yield the rest of a file, a chunk at a time."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def sha256_of(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of a file."""
    digest = hashlib.sha256()
    for chunk in chunks_of(file):
        digest.update(chunk)
    return digest.hexdigest()


class DigestedChunks:
    """Counts and digests the chunks of a file that is being written.

    `size_bytes` and `sha256` are of the chunks that were read so far.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def through(self, chunks: Iterable[bytes]) -> Generator[bytes, None, None]:
        """Yield the chunks as they are."""
        for chunk in chunks:
            self._digest.update(chunk)
            self.size_bytes += len(chunk)
            yield chunk

    @property
    def sha256(self) -> str:
        """The SHA-256 in hexadecimal digits."""
        return self._digest.hexdigest()

    def reference(self, path: str) -> FileReference:
        """Return the reference of the file, after all chunks were read."""
        return FileReference(path=path, size_bytes=self.size_bytes, sha256=self.sha256)


class FileReference(msgspec.Struct, frozen=True):
    """A file by its path relative to a checkpoints or savepoint directory."""

    path: str
    size_bytes: int
    sha256: str


def corrupt_file(name: str, what: str, to_do: str = RESTORE) -> CorruptFileError:
    """Return the error of a file that is missing, cut short or changed."""
    return CorruptFileError(f"{name}: {what}; {to_do}")


def all_of(
    function: Callable[[Thing], Result], things: Iterable[Thing], *, at_once: bool
) -> list[Result]:
    """Return the results of a function for some things, in the order of the things.

    With `at_once`, several threads call `function` at the same time. The error that is raised is
    that of the first thing, in their order, for which `function` failed. Calls that have not begun
    by then are left out.
    """
    if not at_once:
        return list(map(function, things))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pyspark_ckpt requests") as threads:
        futures = [threads.submit(function, thing) for thing in things]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
