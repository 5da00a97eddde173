"""Base snapshots: full copies of a subtask's state, made at a barrier and read by a rebuild."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.on_disk.canonical_file import decode_canonical
from pyspark_ckpt.on_disk.change_file import decode_changes, encode_changes
from pyspark_ckpt.on_disk.handle import (
    CANONICAL_FORMAT,
    CHANGES_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
)
from pyspark_ckpt.on_disk.layout import base_path
from pyspark_ckpt.on_disk.storage_views import WorkerStorage
from pyspark_ckpt.operator.epoch_writes import in_frames
from state_backends import Changes, StateBackend

_CHANGES_NAME = "state.chg"


def make_base(
    storage: WorkerStorage, backend: StateBackend, handle: Handle, epoch: int
) -> BaseSnapshot:
    """Write all state of a backend, which is at the handle's version, as a new base snapshot.

    The file is durable on return and works for every backend.
    """
    entries = 0

    def frames() -> Iterator[Changes]:
        nonlocal entries
        for part in in_frames(iter(backend.scan())):
            entries += len(part)
            yield part

    file = storage.write(base_path(handle.subtask, epoch), encode_changes(frames()))
    files = (BaseFile(_CHANGES_NAME, file),)
    return BaseSnapshot(version=handle.version, epoch=epoch, entries=entries, files=files)


def read_base(storage: WorkerStorage, base: BaseSnapshot) -> Iterator[Changes]:
    """Yield all state of a base snapshot, whichever backend it is for.

    Raises
    ------
    CorruptFileError
        If a file is missing or changed, or the format is not known.
    """
    if base.format == CANONICAL_FORMAT:
        for each in base.files:
            with storage.open_verified(each.file) as file:
                yield from decode_canonical(file, each.file.path, base.entries)
        return
    if base.format != CHANGES_FORMAT:
        raise CorruptFileError(
            f"base snapshot {base.version} below {storage.url} has the format {base.format!r}, "
            "which this library does not know: upgrade pyspark_ckpt"
        )
    for each in base.files:
        with storage.open_verified(each.file) as file:
            yield from decode_changes(file, each.file.path)
