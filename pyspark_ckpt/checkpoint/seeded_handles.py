"""The handles that a seeded query starts with: they name copies of what they were made of."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.formats.handle import BaseFile, Handle
from pyspark_ckpt.formats.layout import base_path, segment_path
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import Storage


def adopt(
    handle: Handle,
    operator: OperatorDescriptor,
    query_id: str,
    epoch: int,
    source: Storage,
    target: Storage,
) -> Handle:
    """Copy a handle's files under names of another query and return the handle that names them.

    Parameters
    ----------
    handle
        What is restored.
    operator
        The operator of the other query.
    query_id, epoch
        Its id, and the epoch that it goes on from.
    source, target
        What the files lie in, and the other query's checkpoints directory.
    """

    def copy(reference: FileReference, path: str) -> FileReference:
        return target.copy_in(source, reference, path)

    base = handle.base
    if base is not None:
        files = tuple(
            BaseFile(each.name, copy(each.file, base_path(operator.uid, handle.subtask, epoch)))
            for each in base.files
        )
        base = msgspec.structs.replace(base, files=files)
    segments = tuple(
        segment
        if segment.file is None
        else msgspec.structs.replace(
            segment, file=copy(segment.file, segment_path(operator.uid, handle.subtask, epoch))
        )
        for segment in handle.segments
    )
    return msgspec.structs.replace(
        handle,
        query_id=query_id,
        epoch=epoch,
        base=base,
        segments=segments,
        pending=None,
        predecessors=msgspec.UNSET,
        time_mode=operator.time_mode,
        timeout_ms=handle.timeout_ms,  # in the same time: the plan refuses another one
    )
