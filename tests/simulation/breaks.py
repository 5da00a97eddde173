"""Lines of safety that the simulation must miss: each is broken, and a seed must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pyspark_ckpt.checkpoint import cleaning
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable import local_copy
from pyspark_ckpt.restore.location import facts, start_location, swap
from pyspark_ckpt.storage import local
from pyspark_ckpt.stores.directory import CompletedCheckpoints, DriverTerm
from tests.simulation import application
from tests.simulation.bucket import Bucket
from tests.simulation.disk import DiskOs, _Directory, _File
from tests.unit.memory_pointers import MemoryPointers


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _never(*_: Any) -> bool:
    return False


@contextmanager
def _always(_: Any) -> Iterator[bool]:
    yield True


def _fsync_of(kind: type) -> Callable[..., None]:
    real = DiskOs.fsync

    def fsync(self: DiskOs, entry: Any) -> None:
        if isinstance(entry, kind):
            real(self, entry)

    return fsync


def _link_that_replaces(self: DiskOs, source: Any, target: Any) -> None:
    target.parent  # noqa: B018  # as the real one
    self._disk.directory(target._parts[:-1]).names[target.name] = source._entry()


def _any_version(backend: Any, lineage: Any) -> str:
    return str(lineage[-1])


def _without_predecessors(handle: Handle, before: Handle | None) -> Handle:
    return handle


def _without_pending(
    storage: Any, needed: Any, epoch: int, pending: Any = (), kept_since: Any = None
) -> list[str]:
    del pending
    return _GARBAGE(storage, needed, epoch, (), kept_since)


_GARBAGE = cleaning.garbage


def _none(_: object) -> None:
    """Return nothing."""


def _is_there(directory: Any) -> bool:
    return bool(directory.is_dir())


BREAKS: dict[str, list[tuple[Any, str, Any]]] = {
    "fence": [
        (DriverTerm, "check", _nothing),
        (CompletedCheckpoints, "_check_author", _nothing),
        (MemoryPointers, "check", _nothing),
    ],
    "exclusive-create": [(DiskOs, "link", _link_that_replaces), (Bucket, "is_exclusive", False)],
    "fsync-of-files": [(DiskOs, "fsync", _fsync_of(_Directory))],
    "fsync-of-directories": [(DiskOs, "fsync", _fsync_of(_File))],
    "hold": [(cleaning.CleaningHold, "cleaning", _always)],
    "hold-of-the-run-before": [(application, "hold_after", _none)],
    "lineage": [(local_copy, "_complete_version", _any_version)],
    "predecessors": [(application, "following", _without_predecessors)],
    "pending": [(cleaning, "garbage", _without_pending)],
    "half-seeded": [
        (facts, "is_half_seeded", _never),
        (start_location, "is_half_seeded", _never),
    ],
    "directories-of-others": [(local, "_is_durable", _is_there)],
    "claim-of-a-swap": [
        (swap._Claim, "check", _nothing),
        (swap, "_withdraw_unless_claimed", _never),
    ],
    "next-epoch-of-a-restart": [(swap, "_reserve", lambda *_: True)],
}
"""What is replaced to break each line."""


@contextmanager
def broken(name: str | None) -> Iterator[None]:
    """Break a line of safety while the context lasts; ``None`` breaks nothing."""
    with ExitStack() as stack:
        for owner, attribute, replacement in BREAKS[name] if name else ():
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield
