"""How large a checkpoint and each of its subtasks are, and how much of that is new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.file_reference import FileReference


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes and files of a part of a checkpoint; `new_bytes` are not in the one before it."""

    size_bytes: int
    new_bytes: int
    files: int


def sizes_of(metadata: CheckpointMetadata, before: CheckpointMetadata | None) -> StateSizes:
    """Return the sizes of a whole checkpoint but for its ``_metadata``."""
    parts = _parts(metadata.files(), metadata.handles())
    return _sizes(parts, {} if before is None else _parts(before.files(), before.handles()))


def sizes_of_subtask(handle: Handle, before: Handle | None) -> StateSizes:
    """Return the sizes of one subtask's state."""
    parts = _parts(handle.files(), [handle])
    return _sizes(parts, {} if before is None else _parts(before.files(), [before]))


def _parts(files: Iterable[FileReference], handles: Iterable[Handle]) -> dict[str, int]:
    """Return the size of each file, by its path, and of each inline segment, by its version."""
    sizes = {reference.path: reference.size_bytes for reference in files}
    for handle in handles:
        for segment in handle.segments:
            if segment.inline is not None:
                sizes[f"{handle.uid}/{handle.subtask}/{segment.version}"] = segment.size_bytes
    return sizes


def _sizes(parts: Mapping[str, int], before: Mapping[str, int]) -> StateSizes:
    return StateSizes(
        size_bytes=sum(parts.values()),
        new_bytes=sum(size for name, size in parts.items() if name not in before),
        files=len(parts),
    )
