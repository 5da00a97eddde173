"""Verifying a checkpoint or savepoint: every file is read, no file is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import METADATA_NAME
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.reader_pins import name_subsumed

Check = Callable[[FileReference], None]

_MOST_NAMED = 10
"""How many damaged files the error names."""


@dataclass(frozen=True, slots=True)
class Verification:
    """A checkpoint or savepoint whose files are all as they were written.

    Parameters
    ----------
    path : str
        Its directory.
    kind : str
        ``checkpoint`` or ``savepoint``.
    epoch : int
        The epoch whose end it stores.
    files : int
        Number of files that were checked, ``_metadata`` included.
    size_bytes : int
        Bytes of the files that were checked, ``_metadata`` included.

    Examples
    --------
    >>> ckpt.location(savepoint.path).verify().files == savepoint.files
    True
    """

    path: str
    kind: str
    epoch: int
    files: int
    size_bytes: int


def verify(path: str) -> Verification:
    """Check every file of a checkpoint or savepoint by size and SHA-256."""
    directory = open_storage(path)
    metadata = read_metadata(directory)
    storage = directory if metadata.is_savepoint else directory.parent()
    files = {reference.path: reference for reference in metadata.files()}
    with name_subsumed(directory):
        # Sizes are cheap to check, and limit how much is read for the digests.
        damaged = _damages(storage.verify_size, files.values())
        damaged = damaged or _damages(lambda file: _read_through(storage, file), files.values())
        if damaged:
            raise CorruptFileError(
                f"{directory.url}: {len(damaged)} of {len(files)} files are damaged: "
                + "; ".join(damaged[:_MOST_NAMED])
            )
    return Verification(
        path=directory.url,
        kind=metadata.kind.value,
        epoch=metadata.epoch,
        files=len(files) + 1,
        size_bytes=size_on_disk_bytes(directory, metadata),
    )


def size_on_disk_bytes(directory: Storage, metadata: CheckpointMetadata) -> int:
    """Return the bytes in all files of a checkpoint or savepoint, its ``_metadata`` included."""
    files = {reference.path: reference.size_bytes for reference in metadata.files()}
    return sum(files.values()) + (directory.size_bytes(METADATA_NAME) or 0)


def _damages(check: Check, files: Iterable[FileReference]) -> list[str]:
    return [damage for file in files if (damage := _damage(check, file)) is not None]


def _damage(check: Check, file: FileReference) -> str | None:
    try:
        check(file)
    except CorruptFileError as exc:
        return str(exc)
    return None


def _read_through(storage: Storage, file: FileReference) -> None:
    with storage.open_verified(file):
        pass
