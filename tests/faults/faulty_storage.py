"""A storage around another one; its operations fail, hang, are cut or appear late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, TypeVar

from pyspark_ckpt.storage.base import FileReference, Storage

Result = TypeVar("Result")

FAULTS = ("before", "after", "truncate")
"""The operation is not done; it is done and its answer lost; a write leaves half of its bytes."""


@dataclass
class Plan:
    """Which operation has which fault; the operations are numbered from 0 in their order.

    An operation may be chosen by its name in `fails_on` instead. `delay` is called before the
    operation, in place of a fault.
    """

    index: int | None = None
    fails_on: str | None = None
    fault: str = "before"
    delay: Callable[[], None] | None = None
    done: list[str] = field(default_factory=list)

    @property
    def was_hit(self) -> bool:
        return self.index is not None and len(self.done) > self.index

    def is_due(self, operation: str) -> bool:
        self.done.append(operation)
        return len(self.done) - 1 == self.index or operation == self.fails_on


class FaultyStorage(Storage):
    """Passes everything on to another storage, except the one operation of the plan.

    Parameters
    ----------
    inner
        The real storage.
    plan
        What happens when; storages may share it.
    """

    def __init__(self, inner: Storage, plan: Plan) -> None:
        self.inner = inner
        self.url = inner.url
        self.plan = plan

    def child(self, relative: str) -> Storage:
        return FaultyStorage(self.inner.child(relative), self.plan)

    def parent(self) -> Storage:
        return FaultyStorage(self.inner.parent(), self.plan)

    def url_of(self, relative: str) -> str:
        return self.inner.url_of(relative)

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        content = b"".join(chunks)

        def cut() -> None:
            self.inner.write(relative, [content[: len(content) // 2]])

        return self._do(f"write {relative}", lambda: self.inner.write(relative, [content]), cut)

    def make_directory(self, relative: str) -> None:
        self._do(f"make_directory {relative}", lambda: self.inner.make_directory(relative))

    @contextmanager
    def open_verified(self, reference: FileReference) -> Iterator[BinaryIO]:
        self._do(f"open {reference.path}", lambda: None)
        with self.inner.open_verified(reference) as file:
            yield file

    def read(self, relative: str) -> bytes:
        return self._do(f"read {relative}", lambda: self.inner.read(relative))

    def size_bytes(self, relative: str) -> int | None:
        return self._do(f"size_bytes {relative}", lambda: self.inner.size_bytes(relative))

    def exists(self, relative: str) -> bool:
        return self._do(f"exists {relative}", lambda: self.inner.exists(relative))

    def list(self, directory: str | None = None) -> list[str]:
        return self._do(f"list {directory}", lambda: self.inner.list(directory))

    def delete(self, relatives: Iterable[str]) -> None:
        for relative in relatives:
            self._do(f"delete {relative}", lambda path=relative: self.inner.delete([path]))

    def delete_directory(self, relative: str) -> None:
        self._do(f"delete_directory {relative}", lambda: self.inner.delete_directory(relative))

    def remove_if_empty(self, relative: str) -> None:
        self._do(f"remove_if_empty {relative}", lambda: self.inner.remove_if_empty(relative))

    def _do(
        self, name: str, operation: Callable[[], Result], cut: Callable[[], None] | None = None
    ) -> Result:
        if not self.plan.is_due(name):
            return operation()
        if self.plan.delay is not None:
            self.plan.delay()
            return operation()
        if self.plan.fault == "after":
            operation()
        elif self.plan.fault == "truncate" and cut is not None:
            cut()
        raise OSError(5, f"fault {self.plan.fault}", name)


class StaleStorage(FaultyStorage):
    """Lists a directory as it was a while ago: new names are missing, deleted ones still there.

    Parameters
    ----------
    inner
        The real storage.
    lag
        Called at each listing: how many writes and deletions ago.
    """

    def __init__(self, inner: Storage, lag: Callable[[], int]) -> None:
        super().__init__(inner, Plan())
        self._lag = lag
        self._past: list[set[str]] = [set()]

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        written = super().write(relative, chunks)
        self._past.append(self._past[-1] | {relative})
        return written

    def delete(self, relatives: Iterable[str]) -> None:
        for relative in relatives:
            super().delete([relative])
            self._past.append(self._past[-1] - {relative})

    def delete_directory(self, relative: str) -> None:
        super().delete_directory(relative)
        gone = {path for path in self._past[-1] if path.startswith(f"{relative}/")}
        self._past.append(self._past[-1] - gone)

    def list(self, directory: str | None = None) -> list[str]:
        seen = self._past[max(len(self._past) - 1 - self._lag(), 0)]
        prefix = "" if directory is None else f"{directory}/"
        below = (path[len(prefix) :] for path in seen if path.startswith(prefix))
        return sorted({path.partition("/")[0] for path in below})
