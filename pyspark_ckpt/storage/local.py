"""The local file system as a storage: durable by fsync, exclusive by hard links.

A mounted file system that has both works the same way.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pyspark_ckpt.errors import UnsafePathError
from pyspark_ckpt.storage.base import (
    DigestedChunks,
    FileReference,
    Storage,
    chunks_of,
    corrupt_file,
    path_parts,
    sha256_of,
)
from pyspark_ckpt.storage.mount import check_mount, give_name

_Check = Callable[[str], None]
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


class LocalStorage(Storage):
    """Files below one root directory on the local file system.

    A write is durable when it returns: it syncs the file, then the directory.
    """

    moves_at_once = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    @property
    def hadoop_url(self) -> str:
        return f"file:{self.root}"  # a path alone may be of another file system, Hadoop's default

    def path(self, relative: str) -> Path:
        """Return the absolute path of `relative`.

        ``UnsafePathError`` is raised if the path is absolute or leaves the root, also through a
        symbolic link.
        """
        path = self.root.joinpath(*path_parts(relative, self.url))
        try:
            resolved = path.resolve()
            # Python 3.13 returns a path in a circle of links unresolved.
            circular = any(part.is_symlink() for part in (resolved, *resolved.parents))
            inside = not circular and resolved.is_relative_to(self.root.resolve())
        except PermissionError:
            raise  # the path may be inside
        except (OSError, RuntimeError):  # links in a circle
            inside = False
        if not inside:
            raise UnsafePathError(
                f"path {relative!r} leaves {self.root} through a symbolic link: do not use the "
                "file that names this path"
            )
        return path

    def child(self, relative: str) -> LocalStorage:
        return LocalStorage(self.path(relative))

    def parent(self) -> LocalStorage:
        return LocalStorage(self.root.resolve().parent)

    def url_of(self, relative: str) -> str:
        return str(self.path(relative))

    def local_path(self, relative: str) -> Path | None:
        return self.path(relative).resolve()

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        return self._write(relative, chunks, None)

    def copy_in(self, source: Storage, reference: FileReference, relative: str) -> FileReference:
        if not isinstance(source, LocalStorage):
            return super().copy_in(source, reference, relative)
        # Read once: the digest of the copy also checks the original.
        source.verify_size(reference)
        with source.path(reference.path).open("rb") as file:
            check = _checked(source.path(reference.path), reference)
            return self._write(relative, chunks_of(file), check)

    def link_or_copy_in(
        self, source: Storage, reference: FileReference, relative: str
    ) -> FileReference:
        if not isinstance(source, LocalStorage):
            return self.copy_in(source, reference, relative)
        source.verify_size(reference)
        original, path = source.path(reference.path).resolve(), self.path(relative)
        _make_directories(path.parent)
        with original.open("rb") as file:
            if not _has_linked(file, original, path):
                return self.copy_in(source, reference, relative)
            try:
                _checked(original, reference)(sha256_of(file))
                os.fsync(file.fileno())  # what copied it to this place may not have done so
            except BaseException:
                path.unlink()
                raise
        _sync_directory(path.parent)
        return FileReference(relative, reference.size_bytes, reference.sha256)

    def replace(self, relative: str, content: bytes) -> None:
        self._write(relative, [content], None, lambda temporary, path: temporary.replace(path))

    def _write(
        self,
        relative: str,
        chunks: Iterable[bytes],
        check: _Check | None,
        give: Callable[[Path, Path], object] = give_name,
    ) -> FileReference:
        """Write a file; if there is a check of the digest and it fails, no file remains."""
        path = self.path(relative)
        _make_directories(path.parent)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        digested = DigestedChunks()
        try:
            with temporary.open("xb") as file:
                for chunk in digested.through(chunks):
                    file.write(chunk)
                file.flush()
                if check is not None:
                    check(digested.sha256)
                os.fsync(file.fileno())
            give(temporary, path)  # unlike a plain rename, `give_name` never replaces a file
        except FileExistsError:
            _sync_directory(path.parent)  # the caller will rely on a file that is there
            raise
        except OSError as exc:
            if exc.errno in _NO_ROOM and exc.filename is None:
                exc.filename = str(path)  # the error of a write does not name the file
            raise
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)
        return digested.reference(relative)

    def make_directory(self, relative: str) -> None:
        path = self.path(relative)
        _make_directories(path.parent)
        path.mkdir()
        _sync_directory(path.parent)

    @contextmanager
    def open_verified(self, reference: FileReference) -> Iterator[BinaryIO]:
        self.verify_size(reference)
        path = self.path(reference.path)
        with path.open("rb") as file:
            _checked(path, reference)(sha256_of(file))
            file.seek(0)
            yield file

    def size_bytes(self, relative: str) -> int | None:
        try:
            status = self.path(relative).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, relative: str) -> bytes:
        return self.path(relative).read_bytes()

    def chunks(self, relative: str) -> Iterator[bytes]:
        with self.path(relative).open("rb") as file:
            yield from chunks_of(file)

    def exists(self, relative: str) -> bool:
        try:
            self.path(relative).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, directory: str | None = None) -> list[str]:
        path = self.root if directory is None else self.path(directory)
        try:
            return sorted(os.listdir(path))  # noqa: PTH208  # only names are wanted
        except (FileNotFoundError, NotADirectoryError):
            return []

    def entries(self, directory: str | None = None) -> dict[str, bool]:
        path = self.root if directory is None else self.path(directory)
        try:
            with os.scandir(path) as found:
                return {each.name: _is_directory(each) for each in found}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def delete(self, relatives: Iterable[str]) -> None:
        directories = set()
        for relative in relatives:
            path = self.path(relative)
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  # seen by tests of durability on every Python
            directories.add(path.parent)
        for directory in directories:
            if directory.is_dir():
                _sync_directory(directory)

    def files_below(self, directory: str) -> tuple[str, ...]:
        # Unlike a glob, it leaves out what is deleted during the walk, and nothing else.
        walk = os.walk(self.path(directory), onerror=_raise_unless_gone)
        found = (Path(place, name) for place, _, names in walk for name in names)
        return tuple(sorted(str(path.relative_to(self.root)) for path in found))

    def fingerprint(self, relative: str) -> str:
        status = self.path(relative).stat()
        return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"

    def make_durable(self, directory: str | None = None) -> None:
        path = self.root if directory is None else self.path(directory)
        _make_directories(path)
        _sync_directory(path)

    def check_usable(self) -> None:
        check_mount(self.root)

    def move(self, relative: str, target: str) -> None:
        source, path = self.path(relative), self.path(target)
        if path.exists():
            raise FileExistsError(f"{path} exists, so {source} was not moved there")
        source.rename(path)
        _sync_directory(path.parent)
        _sync_directory(source.parent)

    def delete_directory(self, relative: str) -> None:
        shutil.rmtree(self.path(relative), ignore_errors=True)

    def remove_if_empty(self, relative: str) -> None:
        with suppress(OSError):
            self.path(relative).rmdir()


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circle of links: an error names it when it is opened
        return True


def _checked(path: Path, reference: FileReference) -> _Check:
    """Return a function that checks the digest of what was read from a path."""

    def check(sha256: str) -> None:
        if sha256 != reference.sha256:
            raise corrupt_file(
                str(path), f"SHA-256 is {sha256}, but {reference.sha256} was written"
            )

    return check


_durable_directories: set[tuple[str, int]] = set()
"""Directories whose entries this process knows to be durable, by path and number."""


def _make_directories(directory: Path) -> None:
    """Create a directory and its missing parents, with durable entries.

    A directory that is there may be one that another process has just made, and whose entry that
    process had not synced when it was killed. So each entry is synced once by this process too.
    """
    unsure = []
    while directory != directory.parent and not _is_durable(directory):
        unsure.append(directory)
        directory = directory.parent
    for path in reversed(unsure):
        was_there = path.is_dir()
        if not was_there:
            _make_directory(path)
        try:
            _sync_directory(path.parent)
        except PermissionError:
            if not was_there:
                raise
            continue  # of an administrator, who made it long ago
        _durable_directories.add((str(path), path.stat().st_ino))


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError as exc:
        # The caller would take that for the file that it wants to write.
        raise NotADirectoryError(
            errno.ENOTDIR, "this is not a directory, but there must be one: move it away", str(path)
        ) from exc


def _is_durable(directory: Path) -> bool:
    try:
        status = directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (str(directory), status.st_ino) in _durable_directories


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # some network file systems sync directories by themselves
            raise
    finally:
        os.close(descriptor)


def _has_linked(file: BinaryIO, original: Path, path: Path) -> bool:
    """Give an open file another name, if it is this user's; return whether it has it now.

    ``FileExistsError`` is raised if the name is used.
    """
    status = os.fstat(file.fileno())
    if status.st_uid != os.geteuid():  # its owner could change it, or who may read it
        return False
    try:
        os.link(original, path)
    except OSError as exc:  # another file system, one without links, or a full directory
        if not _is_at(path, status):  # a server may answer with an error after it made the link
            if isinstance(exc, FileExistsError):
                raise
            return False
    if _is_at(path, status):
        return True
    path.unlink()  # another file has the original's name by now
    return False


def _is_at(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(status, path.stat())
    except FileNotFoundError:
        return False
