"""A ``chk-N`` that retention removed while somebody read it is not corrupt: it was subsumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, CorruptFileError
from pyspark_ckpt.formats.layout import METADATA_NAME, checkpoint_id_of, checkpoint_name
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.open import find_store


@contextmanager
def told_apart(directory: Storage) -> Iterator[None]:
    """Raise for a ``chk-N`` that is gone by now that it was subsumed, not that it is corrupt.

    Retention removes ``_metadata`` before the files that only this checkpoint needs, so a file
    that is missing while ``_metadata`` stands was not removed by it.

    Parameters
    ----------
    directory
        The checkpoint's or savepoint's, read before in vain or not.

    Raises
    ------
    CheckpointNotFoundError
        In the place of an error of a file, if the checkpoint is not there any more.
    """
    try:
        yield
    except (CorruptFileError, FileNotFoundError) as exc:
        number = checkpoint_id_of(directory.name)
        if number is None or directory.exists(METADATA_NAME):
            raise
        raise CheckpointNotFoundError(
            f"{directory.url} was subsumed by newer checkpoints while it was read: its query runs "
            f"and retains its newest ones only. {_advice(directory)}"
        ) from exc


def _advice(directory: Storage) -> str:
    checkpoints = directory.parent()
    try:
        with closing(find_store(checkpoints)) as store:
            newest = max(store.ids(), default=None)
    except (CkptError, OSError):
        newest = None
    named = "" if newest is None else f"Take {checkpoints.url_of(checkpoint_name(newest))}, or "
    return (
        f"{named or 'Take '}a savepoint, which stays; or raise "
        "spark.ckpt.execution.checkpointing.num-retained"
    )
