"""The barrier of a subtask: make the epoch durable and name it with a new handle."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ckpt.on_disk.change_file import encode_changes
from pyspark_ckpt.on_disk.handle import BaseSnapshot, Handle, Segment, new_version
from pyspark_ckpt.on_disk.layout import base_path, segment_path
from pyspark_ckpt.on_disk.storage import Storage
from state_backends import Changes, StateBackend

BASE_AFTER_BYTES = 1 << 20
"""Smallest changelog for which a base snapshot is worth its file."""

BASE_AFTER_SEGMENTS = 100
_FRAME_ENTRIES = 10_000


def make_segment(
    storage: Storage, handle: Handle, changes: Changes, epoch: int, inline_threshold_bytes: int
) -> Segment:
    """Make one epoch's changes durable.

    They go into the handle as long as all its inline segments stay below the threshold, else into
    a file, which is durable on return.
    """
    version = new_version(epoch)
    frames = list(encode_changes(_split(changes)))
    size_bytes = sum(map(len, frames))
    inline_bytes = sum(s.size_bytes for s in handle.segments if s.inline is not None)
    entries = len(changes)
    if inline_bytes + size_bytes <= inline_threshold_bytes:
        return Segment(version, epoch, entries, size_bytes, inline=b"".join(frames))
    file = storage.write(segment_path(handle.subtask, epoch), frames)
    return Segment(version, epoch, entries, size_bytes, file=file)


def needs_base(handle: Handle) -> bool:
    """Tell whether the changelog has outgrown the base snapshot.

    Waiting until it is as large as the base keeps all base snapshots together within a constant
    factor of all changes written.
    """
    changelog_bytes = sum(segment.size_bytes for segment in handle.segments)
    base_bytes = 0 if handle.base is None else handle.base.file.size_bytes
    return (
        changelog_bytes > max(base_bytes, BASE_AFTER_BYTES)
        or len(handle.segments) >= BASE_AFTER_SEGMENTS
    )


def make_base(storage: Storage, backend: StateBackend, handle: Handle, epoch: int) -> BaseSnapshot:
    """Write all state of a backend, which is at the handle's version, as a new base snapshot.

    The file is durable on return and works for every backend.
    """
    entries = 0

    def frames() -> Iterator[Changes]:
        nonlocal entries
        for part in _in_frames(backend.scan()):
            entries += len(part)
            yield part

    file = storage.write(base_path(handle.subtask, epoch), encode_changes(frames()))
    return BaseSnapshot(version=handle.version, epoch=epoch, entries=entries, file=file)


def _split(changes: Changes) -> Iterator[Changes]:
    for start in range(0, len(changes), _FRAME_ENTRIES):
        stop = start + _FRAME_ENTRIES
        yield Changes(changes.keys[start:stop], changes.values[start:stop])


def _in_frames(pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[Changes]:
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for key, value in pairs:
        keys.append(key)
        values.append(value)
        if len(keys) == _FRAME_ENTRIES:
            yield Changes(keys, values)
            keys, values = [], []
    if keys:
        yield Changes(keys, values)
