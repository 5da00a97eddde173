"""Disposing of a savepoint: exactly its own files go."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.errors import CheckpointNotFoundError, UnsafePathError
from pyspark_ckpt.on_disk.layout import METADATA_NAME, SHARED, TASK_OWNED
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata, read_metadata
from pyspark_ckpt.on_disk.storage import LocalStorage, Storage, open_storage

_OWN_DIRECTORIES = (SHARED, TASK_OWNED)


@dataclass(frozen=True, slots=True)
class Disposal:
    """What became of a savepoint's directory; `left` are names of others in it."""

    path: str
    files: int
    left: tuple[str, ...]


def dispose_savepoint(path: str) -> Disposal:
    """Delete a savepoint: the files that its ``_metadata`` names, then the empty directories.

    Files of others in its directory stay. ``_metadata`` goes last, so what was interrupted can be
    called again, and no restore takes the rest for a savepoint: it misses the files. Needs no
    Spark.

    Parameters
    ----------
    path
        A ``savepoint-...`` directory.

    Raises
    ------
    CheckpointNotFoundError
        If there is no savepoint: nothing, or a checkpoint, which its query's retention owns.
    CorruptFileError, UnsafePathError
        If its ``_metadata`` cannot be trusted. Nothing was deleted.
    """
    directory = open_storage(path)
    if isinstance(directory, LocalStorage):
        directory = LocalStorage(directory.root.resolve())  # a link stays what it is
    files = _own_files(directory, read_metadata(directory))
    directory.delete(files)
    directory.delete([METADATA_NAME])
    left = [
        f"{name}/{inner}"
        for name in _OWN_DIRECTORIES
        for inner in _remove_if_empty(directory, name)
    ]
    left += [name for name in directory.list() if name not in _OWN_DIRECTORIES]
    if not left:
        _remove_if_empty(directory.parent(), directory.url.rpartition("/")[2])
    return Disposal(directory.url, len(files) + 1, tuple(left))


def _own_files(directory: Storage, metadata: CheckpointMetadata) -> list[str]:
    """Return the paths of a savepoint's files, each checked to be inside of it."""
    if metadata.kind != "savepoint":
        raise CheckpointNotFoundError(
            f"{directory.url} holds a {metadata.kind}, no savepoint: its query's retention "
            "deletes it"
        )
    paths = sorted({reference.path for reference in metadata.files()})
    for path in paths:
        if path.partition("/")[0] not in _OWN_DIRECTORIES or "/" not in path:
            raise UnsafePathError(
                f"{directory.url}: its {METADATA_NAME} names {path!r}, which no savepoint has: "
                "it is damaged or hostile; nothing was deleted"
            )
        directory.url_of(path)  # no link leads out of it
    return paths


def _remove_if_empty(parent: Storage, name: str) -> list[str]:
    """Remove a directory unless something is in it; return what is."""
    content = parent.list(name)
    if not content and parent.exists(name):
        parent.delete_directory(name)
    return content
