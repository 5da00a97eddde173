"""The barrier of a subtask: make the epoch durable and name it with a new handle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import Handle, Segment, new_version
from pyspark_ckpt.formats.layout import segment_path
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import Changes


def make_segment(
    storage: WorkerStorage,
    handle: Handle,
    changes: Iterable[Changes],
    epoch: int,
    inline_threshold_bytes: int,
) -> Segment | None:
    """Make one epoch's changes durable.

    They go into the handle as long as all its inline segments stay below the threshold, else into
    a file, which is durable on return. Without changes there is no segment.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    handle
        The handle that the epoch started from.
    changes
        In key order, in frames; read once, and never all in memory.
    epoch
        The epoch that ends.
    inline_threshold_bytes
        Bytes that inline segments of a handle may take together.
    """
    remaining = iter(changes)
    first_changes = next(remaining, None)
    if first_changes is None:
        return None
    counted = _Counted(chain([first_changes], remaining))
    encoded = encode_changes(counted)
    room = inline_threshold_bytes - sum(
        segment.size_bytes for segment in handle.segments if segment.inline is not None
    )
    first: list[bytes] = []
    size_bytes = 0
    while size_bytes <= room and (part := next(encoded, None)) is not None:
        first.append(part)
        size_bytes += len(part)
    if size_bytes <= room:
        inline = b"".join(first)
        return Segment(new_version(epoch), epoch, counted.entries, len(inline), inline=inline)
    file = storage.write(segment_path(handle.uid, handle.subtask, epoch), chain(first, encoded))
    return Segment(new_version(epoch), epoch, counted.entries, file.size_bytes, file=file)


class _Counted:
    """Counts the entries of changes as they go by."""

    def __init__(self, changes: Iterable[Changes]) -> None:
        self._changes = changes
        self.entries = 0

    def __iter__(self) -> Iterator[Changes]:
        for part in self._changes:
            self.entries += len(part)
            yield part
