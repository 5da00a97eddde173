"""The cleaner: deletes the files that nobody needs any more.

Needed is what a retained checkpoint refers to, what the handles of the newest one refer to, what
belongs to a base snapshot that these handles name as pending, and whatever a later epoch may be
writing: every task's file carries its epoch in its name. The rest of the files that this library
wrote is garbage, leftovers of failed attempts included. Files of unknown names are not touched.

It is safe while epochs go on: a later handle refers to nothing but what the handle before it refers
to, the files of the snapshot that was pending in it, and files of its own epoch. The handle before
it may be another than the one that was read: Spark runs some epochs of a subtask twice, and the
attempt that does not count leaves its handle in its executor's memory. So what the last two
versions before a handle need stays too, and all that was written since the epoch of the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyspark_ckpt.on_disk.layout import (
    SHARED,
    TASK_OWNED,
    epoch_of,
    is_native_state,
    is_source_log,
    snapshot_id_of,
    subtask_of,
)
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata
from pyspark_ckpt.on_disk.storage_views import CoordinatorStorage


def garbage(
    storage: CoordinatorStorage,
    needed: Iterable[str],
    epoch: int,
    pending: Collection[str] = (),
    kept_since: Mapping[int, int] | None = None,
) -> list[str]:
    """Return the paths of all files that may go.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    needed
        Paths that retained checkpoints and the handles of `epoch` refer to.
    epoch
        The newest epoch whose handles are in `needed`; files of later epochs stay.
    pending
        Ids of the base snapshots that are pending in those handles; their files stay.
    kept_since
        By subtask the epoch from which on its files stay, if that is not after `epoch`.
    """
    kept = set(needed)
    since = kept_since or {}
    return [
        f"{directory}/{name}"
        for directory in (SHARED, TASK_OWNED)
        for name in storage.list(directory)
        if f"{directory}/{name}" not in kept
        and snapshot_id_of(name) not in pending
        and _is_old(name, epoch, since)
    ]


def garbage_of(
    storage: CoordinatorStorage, metadata: CheckpointMetadata, needed: Iterable[str]
) -> list[str]:
    """Return the paths of all files that may go after a checkpoint.

    Parameters
    ----------
    storage
        The query's checkpoints directory.
    metadata
        The newest checkpoint; what its handles need is in `needed`.
    needed
        Paths that must stay.
    """
    return garbage(
        storage,
        {*needed, *metadata.kept_files()},
        metadata.epoch,
        metadata.pending_snapshots(),
        metadata.kept_since(),
    )


def _is_old(name: str, epoch: int, kept_since: Mapping[int, int]) -> bool:
    written, subtask = epoch_of(name), subtask_of(name)
    if written is None or subtask is None:
        # They are written by the coordinator, which does not clean at the same time.
        return is_source_log(name) or is_native_state(name)
    return written <= epoch and written < kept_since.get(subtask, written + 1)
