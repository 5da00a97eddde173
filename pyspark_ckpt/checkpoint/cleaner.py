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

from pyspark_ckpt.formats.layout import (
    SHARED,
    TASK_OWNED,
    StateFile,
    initial_time_ms,
    is_native_state,
    is_source_log,
    state_file,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.base import CoordinatorStorage


def garbage(
    storage: CoordinatorStorage,
    needed: Iterable[str],
    epoch: int,
    pending: Collection[str] = (),
    kept_since: Mapping[tuple[str, int], int] | None = None,
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
        The epoch from which on the files of a subtask stay, if that is not after `epoch`; by the
        mark of its operator and its number.
    """
    kept = set(needed)
    since = kept_since or {}
    return [
        f"{directory}/{name}"
        for directory in (SHARED, TASK_OWNED)
        for name in storage.list(directory)
        if f"{directory}/{name}" not in kept and _may_go(name, epoch, pending, since)
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


def _may_go(
    name: str, epoch: int, pending: Collection[str], kept_since: Mapping[tuple[str, int], int]
) -> bool:
    file = state_file(name)
    if file is None:
        # They are written by the coordinator, which does not clean at the same time. What epoch 0
        # starts from is not needed once there is a checkpoint.
        return is_source_log(name) or is_native_state(name) or initial_time_ms(name) is not None
    since = _kept_since(file, kept_since)
    return (
        file.snapshot_id not in pending
        and file.epoch <= epoch
        and (since is None or file.epoch < since)
    )


def _kept_since(file: StateFile, kept_since: Mapping[tuple[str, int], int]) -> int | None:
    """Return the epoch from which on the files of the subtask stay that wrote a file."""
    if file.operator is not None:
        return kept_since.get((file.operator, file.subtask))
    # Any operator may have written it: the one that wants the most decides.
    epochs = (since for (_, subtask), since in kept_since.items() if subtask == file.subtask)
    return min(epochs, default=None)
