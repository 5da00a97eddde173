"""Finds the queries and savepoints in and below a directory."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import (
    CAPTURES,
    CHECKPOINTS_DIRECTORY,
    DRIVERS,
    HISTORY,
    METADATA_NAME,
    OWNERS,
    PLACES,
    RELEASES,
    REQUESTS,
    SHADOW,
    SHARED,
    STORES,
    TASK_OWNED,
    checkpoint_id_of,
    is_savepoint_name,
)
from pyspark_ckpt.history.places import is_checkpoints_directory
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.place import recorded_checkpoints

LEVELS = 5
MOST_DIRECTORIES = 2000
_OF_CHECKPOINTS = frozenset(
    {CAPTURES, DRIVERS, HISTORY, OWNERS, RELEASES, REQUESTS, SHARED, STORES, TASK_OWNED}
)
_OF_SPARK = frozenset({"offsets", "commits", "sources", "state"})
"""What Spark keeps in the location of a query."""

_OF_TABLES = frozenset({"_spark_metadata", "_temporary", "_delta_log"})


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

    Those that lie above others are found first, if there are too many directories to look at all.

    `root` may also be a query's location, its checkpoints directory, or a savepoint.
    """
    search = _Search()
    search.all_below(root)
    return Places(
        queries=tuple(sorted(search.queries.values(), key=lambda each: each.path.split("/"))),
        savepoints=tuple(sorted(search.savepoints, key=lambda each: each.storage.url.split("/"))),
        is_whole=search.is_whole,
        unreadable=tuple(search.unreadable),
    )


class _Search:
    """A search that looks at a bounded number of directories."""

    def __init__(self) -> None:
        self.queries: dict[str, QueryPlace] = {}
        self.savepoints: list[SavepointPlace] = []
        self.unreadable: list[str] = []
        self.is_whole = True
        self._left = MOST_DIRECTORIES

    def all_below(self, root: Storage) -> None:
        waiting = deque([(below, LEVELS - 1) for below in self._looked_at(root)])
        while waiting:
            (directory, name), levels = waiting.popleft()
            if self._left <= 0:
                self.is_whole = False
                return
            child = self._child(directory, name)
            found = [] if child is None else self._looked_at(child)
            if found and not levels:
                self.is_whole = False
            else:
                waiting.extend((below, levels - 1) for below in found)

    def _looked_at(self, directory: Storage) -> list[tuple[Storage, str]]:
        """Note what a directory is; return which directories in it may have more."""
        entries = self._entries(directory)
        below = sorted(name for name, is_directory in entries.items() if is_directory)
        return [(directory, name) for name in self._may_have_more(directory, entries, below)]

    def _may_have_more(
        self, directory: Storage, entries: dict[str, bool], below: list[str]
    ) -> list[str]:
        elsewhere = self._recorded(directory) if PLACES in below else None
        if elsewhere is not None:
            self._add(elsewhere, directory)
            return _beside_a_query(below)
        if CHECKPOINTS_DIRECTORY in below:
            checkpoints = self._child(directory, CHECKPOINTS_DIRECTORY)
            if checkpoints is not None:
                self._add(checkpoints, directory)
            return _beside_a_query(below)
        if METADATA_NAME in entries or is_savepoint_name(directory.name):
            if checkpoint_id_of(directory.name) is None:
                self.savepoints.append(SavepointPlace(key_of(directory.url), directory))
            return []
        if is_checkpoints_directory(
            directory.name, below, lambda name: self._entries(directory, name)
        ):
            # The directory in a location has its name; elsewhere it has the query's id.
            is_inside = directory.name == CHECKPOINTS_DIRECTORY
            self._add(directory, directory.parent() if is_inside else None)
            others = [name for name in below if checkpoint_id_of(name) is None]
            return [name for name in _beside_a_query(others) if name not in _OF_CHECKPOINTS]
        if {"offsets", "commits"} <= {*below}:  # a location whose checkpoints are elsewhere
            return _beside_a_query(below)
        return [name for name in below if _may_hold_queries(name)]

    def _add(self, checkpoints: Storage, location: Storage | None) -> None:
        """Note a query; its directory may be found before the location that has recorded it."""
        place = QueryPlace(key_of(checkpoints.url), checkpoints, location)
        if location is not None or place.key not in self.queries:
            self.queries[place.key] = place

    def _recorded(self, location: Storage) -> Storage | None:
        try:
            return recorded_checkpoints(location)
        except (OSError, CkptError) as exc:
            self.unreadable.append(f"{location.url}: {exc}")
            return None

    def _entries(self, directory: Storage, name: str | None = None) -> dict[str, bool]:
        self._left -= 1
        try:
            return directory.entries(name)
        except (OSError, CkptError) as exc:
            below = "" if name is None else f"/{name}"
            self.unreadable.append(f"{directory.url}{below}: {exc}")
            return {}

    def _child(self, directory: Storage, name: str) -> Storage | None:
        try:
            return directory.child(name)
        except (OSError, CkptError) as exc:  # a link that leaves the directory
            self.unreadable.append(f"{directory.url}/{name}: {exc}")
            return None


def _beside_a_query(names: list[str]) -> list[str]:
    """Return what in a query's directory may have others; what is Spark's or ours does not."""
    own = _OF_SPARK | {CHECKPOINTS_DIRECTORY}
    return [
        name
        for name in names
        if name not in own and not name.startswith("_") and _may_hold_queries(name)
    ]


def _may_hold_queries(name: str) -> bool:
    return not name.startswith((".", SHADOW)) and name not in _OF_TABLES
