"""The cleaner: deletes the files that nobody needs any more.

Needed is what a retained checkpoint refers to, what the handles of the newest one refer to, what
belongs to a base snapshot that these handles name as pending, and whatever a later epoch may be
writing: every task's file carries its epoch in its name. The rest of the files that this library
wrote is garbage, leftovers of failed attempts included. Files of unknown names are not touched.

It is safe while epochs go on: a later handle refers to nothing but what the handle before it refers
to, the files of the snapshot that was pending in it, and files of its own epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark_ckpt.on_disk.layout import (
    SHARED,
    TASK_OWNED,
    epoch_of,
    is_source_log,
    snapshot_id_of,
)
from pyspark_ckpt.on_disk.storage_views import CoordinatorStorage


def garbage(
    storage: CoordinatorStorage, needed: Iterable[str], epoch: int, pending: Collection[str] = ()
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
    """
    kept = set(needed)
    return [
        f"{directory}/{name}"
        for directory in (SHARED, TASK_OWNED)
        for name in storage.list(directory)
        if f"{directory}/{name}" not in kept
        and snapshot_id_of(name) not in pending
        and _is_old(name, epoch)
    ]


def _is_old(name: str, epoch: int) -> bool:
    written = epoch_of(name)
    # Source logs are written by the coordinator, which does not clean at the same time.
    return is_source_log(name) if written is None else written <= epoch
