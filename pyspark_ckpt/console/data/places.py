"""Finds the queries and savepoints in and below a directory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    HISTORY,
    METADATA_NAME,
    SHARED,
    TASK_OWNED,
    checkpoint_id_of,
    is_savepoint_name,
)
from pyspark_ckpt.storage.open import Storage

LEVELS = 5
MOST_DIRECTORIES = 2000
_DIRECTORIES_OF_ONE = frozenset({SHARED, TASK_OWNED, HISTORY})
_FILES = (
    ".parquet", ".crc", ".json", ".csv", ".txt", ".log", ".avro", ".orc", ".py", ".gz", ".zip",
    ".html", ".md",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryPlace:
    """A query's checkpoints directory, and its location if that is known.

    `key` stands for it in addresses of pages. It is a digest of its path, so an address cannot name
    another path.
    """

    key: str
    checkpoints: Storage
    location: Storage | None

    @property
    def path(self) -> str:
        """What users call it: its location, or its checkpoints directory."""
        return self.checkpoints.url if self.location is None else self.location.url


@dataclass(frozen=True, slots=True)
class SavepointPlace:
    """A savepoint's directory; `key` as for :class:`QueryPlace`."""

    key: str
    storage: Storage


@dataclass(frozen=True, slots=True)
class Places:
    """What is in and below a directory.

    `is_whole` is false if the search ended before all directories were looked at. `unreadable` has
    the errors of directories that could not be listed.
    """

    queries: tuple[QueryPlace, ...]
    savepoints: tuple[SavepointPlace, ...]
    is_whole: bool
    unreadable: tuple[str, ...]

    def query(self, key: str) -> QueryPlace | None:
        """Return the query of a key, ``None`` if there is no such query."""
        return next((each for each in self.queries if each.key == key), None)

    def savepoint(self, key: str) -> SavepointPlace | None:
        """Return the savepoint of a key, ``None`` if there is no such savepoint."""
        return next((each for each in self.savepoints if each.key == key), None)


def key_of(url: str) -> str:
    """Return what stands for a path in addresses of pages."""
    return hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:16]


def find_places(root: Storage) -> Places:
    """Return the queries and savepoints in and below a directory, in the order of their paths.

    Parameters
    ----------
    root
        The directory. It may be a query's location, its checkpoints directory, a savepoint, or a
        directory with any of them below it.
    """
    search = _Search()
    found = list(search.below(root, LEVELS))
    return Places(
        queries=tuple(each for each in found if isinstance(each, QueryPlace)),
        savepoints=tuple(each for each in found if isinstance(each, SavepointPlace)),
        is_whole=search.left > 0,
        unreadable=tuple(search.unreadable),
    )


class _Search:
    """A search that looks at a bounded number of directories."""

    def __init__(self) -> None:
        self.left = MOST_DIRECTORIES
        self.unreadable: list[str] = []

    def below(self, directory: Storage, levels: int) -> Iterator[QueryPlace | SavepointPlace]:
        names = self._names(directory)
        if CHECKPOINTS_DIRECTORY in names:
            checkpoints = directory.child(CHECKPOINTS_DIRECTORY)
            yield QueryPlace(key_of(checkpoints.url), checkpoints, directory)
        elif METADATA_NAME in names or is_savepoint_name(directory.name):
            if checkpoint_id_of(directory.name) is None:
                yield SavepointPlace(key_of(directory.url), directory)
        elif _is_of_one_query(names):
            # The directory in a location has its name; elsewhere it has the query's id.
            location = directory.parent() if directory.name == CHECKPOINTS_DIRECTORY else None
            yield QueryPlace(key_of(directory.url), directory, location)
        elif levels:
            for name in filter(_may_be_a_directory, names):
                try:
                    below = directory.child(name)
                except (OSError, CkptError) as exc:  # a link that leaves the directory
                    self.unreadable.append(f"{directory.url}/{name}: {exc}")
                    continue
                yield from self.below(below, levels - 1)

    def _names(self, directory: Storage) -> list[str]:
        if self.left <= 0:
            return []
        self.left -= 1
        try:
            return sorted(directory.list())
        except (OSError, CkptError) as exc:
            self.unreadable.append(f"{directory.url}: {exc}")
            return []


def _is_of_one_query(names: list[str]) -> bool:
    return any(name in _DIRECTORIES_OF_ONE or checkpoint_id_of(name) is not None for name in names)


def _may_be_a_directory(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith(_FILES)
