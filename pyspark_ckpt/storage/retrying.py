"""A storage that repeats the operations of another storage after transient failures.

An object store may reject requests because there are too many. A mounted file system may be away
while its server restarts. The coordinator's operations are repeated after growing pauses before a
failure counts.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.base import FileReference, Storage

logger = library_logger(__name__)

PAUSES_SECONDS = (0.2, 0.6, 1.8)
"""The pauses between the attempts at an operation; the last attempt's error is raised."""

_PERMANENT = (
    CkptError,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)

_REPEATED = "pyspark_ckpt_repeated"

_Result = TypeVar("_Result")


def is_transient(error: BaseException) -> bool:
    """Return whether an operation that failed may succeed a moment later."""
    return (
        isinstance(error, OSError)
        and not isinstance(error, _PERMANENT)
        and not hasattr(error, _REPEATED)
    )


def retried(work: Callable[[], _Result]) -> _Result:
    """Return what `work` returns; repeat it after a storage error that may be transient.

    `work` must be safe to repeat. The error of the last attempt is raised.
    """
    for pause_seconds in PAUSES_SECONDS:
        try:
            return work()
        except OSError as exc:
            if not is_transient(exc):
                raise
            logger.info("a storage operation is repeated after %s s: %s", pause_seconds, exc)
        time.sleep(pause_seconds)
    try:
        return work()
    except OSError as exc:
        setattr(exc, _REPEATED, True)  # so that no caller repeats it again
        raise


class RetryingStorage(Storage):
    """Passes each operation to another storage, and repeats it after a transient failure."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.url = inner.url
        self.is_shared = inner.is_shared
        self.is_remote = inner.is_remote
        self.moves_at_once = inner.moves_at_once

    @property
    def hadoop_url(self) -> str:
        return self._inner.hadoop_url

    def child(self, relative: str) -> Storage:
        return RetryingStorage(self._inner.child(relative))

    def parent(self) -> Storage:
        return RetryingStorage(self._inner.parent())

    def url_of(self, relative: str) -> str:
        return self._inner.url_of(relative)

    def local_path(self, relative: str) -> Path | None:
        return self._inner.local_path(relative)

    def requests(self) -> dict[str, int]:
        return self._inner.requests()

    def check_usable(self) -> None:
        self._inner.check_usable()

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        content = b"".join(chunks)  # the coordinator's files are small
        has_failed = False

        def write() -> FileReference:
            nonlocal has_failed
            try:
                return self._inner.write(relative, [content])
            except FileExistsError:
                # The attempt before may have written the file and failed afterwards.
                if not has_failed or self._inner.read(relative) != content:
                    raise
                sha256 = hashlib.sha256(content).hexdigest()
                return FileReference(relative, len(content), sha256)
            except OSError:
                has_failed = True
                raise

        return retried(write)

    def replace(self, relative: str, content: bytes) -> None:
        retried(lambda: self._inner.replace(relative, content))

    def make_durable(self, directory: str | None = None) -> None:
        retried(lambda: self._inner.make_durable(directory))

    def make_directory(self, relative: str) -> None:
        retried(lambda: self._inner.make_directory(relative))

    @contextmanager
    def open_verified(self, reference: FileReference) -> Iterator[BinaryIO]:
        with ExitStack() as stack:
            yield retried(lambda: stack.enter_context(self._inner.open_verified(reference)))

    def read(self, relative: str) -> bytes:
        return retried(lambda: self._inner.read(relative))

    def read_start(self, relative: str, most_bytes: int) -> bytes:
        return retried(lambda: self._inner.read_start(relative, most_bytes))

    def size_bytes(self, relative: str) -> int | None:
        return retried(lambda: self._inner.size_bytes(relative))

    def exists(self, relative: str) -> bool:
        return retried(lambda: self._inner.exists(relative))

    def list(self, directory: str | None = None) -> list[str]:
        return retried(lambda: self._inner.list(directory))

    def entries(self, directory: str | None = None) -> dict[str, bool]:
        return retried(lambda: self._inner.entries(directory))

    def delete(self, relatives: Iterable[str]) -> None:
        paths = tuple(relatives)
        retried(lambda: self._inner.delete(paths))

    def delete_directory(self, relative: str) -> None:
        retried(lambda: self._inner.delete_directory(relative))

    def remove_if_empty(self, relative: str) -> None:
        retried(lambda: self._inner.remove_if_empty(relative))

    def copy_within(self, relative: str, target: str) -> None:
        retried(lambda: self._inner.copy_within(relative, target))

    def chunks(self, relative: str) -> Iterator[bytes]:
        return self._inner.chunks(relative)

    def files_below(self, directory: str) -> tuple[str, ...]:
        return retried(lambda: self._inner.files_below(directory))

    def fingerprint(self, relative: str) -> str:
        return retried(lambda: self._inner.fingerprint(relative))

    def move(self, relative: str, target: str) -> None:
        self._inner.move(relative, target)  # one that moves at once may not do it twice
