"""Storages over a file system of fsspec: what object stores have in common.

There are no directories, only names with slashes: one exists while a file lies in it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from fsspec import AbstractFileSystem

from pyspark_ckpt.errors import UnsafePathError
from pyspark_ckpt.storage.base import DIRECTORY_MARKER, Storage, path_parts
from pyspark_ckpt.storage.chunks import DigestedChunks
from pyspark_ckpt.storage.corrupt_file import corrupt_file
from pyspark_ckpt.storage.file_reference import FileReference

READ_BYTES = 16 << 20
"""Bytes of a file that are read at once, and kept in memory before they go to a local file."""


class FsspecStorage(Storage):
    """Files whose names start with `root`, in a file system that caches no listings.

    Parameters
    ----------
    url
        The root with its scheme.
    root
        The root as the file system names it.
    file_system
        The file system of fsspec.
    """

    is_remote = True

    _failures: tuple[type[Exception], ...] = (asyncio.TimeoutError,)
    """Errors of the file system that are not ``OSError``."""

    _no_place: str | None = None
    """The code of the error of a place where no write can make a directory."""

    def __init__(self, url: str, root: str, file_system: AbstractFileSystem) -> None:
        self.url = url.rstrip("/")
        self._root = root.rstrip("/")
        self._file_system = file_system

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
        """Return a storage of the same file system with another root."""

    def child(self, relative: str) -> Storage:
        return self._at(self._path(relative))

    def parent(self) -> Storage:
        above, _, _ = self._root.rpartition("/")
        if not above:
            raise UnsafePathError(f"{self.url} has no directory above it; do not use it")
        return self._at(above)

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
                with self._errors_named(reference.path):
                    part = self._file_system.cat_file(path, start=start, end=end)
                file.write(part)
                digest.update(part)
            if digest.hexdigest() != reference.sha256:
                raise corrupt_file(
                    self.url_of(reference.path),
                    f"SHA-256 is {digest.hexdigest()}, {reference.sha256} was written",
                )
            file.seek(0)
            yield cast("BinaryIO", file)

    def read(self, relative: str) -> bytes:
        with self._errors_named(relative):
            return bytes(self._file_system.cat_file(self._path(relative)))

    def size_bytes(self, relative: str) -> int | None:
        info = self._info(relative)
        return int(info["size"]) if info is not None and info["type"] == "file" else None

    def exists(self, relative: str) -> bool:
        return self._info(relative) is not None

    def list(self, directory: str | None = None) -> list[str]:
        path = self._root if directory is None else self._path(directory)
        try:
            with self._errors_named(directory):
                names = self._file_system.ls(path, detail=False)
        except FileNotFoundError as exc:
            if self._no_place in codes_of(exc):
                raise
            return []
        # Asked for the name of a file, some file systems list the file itself.
        below = [name.strip("/") for name in names]
        prefix = f"{path.strip('/')}/"
        return sorted({name[len(prefix) :] for name in below if name.startswith(prefix)})

    def delete(self, relatives: Iterable[str]) -> None:
        for relative in relatives:
            with suppress(FileNotFoundError), self._errors_named(relative):
                self._file_system.rm_file(self._path(relative))

    def delete_directory(self, relative: str) -> None:
        path = self._path(relative)
        with suppress(OSError), self._errors_named(relative):
            for name in self._file_system.find(path):
                if name.strip("/").startswith(f"{path.strip('/')}/"):
                    self._file_system.rm_file(name)

    def _path(self, relative: str) -> str:
        return "/".join((self._root, *path_parts(relative, self.url)))

    def _info(self, relative: str) -> dict[str, Any] | None:
        try:
            with self._errors_named(relative):
                return dict(self._file_system.info(self._path(relative)))
        except FileNotFoundError:
            return None

    @contextmanager
    def _errors_named(self, relative: str | None) -> Iterator[None]:
        """Give every error of the file system the natural class and the file's full name."""
        url = self.url if relative is None else self.url_of(relative)
        failures: tuple[type[Exception], ...] = (OSError, *self._failures)
        try:
            yield
        except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError) as exc:
            raise type(exc)(exc.errno or _NUMBERS[type(exc)], str(exc), url) from exc
        except failures as exc:
            number = exc.errno if isinstance(exc, OSError) else None
            raise OSError(number or errno.EIO, f"{type(exc).__name__}: {exc}", url) from exc


def codes_of(error: BaseException) -> set[str | None]:
    """Return the codes of the answers that caused an error."""
    codes = set()
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            codes.add(response.get("Error", {}).get("Code"))
        cause = cause.__cause__
    return codes - {None}


_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
}
