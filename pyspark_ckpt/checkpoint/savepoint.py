"""Savepoints: a snapshot copied, with everything it needs, to a directory that the user owns."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.on_disk.layout import METADATA_NAME, savepoint_name
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata, encode_metadata
from pyspark_ckpt.on_disk.storage import Storage, open_storage


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A completed savepoint; `path` is what ``restoreFrom`` takes."""

    path: str
    epoch: int
    query_id: str
    triggered_at_ms: int
    completed_at_ms: int
    size_bytes: int
    files: int


def write_savepoint(
    snapshot: CheckpointMetadata, source: Storage, savepoints_directory: str
) -> Savepoint:
    """Copy a snapshot into a new directory below `savepoints_directory`.

    Every file is checked by its digest while it is copied. The savepoint exists from the moment
    its ``_metadata`` is written, last; it is durable on return. On failure the new directory is
    removed.

    Parameters
    ----------
    snapshot
        What :func:`take_snapshot` gathered; nothing may clean its files meanwhile.
    source
        The query's checkpoints directory.
    savepoints_directory
        Where the new ``savepoint-...`` directory goes.
    """
    parent = open_storage(savepoints_directory)
    name = savepoint_name(snapshot.query_id)
    target = parent.child(name)
    try:
        files = {reference.path: reference for reference in snapshot.files()}
        for reference in files.values():
            target.copy_in(source, reference, reference.path)
        completed = msgspec.structs.replace(
            snapshot,
            checkpoint_id=None,
            kind="savepoint",
            root=".",
            completed_at_ms=time.time_ns() // 1_000_000,
        )
        last = target.write(METADATA_NAME, [encode_metadata(completed)])
    except BaseException:
        parent.delete_directory(name)
        raise
    return Savepoint(
        path=target.url,
        epoch=completed.epoch,
        query_id=completed.query_id,
        triggered_at_ms=completed.triggered_at_ms,
        completed_at_ms=completed.completed_at_ms,
        size_bytes=sum(file.size_bytes for file in files.values()) + last.size_bytes,
        files=len(files) + 1,
    )
