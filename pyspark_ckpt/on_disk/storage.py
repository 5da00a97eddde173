"""The one module that writes, reads and deletes files of checkpoints.

Paths come in relative to a root and are checked to stay inside it, since most are read from files.
Local writes are durable when they return: file fsync, then directory fsync. Other file systems
follow; :func:`open_storage` refuses them by name until then.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pyspark_ckpt.errors import CorruptFileError, NotBuiltYetError, UnsafePathError
from pyspark_ckpt.on_disk.handle import FileReference

_CHUNK_BYTES = 1 << 20


class Storage:
    """Files below one root directory on the local file system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, relative: str) -> Path:
        """Return the absolute path of `relative`.

        Raises
        ------
        UnsafePathError
            If the path is absolute or leaves the root, also through a symbolic link.
        """
        parts = PurePosixPath(relative).parts
        if not parts or relative.startswith("/") or ".." in parts or "\0" in relative:
            raise UnsafePathError(
                f"path {relative!r} does not stay inside {self.root}: the file it was read from "
                "is damaged or hostile; do not use it"
            )
        path = self.root.joinpath(*parts)
        try:
            resolved = path.resolve()
            # Python 3.13 leaves links in a circle as they are.
            circular = any(part.is_symlink() for part in (resolved, *resolved.parents))
            inside = not circular and resolved.is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):  # links in a circle
            inside = False
        if not inside:
            raise UnsafePathError(
                f"path {relative!r} leaves {self.root} through a symbolic link; do not use it"
            )
        return path

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        """Write a new file, which is durable on return; its name must not exist yet.

        Raises
        ------
        FileExistsError
            If there is a file of that name; it is left as it is.
        """
        path = self.path(relative)
        _make_directories(path.parent)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        digest = hashlib.sha256()
        size_bytes = 0
        try:
            with temporary.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size_bytes += len(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # unlike a rename, never replaces a file
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)
        return FileReference(path=relative, size_bytes=size_bytes, sha256=digest.hexdigest())

    def make_directory(self, relative: str) -> None:
        """Make a new directory, which is durable on return.

        Raises
        ------
        FileExistsError
            If there is one of that name.
        """
        path = self.path(relative)
        _make_directories(path.parent)
        path.mkdir()
        _sync_directory(path.parent)

    def copy_in(self, source: Storage, reference: FileReference, relative: str) -> FileReference:
        """Copy a file of another storage into this one, checked against its reference."""
        with source.open_verified(reference) as file:
            return self.write(relative, iter(lambda: file.read(_CHUNK_BYTES), b""))

    @contextmanager
    def open_verified(self, reference: FileReference) -> Iterator[BinaryIO]:
        """Open a file whose size and digest were checked first.

        Raises
        ------
        CorruptFileError
            If it is missing or differs from `reference`.
        """
        self.verify_size(reference)
        path = self.path(reference.path)
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            if digest.hexdigest() != reference.sha256:
                raise CorruptFileError(
                    f"{path}: SHA-256 is {digest.hexdigest()}, {reference.sha256} was written; "
                    "restore from another checkpoint"
                )
            file.seek(0)
            yield file

    def verify_size(self, reference: FileReference) -> None:
        """Check that a file exists with the size that was written.

        Raises
        ------
        CorruptFileError
            If it is missing or has another size.
        """
        path = self.path(reference.path)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise CorruptFileError(f"{path} is missing; restore from another checkpoint") from exc
        if not stat.S_ISREG(status.st_mode):
            raise CorruptFileError(f"{path} is no file; restore from another checkpoint")
        size_bytes = status.st_size
        if size_bytes != reference.size_bytes:
            raise CorruptFileError(
                f"{path} has {size_bytes} bytes, {reference.size_bytes} were written; "
                "restore from another checkpoint"
            )

    def read(self, relative: str) -> bytes:
        """Return the content of a file."""
        return self.path(relative).read_bytes()

    def exists(self, relative: str) -> bool:
        """Tell whether there is a file or directory of that name."""
        return self.path(relative).exists()

    def list(self, directory: str | None = None) -> list[str]:
        """Return the names in a directory, by default the root; none if it does not exist."""
        path = self.root if directory is None else self.path(directory)
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def delete(self, relatives: Iterable[str]) -> None:
        """Delete the files that are there; durable on return."""
        directories = set()
        for relative in relatives:
            path = self.path(relative)
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  # seen by tests of durability on every Python
            directories.add(path.parent)
        for directory in directories:
            if directory.is_dir():
                _sync_directory(directory)

    def delete_directory(self, relative: str) -> None:
        """Delete a directory and what is in it."""
        shutil.rmtree(self.path(relative), ignore_errors=True)


def open_storage(url: str, what: str = "path") -> Storage:
    """Return the storage at a path or URL, called `what` in errors; nothing is created yet.

    Raises
    ------
    NotBuiltYetError
        If the URL is not of the local file system.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", url)
    if scheme is None:
        path = url
    elif scheme[1] == "file":
        # Spark writes local paths as file:/x or file:///x.
        path = re.sub(r"^file:/+", "/", url)
    else:
        raise NotBuiltYetError(
            f"{what} {url}: this file system is not built yet; use a local or mounted path"
        )
    return Storage(Path(path).expanduser().absolute())


def _make_directories(directory: Path) -> None:
    """Create a directory whose own entry is durable, parents included."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
