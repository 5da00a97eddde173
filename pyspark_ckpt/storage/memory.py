"""The memory of one process as a storage, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from pyspark_ckpt.storage.base import Storage, path_parts
from pyspark_ckpt.storage.servers.object_store import FsspecStorage

_lock = threading.RLock()


class _OneAtATime:
    """A file system in memory for many threads: fsspec's fails if files come and go meanwhile."""

    def __init__(self) -> None:
        self._file_system = MemoryFileSystem()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._file_system, name)

        def alone(*arguments: Any, **options: Any) -> Any:
            with _lock:
                return operation(*arguments, **options)

        return alone


class MemoryStorage(FsspecStorage):
    """Files in this process's memory; they end with the process, and no other process sees them.

    Storages with the same path have the same files.
    """

    is_shared = False

    def __init__(self, path: str) -> None:
        name = "/".join(path_parts(path.strip("/"), "memory://"))
        super().__init__(f"memory://{name}", f"/{name}", _OneAtATime())

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
