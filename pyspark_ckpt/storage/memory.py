"""The memory of one process as a storage, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import BinaryIO

from fsspec.implementations.memory import MemoryFileSystem

from pyspark_ckpt.formats.layout import is_metadata
from pyspark_ckpt.storage.base import Storage, path_parts
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.object_store import FsspecStorage

MEMORY_SCHEME = "memory"
_lock = threading.Lock()


class MemoryStorage(FsspecStorage):
    """Files in this process's memory: they end with it, and no other process sees them.

    Parameters
    ----------
    path
        A name that storages with the same files share.
    """

    is_shared = False

    def __init__(self, path: str) -> None:
        name = "/".join(path_parts(path.strip("/"), "memory://"))
        super().__init__(f"memory://{name}", f"/{name}", MemoryFileSystem())

    def _at(self, root: str) -> Storage:
        return MemoryStorage(root)

    def _create(self, relative: str, chunks: Iterable[bytes]) -> None:
        path = self._path(relative)
        content = b"".join(chunks)
        with _lock, self._errors_named(relative):
            if self._file_system.exists(path):
                raise FileExistsError("there is a file of that name")
            self._file_system.pipe_file(path, content)


class MemoryWithDurableMetadata(Storage):
    """State in memory, and what says which checkpoints there are in another storage.

    As Flink's MemoryBackendCheckpointStorage with a checkpoint directory: what outlives the
    process restores if all its state is inline, and is refused by the name of the lost file if not.

    Parameters
    ----------
    state
        Where state goes.
    metadata
        Where ``_metadata``, ``_author`` and terms go.
    """

    is_shared = False

    def __init__(self, state: Storage, metadata: Storage) -> None:
        self._state = state
        self._metadata = metadata
        self.url = state.url

    def child(self, relative: str) -> Storage:
        return MemoryWithDurableMetadata(
            self._state.child(relative), self._metadata.child(relative)
        )

    def parent(self) -> Storage:
        return MemoryWithDurableMetadata(self._state.parent(), self._metadata.parent())

    def url_of(self, relative: str) -> str:
        return self._home(relative).url_of(relative)

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        return self._home(relative).write(relative, chunks)

    def make_directory(self, relative: str) -> None:
        self._metadata.make_directory(relative)

    def open_verified(self, reference: FileReference) -> AbstractContextManager[BinaryIO]:
        return self._home(reference.path).open_verified(reference)

    def read(self, relative: str) -> bytes:
        return self._home(relative).read(relative)

    def size_bytes(self, relative: str) -> int | None:
        return self._home(relative).size_bytes(relative)

    def exists(self, relative: str) -> bool:
        return self._state.exists(relative) or self._metadata.exists(relative)

    def list(self, directory: str | None = None) -> list[str]:
        return sorted({*self._state.list(directory), *self._metadata.list(directory)})

    def delete(self, relatives: Iterable[str]) -> None:
        for relative in relatives:
            self._home(relative).delete([relative])

    def delete_directory(self, relative: str) -> None:
        self._metadata.delete_directory(relative)
        self._state.delete_directory(relative)

    def _home(self, relative: str) -> Storage:
        return self._metadata if is_metadata(relative) else self._state
