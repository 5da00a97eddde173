"""What storages at a server have in common, above the few requests that each one sends."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import tempfile
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeVar, cast

from pyspark_ckpt.errors import UnsafePathError
from pyspark_ckpt.storage.base import (
    AT_ONCE,
    DIRECTORY_MARKER,
    DigestedChunks,
    FileReference,
    Storage,
    all_of,
    corrupt_file,
    path_parts,
)

_Listing = TypeVar("_Listing")

READ_BYTES = 16 << 20
"""Bytes of a file that one request reads; larger files are kept in a local file."""

_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
}

PART_BYTES = 8 << 20
"""Size of the first parts of an upload; S3 requires at least 5 MiB."""

_PARTS_BEFORE_DOUBLING = 1000
"""After so many parts, parts grow, because S3 accepts at most 10,000 parts, and 5 TiB in all."""


class RemoteStorage(Storage):
    """Files whose names start with `root` at a server.

    A subclass sends the requests. It gets names with the root. It raises the natural ``OSError`` or
    one of its `_failures`; this class adds the file's full name to each error.

    Parameters
    ----------
    url
        The root with its scheme.
    root
        The root as the server names it.
    """

    is_remote = True

    _failures: tuple[type[Exception], ...] = (asyncio.TimeoutError,)
    """Errors of requests that are not ``OSError``."""

    _directory_ending = ""
    """What the name of a directory's own entry ends with."""

    def __init__(self, url: str, root: str) -> None:
        self.url = url.rstrip("/")
        self._root = root.rstrip("/")
        self._counts = RequestCounts()

    @abstractmethod
    def _create(self, relative: str, chunks: Iterable[bytes]) -> None:
        """Create a whole file exclusively.

        Raises
        ------
        FileExistsError
            If there is a file of that name that this call did not write.
        """

    @abstractmethod
    def _at(self, root: str) -> Storage:
        """Return a storage of the same server with another root."""

    @abstractmethod
    def _content(self, path: str) -> bytes:
        """Return the content of a file."""

    @abstractmethod
    def _part(self, path: str, start: int, end: int) -> bytes:
        """Return some bytes of a file."""

    @abstractmethod
    def _look(self, path: str) -> int | None:
        """Return the size of a file, ``None`` for a directory.

        Raises
        ------
        FileNotFoundError
            If there is no file and no directory of that name.
        """

    @abstractmethod
    def _names(self, path: str) -> Iterable[str]:
        """Return the names in a directory.

        Raises
        ------
        FileNotFoundError
            If there is no such directory; some servers return no names instead.
        """

    def _entries(self, path: str) -> dict[str, bool]:
        """Return the names in a directory as `_names`, each with whether it is a directory."""
        return {name: self._look(f"{path}/{name}") is None for name in self._names(path)}

    @abstractmethod
    def _delete(self, path: str) -> None:
        """Delete a file."""

    @abstractmethod
    def _delete_below(self, path: str) -> None:
        """Delete a directory and what is in it."""

    def requests(self) -> dict[str, int]:
        return self._counts.so_far()

    def child(self, relative: str) -> Storage:
        return self._counted_with_this(self._at(self._path(relative)))

    def parent(self) -> Storage:
        above, _, _ = self._root.rpartition("/")
        if not above:
            raise UnsafePathError(f"{self.url} has no directory above it: use a deeper path")
        return self._counted_with_this(self._at(above))

    def _counted_with_this(self, other: Storage) -> Storage:
        if isinstance(other, RemoteStorage):
            other._counts = self._counts  # noqa: SLF001  # of the same class
        return other

    def url_of(self, relative: str) -> str:
        return "/".join((self.url, *path_parts(relative, self.url)))

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        digested = DigestedChunks()
        self._create(relative, digested.through(chunks))
        return digested.reference(relative)

    def make_directory(self, relative: str) -> None:
        url = self.url_of(relative)
        try:
            self.write(f"{relative}/{DIRECTORY_MARKER}", [])
        except FileExistsError as exc:
            raise FileExistsError(errno.EEXIST, "there is such a directory", url) from exc

    @contextmanager
    def open_verified(self, reference: FileReference) -> Iterator[BinaryIO]:
        self.verify_size(reference)
        path = self._path(reference.path)
        digest = hashlib.sha256()
        with tempfile.SpooledTemporaryFile(max_size=READ_BYTES) as file:
            for start in range(0, reference.size_bytes, READ_BYTES):
                end = min(start + READ_BYTES, reference.size_bytes)
                self._counts.add("get")
                with self._errors_named(reference.path):
                    part = self._part(path, start, end)
                file.write(part)
                digest.update(part)
            if digest.hexdigest() != reference.sha256:
                raise corrupt_file(
                    self.url_of(reference.path),
                    f"SHA-256 is {digest.hexdigest()}, but {reference.sha256} was written",
                )
            file.seek(0)
            yield cast("BinaryIO", file)

    def read(self, relative: str) -> bytes:
        self._counts.add("get")
        with self._errors_named(relative):
            return self._content(self._path(relative))

    def chunks(self, relative: str) -> Iterator[bytes]:
        size_bytes, path = self.size_bytes(relative), self._path(relative)
        if size_bytes is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self.url_of(relative))
        for start in range(0, size_bytes, READ_BYTES):
            end = min(start + READ_BYTES, size_bytes)
            self._counts.add("get")
            with self._errors_named(relative):
                part = self._part(path, start, end)
            yield part

    def size_bytes(self, relative: str) -> int | None:
        self._counts.add("head")
        try:
            with self._errors_named(relative):
                return self._look(self._path(relative))
        except FileNotFoundError:
            return None

    def exists(self, relative: str) -> bool:
        self._counts.add("head")
        try:
            with self._errors_named(relative):
                self._look(self._path(relative))
        except FileNotFoundError:
            return False
        return True

    def list(self, directory: str | None = None) -> list[str]:
        return sorted(self._list_directory(self._names, directory) or ())

    def entries(self, directory: str | None = None) -> dict[str, bool]:
        return self._list_directory(self._entries, directory) or {}

    def _list_directory(
        self, listing: Callable[[str], _Listing], directory: str | None
    ) -> _Listing | None:
        path = self._root if directory is None else self._path(directory)
        self._counts.add("list")
        try:
            with self._errors_named(directory):
                return listing(path)
        except FileNotFoundError as exc:
            if self._is_no_place(exc):
                raise
            return None

    def delete(self, relatives: Iterable[str]) -> None:
        # In their order if they are few. One by one, thousands would take as long as a checkpoint.
        paths = list(relatives)
        all_of(self._delete_file, paths, at_once=len(paths) > AT_ONCE)

    def _delete_file(self, relative: str) -> None:
        self._counts.add("delete")
        with suppress(FileNotFoundError), self._errors_named(relative):
            self._delete(self._path(relative))

    def delete_directory(self, relative: str) -> None:
        path = self._path(relative)
        with suppress(OSError), self._errors_named(relative):
            self._delete_below(path)

    def remove_if_empty(self, relative: str) -> None:
        path = self._path(relative)
        self._counts.add("delete")
        with suppress(OSError), self._errors_named(relative):
            self._delete(f"{path}{self._directory_ending}")

    def _is_no_place(self, error: FileNotFoundError) -> bool:  # noqa: ARG002  # for subclasses
        """Return whether the root does not exist and no write creates it, such as a bucket."""
        return False

    def _path(self, relative: str) -> str:
        return "/".join((self._root, *path_parts(relative, self.url)))

    @contextmanager
    def _errors_named(self, relative: str | None) -> Iterator[None]:
        """Give every error of a request its natural class and the file's full name."""
        url = self.url if relative is None else self.url_of(relative)
        failures: tuple[type[Exception], ...] = (OSError, *self._failures)
        try:
            yield
        except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError) as exc:
            raise type(exc)(exc.errno or _NUMBERS[type(exc)], self._said(exc), url) from exc
        except failures as exc:
            number = exc.errno if isinstance(exc, OSError) else None
            said = f"{type(exc).__name__}: {self._said(exc)}"
            raise OSError(number or errno.EIO, said, url) from exc

    def _said(self, error: Exception) -> str:
        """Return the text of an error for users."""
        return str(error)


def in_parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file's content in parts that a server accepts; none if the file is empty."""
    part = bytearray()
    number = 0
    for chunk in chunks:
        part += chunk
        size_bytes = PART_BYTES << (number // _PARTS_BEFORE_DOUBLING)
        while len(part) >= size_bytes:
            yield bytes(part[:size_bytes])
            del part[:size_bytes]
            number += 1
    if part:
        yield bytes(part)


class RequestCounts:
    """Counts the requests of one storage and of those below it, in one process.

    The kinds are ``put``, ``get``, ``head``, ``list`` and ``delete``. A request that the client
    repeats by itself is counted once. Each part of a large file is a ``put``.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, number: int = 1) -> None:
        """Count requests of a kind."""
        with self._guard:
            self._counts[kind] += number

    def so_far(self) -> dict[str, int]:
        """Return the number of requests of each kind that was sent."""
        with self._guard:
            return dict(self._counts)


class RequestMeter:
    """Says how many requests of this process were sent since it was last asked."""

    def __init__(self, so_far: Callable[[], Mapping[str, int]]) -> None:
        self._so_far = so_far
        self._before = so_far()

    def new(self) -> dict[str, int]:
        """Return the requests, by kind, that were sent since the last call."""
        before, self._before = self._before, self._so_far()
        return between(before, self._before)


def between(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the requests that were sent between two counts, without kinds that were not."""
    sent = {kind: number - before.get(kind, 0) for kind, number in now.items()}
    return {kind: number for kind, number in sorted(sent.items()) if number}
