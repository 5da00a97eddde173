"""Refuses a location that is older than its checkpoints, as after a backup was restored."""

from __future__ import annotations

from contextlib import closing

from pyspark_ckpt.errors import CkptError, RestoreError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY, checkpoint_name
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import find_store

RUN_AGAIN = 2
"""So many epochs that a power loss took from Spark's logs run again, if checkpoints are inside."""


def check_not_behind(
    location: Storage, committed: int | None, checkpoints: Storage, run_again: int = 0
) -> None:
    """Check that no checkpoint is of an epoch that the location has not committed.

    The next checkpoints would replace such a checkpoint, and delete its files.

    `committed` is ``None`` before the first epoch is committed. `run_again` is the number of epochs
    that the location may lack.
    """
    newest = _newest(checkpoints)
    if newest is None or newest[1] <= (-1 if committed is None else committed) + run_again:
        return
    name, epoch = newest
    has = "no epoch" if committed is None else f"epochs up to {committed}"
    to_do = (
        f"Call {rollback_call(location, checkpoints, name)} to continue from that checkpoint, or "
        "start at a fresh checkpointLocation with "
        f"restoreFrom({checkpoints.url_of(name)!r})"
    )
    raise RestoreError(
        f"{location.url} is behind its checkpoints: {checkpoints.url_of(name)} is of epoch "
        f"{epoch}, but the location has committed {has}. Files of it may be lost, or it may have "
        f"been restored from a backup. {to_do}"
    )


def rollback_call(location: Storage, checkpoints: Storage, name: str) -> str:
    """Return the call that rolls a location back to a checkpoint, as a user writes it."""
    elsewhere = ""
    if checkpoints.url != location.url_of(CHECKPOINTS_DIRECTORY):
        elsewhere = f", checkpointsDirectory={checkpoints.parent().url!r}"
    return f"pyspark_ckpt.rollback({location.url!r}, {name!r}{elsewhere})"


def _newest(checkpoints: Storage) -> tuple[str, int] | None:
    """Return name and epoch of the newest checkpoint that can be read."""
    with closing(find_store(checkpoints)) as store:
        for number in sorted(store.ids(), reverse=True):
            epoch = _epoch(store, number)
            if epoch is not None:
                return checkpoint_name(number), epoch
    return None


def _epoch(store: CompletedCheckpointStore, number: int) -> int | None:
    try:
        return store.read(number).epoch
    except CkptError:
        return None
