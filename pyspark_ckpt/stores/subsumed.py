"""A checkpoint that retention removes while it is read is subsumed, not corrupt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, CorruptFileError
from pyspark_ckpt.formats.layout import METADATA_NAME, checkpoint_id_of, checkpoint_name
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.open import find_store


@contextmanager
def name_subsumed(directory: Storage) -> Iterator[None]:
    """Replace the error of a missing file if retention has removed the ``chk-N`` meanwhile.

    Retention removes ``_metadata`` before the files that only this checkpoint needs. Therefore a
    file that is missing while ``_metadata`` exists was not removed by retention.
    """
    try:
        yield
    except (CorruptFileError, FileNotFoundError) as exc:
        number = checkpoint_id_of(directory.name)
        if number is None or directory.exists(METADATA_NAME):
            raise
        raise CheckpointNotFoundError(
            f"{directory.url} was subsumed by newer checkpoints while it was read: its query runs, "
            f"and retains only its newest checkpoints. {_advice(directory)}"
        ) from exc


def _advice(directory: Storage) -> str:
    checkpoints = directory.parent()
    try:
        with closing(find_store(checkpoints)) as store:
            newest = max(store.ids(), default=None)
    except (CkptError, OSError):
        newest = None
    named = "" if newest is None else f"Use {checkpoints.url_of(checkpoint_name(newest))}, or "
    return (
        f"{named or 'Use '}a savepoint, which retention does not remove; or raise "
        "spark.ckpt.execution.checkpointing.num-retained"
    )
