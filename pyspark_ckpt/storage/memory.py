"""The memory of one process as a storage, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from fsspec.implementations.memory import MemoryFileSystem

from pyspark_ckpt.storage.base import Storage, path_parts
from pyspark_ckpt.storage.servers.object_store import FsspecStorage

_lock = threading.Lock()


class MemoryStorage(FsspecStorage):
    """Files in this process's memory; they end with the process, and no other process sees them.

    Storages with the same path have the same files.
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
        self._counts.add("put")
        with _lock, self._errors_named(relative):
            if self._file_system.exists(path):
                raise FileExistsError("there is a file of that name")
            self._file_system.pipe_file(path, content)
