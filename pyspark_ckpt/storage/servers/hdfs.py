"""HDFS as a storage, through hdfs-native: a client without a JVM.

HDFS shows a file under its name before the file is whole. So a file is written under a temporary
name, flushed to the disks of its DataNodes, and renamed. The NameNode refuses the rename if the
name is taken, and it makes one rename after the other, so one of several writers succeeds.
Name services, users and security come from Hadoop's own configuration files and environment.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage.base import DigestedChunks, FileReference, Storage, path_parts
from pyspark_ckpt.storage.servers.remote import RemoteStorage

if TYPE_CHECKING:
    from hdfs_native import Client

_COLON = "\uf03a"
"""Stands for a colon, which HDFS takes in no name. Cygwin writes a colon the same way."""


class HdfsStorage(RemoteStorage):
    """Files below one directory of an HDFS.

    `authority` is ``host:port`` of the NameNode, or a name service of ``hdfs-site.xml``.
    """

    moves_at_once = True
    _failures = (RuntimeError,)  # what the NameNode says, unless it has a natural class

    def __init__(self, authority: str, path: str = "") -> None:
        path = path.strip("/")
        if not authority or "@" in authority:
            shown = f"{authority.rpartition('@')[2]}/{path}"
            raise ConfigurationError(
                f"hdfs://{shown}: this names no NameNode; write hdfs://namenode:8020/path or "
                "hdfs://nameservice/path, and the user in HADOOP_USER_NAME or a Kerberos ticket"
            )
        parts = path_parts(path, f"hdfs://{authority}") if path else ()
        root = "/".join((authority, *parts))
        super().__init__(f"hdfs://{root}", root)
        self._client = _client(authority, os.getpid())

    def _at(self, root: str) -> Storage:
        authority, _, path = root.partition("/")
        return HdfsStorage(authority, path)

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        digested = DigestedChunks()
        path = self._path(relative)
        self._counts.add("put")
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name}.{secrets.token_hex(4)}.tmp"
        content = digested.through(chunks)
        try:
            self._fill(relative, temporary, content)
            self._give_name(relative, temporary, digested)
        except BaseException:
            with suppress(Exception):  # it is not the failure that the caller must hear of
                self._delete(temporary)
            raise
        return digested.reference(relative)

    def _create(self, relative: str, chunks: Iterable[bytes]) -> None:
        self.write(relative, chunks)

    def _fill(self, relative: str, temporary: str, chunks: Iterable[bytes]) -> None:
        from hdfs_native import WriteOptions

        with self._errors_named(relative):
            # Nobody else has this name: a request that is repeated replaces the first one's file.
            file = self._client.create(_path(temporary), WriteOptions(overwrite=True))
        try:
            size_bytes = 0
            for chunk in chunks:
                with self._errors_named(relative):
                    file.write(chunk)
                size_bytes += len(chunk)
            if size_bytes:
                with self._errors_named(relative):
                    file.hsync()
        except BaseException:
            with suppress(Exception):
                file.close()
            raise
        with self._errors_named(relative):
            file.close()

    def _give_name(self, relative: str, temporary: str, digested: DigestedChunks) -> None:
        """Rename a file that nobody else renames.

        After an answer that got lost, the client repeats the request and its file is not found.
        """
        try:
            with self._errors_named(relative):
                self._client.rename(_path(temporary), _path(self._path(relative)), overwrite=False)
        except OSError as exc:
            if self._exists(temporary):
                if self.exists(relative):
                    url = self.url_of(relative)
                    raise FileExistsError(errno.EEXIST, "there is a file", url) from exc
                raise
            if not self._is_whole(digested.reference(relative)):
                raise

    def _exists(self, path: str) -> bool:
        try:
            self._look(path)
        except FileNotFoundError:
            return False
        return True

    def _is_whole(self, reference: FileReference) -> bool:
        if self.size_bytes(reference.path) != reference.size_bytes:
            return False
        with suppress(FileNotFoundError), self.open_verified(reference):
            return True
        return False

    def make_directory(self, relative: str) -> None:
        # In HDFS, making a directory that exists is not an error, but renaming one to its name is.
        path = self._path(relative)
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name}.{secrets.token_hex(4)}.tmp"
        with self._errors_named(relative):
            self._client.mkdirs(_path(temporary), create_parent=True)
            try:
                self._client.rename(_path(temporary), _path(path), overwrite=False)
            except BaseException:
                with suppress(Exception):
                    self._client.delete(_path(temporary), recursive=True)
                raise

    def files_below(self, directory: str) -> tuple[str, ...]:
        root = _path(self._path(directory))
        try:
            with self._errors_named(directory):
                found = list(self._client.list_status(root, recursive=True))
        except FileNotFoundError:
            return ()
        below = [status.path for status in found if not status.isdir and status.path != root]
        names = sorted(path.removeprefix(f"{root}/").replace(_COLON, ":") for path in below)
        return tuple(f"{directory}/{name}" for name in names)

    def fingerprint(self, relative: str) -> str:
        with self._errors_named(relative):
            status = self._client.get_file_info(_path(self._path(relative)))
        return f"{status.modification_time} {status.length}"

    def move(self, relative: str, target: str) -> None:
        source, path = self._path(relative), self._path(target)
        with self._errors_named(target):
            if self._exists(path):
                raise FileExistsError("there is something at that place")
            self._client.rename(_path(source), _path(path), overwrite=False)

    def _content(self, path: str) -> bytes:
        file = self._client.read(_path(path))
        return b"".join(file.read_range_stream(0, len(file)))

    def _part(self, path: str, start: int, end: int) -> bytes:
        file = self._client.read(_path(path))
        return bytes(file.read_range(start, end - start))

    def _look(self, path: str) -> int | None:
        status = self._client.get_file_info(_path(path))
        return None if status.isdir else int(status.length)

    def _names(self, path: str) -> Iterable[str]:
        return self._entries(path)

    def _entries(self, path: str) -> dict[str, bool]:
        asked = _path(path)
        # Asked for the name of a file, HDFS lists the file itself.
        found = [status for status in self._client.list_status(asked) if status.path != asked]
        return {
            status.path.rpartition("/")[2].replace(_COLON, ":"): bool(status.isdir)
            for status in found
        }

    def _delete(self, path: str) -> None:
        self._client.delete(_path(path), recursive=False)

    def _delete_below(self, path: str) -> None:
        self._client.delete(_path(path), recursive=True)

    def _said(self, error: Exception) -> str:
        """Return what the NameNode said, without where in its program it said so."""
        return str(error).replace("\\n", "\n").partition("\n")[0]


@cache
def _client(authority: str, process: int) -> Client:  # noqa: ARG001  # a fork has its own
    """Return the client of a NameNode; there is one in each process."""
    try:
        from hdfs_native import Client
    except ImportError as exc:
        raise ConfigurationError(
            "hdfs:// needs hdfs-native: install pyspark_ckpt[hdfs] for the driver and the executors"
        ) from exc
    try:
        return Client(f"hdfs://{authority}")
    except (RuntimeError, ValueError) as exc:
        raise ConfigurationError(
            f"hdfs://{authority}: {exc}; name a NameNode as host:port, or a name service of "
            "hdfs-site.xml, and set HADOOP_CONF_DIR on the driver and the executors"
        ) from exc


def _path(path: str) -> str:
    """Return a path as HDFS knows it, without the NameNode."""
    return f"/{path.partition('/')[2].replace(':', _COLON)}"
