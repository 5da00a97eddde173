"""The part of a savepoint that one task makes: all state of one subtask.

The task runs at low priority, because the tasks of an epoch may run at the same time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TypeVar

import msgspec

from pyspark_ckpt.formats.canonical_file import encode_canonical
from pyspark_ckpt.formats.change_file import EntryCount
from pyspark_ckpt.formats.handle import (
    CANONICAL_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
)
from pyspark_ckpt.formats.layout import canonical_path
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stored.state import StoredState
from pyspark_ckpt.stored.writing import CANONICAL_NAME

_Made = TypeVar("_Made")
_NICENESS = 10


def at_low_priority(work: Callable[[], _Made]) -> _Made:
    """Return what `work` returns; run it in a thread that gives way on a busy processor.

    On Linux each thread has a priority. A process cannot raise its priority again, and Spark gives
    the next task of an epoch to the same worker. So only a thread gets the low priority, and it
    ends with the work. On other systems `work` has the usual priority.
    """
    if not sys.platform.startswith("linux"):
        return work()
    with ThreadPoolExecutor(1, "pyspark_ckpt-copy", initializer=_lower_priority) as thread:
        return thread.submit(work).result()


def _lower_priority() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class SubtaskCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The order to a task: copy the state of `handle` from one directory into another.

    `token` goes into the names of files that are made.
    """

    handle: Handle
    source: str
    target: str
    is_canonical: bool
    token: str

    def run(self) -> Handle:
        """Copy; called by a task on an executor, perhaps by more than one attempt.

        The files of the returned handle are durable on return.
        """
        source, target = open_storage(self.source), open_storage(self.target)
        if self.is_canonical:
            return _merge(self.handle, source, target, self.token)
        _copy_files(self.handle, source, target)
        return msgspec.structs.replace(self.handle, pending=None, predecessors=())


def _copy_files(handle: Handle, source: Storage, target: Storage) -> None:
    for reference in handle.files():
        # Another attempt, or a subtask that shares the file, may have copied it: names are unique.
        # If both copy it at once, S3 may answer one of them that they are in conflict.
        try:
            target.copy_in(source, reference, reference.path)
        except OSError:
            if target.size_bytes(reference.path) != reference.size_bytes:
                raise
        target.verify_size(reference)


def _merge(handle: Handle, source: Storage, target: Storage, token: str) -> Handle:
    """Write all state of a handle as one canonical file, sorted."""
    count = EntryCount()
    stored = StoredState(source, handle, executor_local_root(handle.subtask))
    path = canonical_path(handle.subtask, handle.epoch, token)
    with closing(encode_canonical(handle, count.through(stored.scan()))) as content:
        file = target.write(path, content)
    base = BaseSnapshot(
        version=handle.version,
        epoch=handle.epoch,
        entries=count.entries,
        files=(BaseFile(CANONICAL_NAME, file),),
        format=CANONICAL_FORMAT,
    )
    return msgspec.structs.replace(handle, base=base, segments=(), pending=None, predecessors=())
