"""A storage that only the holder of a lease may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from pyspark_ckpt.storage.base import FileReference, Storage


class Lease(Protocol):
    """The right to change a storage, until another driver takes it."""

    def check(self) -> None:
        """Raise ``FencedError`` if another driver has taken it."""


class FencedStorage(Storage):
    """Passes each operation to another storage, and asks a lease before each that changes it.

    So a function that writes cannot forget to look. A driver that was paused between the look and
    the operation may still do that one operation. Files are therefore made exclusively.
    """

    def __init__(self, inner: Storage, lease: Lease) -> None:
        self._inner = inner
        self._lease = lease
        self.url = inner.url
        self.is_shared = inner.is_shared
        self.is_remote = inner.is_remote
        self.moves_at_once = inner.moves_at_once

    def check(self) -> None:
        """Raise ``FencedError`` if another driver has the lease now."""
        self._lease.check()

    @property
    def hadoop_url(self) -> str:
        return self._inner.hadoop_url

    def child(self, relative: str) -> Storage:
        return FencedStorage(self._inner.child(relative), self._lease)

    def parent(self) -> Storage:
        return FencedStorage(self._inner.parent(), self._lease)

    def url_of(self, relative: str) -> str:
        return self._inner.url_of(relative)

    def local_path(self, relative: str) -> Path | None:
        return self._inner.local_path(relative)

    def requests(self) -> dict[str, int]:
        return self._inner.requests()

    def check_usable(self) -> None:
        self._inner.check_usable()

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        self._lease.check()
        return self._inner.write(relative, chunks)

    def replace(self, relative: str, content: bytes) -> None:
        self._lease.check()
        self._inner.replace(relative, content)

    def make_directory(self, relative: str) -> None:
        self._lease.check()
        self._inner.make_directory(relative)

    def make_durable(self, directory: str | None = None) -> None:
        self._inner.make_durable(directory)

    def open_verified(self, reference: FileReference) -> AbstractContextManager[BinaryIO]:
        return self._inner.open_verified(reference)

    def read(self, relative: str) -> bytes:
        return self._inner.read(relative)

    def chunks(self, relative: str) -> Iterator[bytes]:
        return self._inner.chunks(relative)

    def read_start(self, relative: str, most_bytes: int) -> bytes:
        return self._inner.read_start(relative, most_bytes)

    def size_bytes(self, relative: str) -> int | None:
        return self._inner.size_bytes(relative)

    def exists(self, relative: str) -> bool:
        return self._inner.exists(relative)

    def list(self, directory: str | None = None) -> list[str]:
        return self._inner.list(directory)

    def entries(self, directory: str | None = None) -> dict[str, bool]:
        return self._inner.entries(directory)

    def delete(self, relatives: Iterable[str]) -> None:
        self._lease.check()
        self._inner.delete(relatives)

    def delete_directory(self, relative: str) -> None:
        self._lease.check()
        self._inner.delete_directory(relative)

    def remove_if_empty(self, relative: str) -> None:
        self._lease.check()
        self._inner.remove_if_empty(relative)

    def files_below(self, directory: str) -> tuple[str, ...]:
        return self._inner.files_below(directory)

    def fingerprint(self, relative: str) -> str:
        return self._inner.fingerprint(relative)

    def move(self, relative: str, target: str) -> None:
        self._lease.check()
        if self.moves_at_once:
            self._inner.move(relative, target)
        else:
            self._inner.move_files(relative, target, self._lease.check)

    def copy_within(self, relative: str, target: str) -> None:
        self._lease.check()
        self._inner.copy_within(relative, target)

    def copy_in(self, source: Storage, reference: FileReference, relative: str) -> FileReference:
        self._lease.check()
        return self._inner.copy_in(source, reference, relative)

    def link_or_copy_in(
        self, source: Storage, reference: FileReference, relative: str
    ) -> FileReference:
        self._lease.check()
        return self._inner.link_or_copy_in(source, reference, relative)
