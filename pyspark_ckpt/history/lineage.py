"""The lineage of a checkpoint or savepoint, and the tree of all of them below a directory.

A stored epoch does not know which queries were restored from it, but a restored query knows its
origin. Therefore all epochs are read first; then each query is put after its origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import HISTORY, METADATA_NAME, REQUESTS, SHARED, TASK_OWNED
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata, Origin
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.frames import utc_time
from pyspark_ckpt.history.places import OF_ONE_FILE, directory_below
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.place import recorded_checkpoints

logger = library_logger(__name__)

COLUMNS = (
    "kind", "path", "checkpoint_id", "query_id", "query_name", "epoch", "completed_at", "operators",
    "found", "parent", "generation",
)  # fmt: skip


def as_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"checkpoint_id": "Int64", "epoch": "Int64", "generation": "Int64"})


def found_row(metadata: CheckpointMetadata, path: str) -> dict[str, Any]:
    """Return the row of a checkpoint or savepoint that exists."""
    restored = () if metadata.parent is None else metadata.parent.operators
    return {
        "kind": metadata.kind.value,
        "path": path,
        "checkpoint_id": metadata.checkpoint_id,
        "query_id": metadata.query_id,
        "query_name": metadata.query_name,
        "epoch": metadata.epoch,
        "completed_at": utc_time(metadata.completed_at_ms),
        "operators": {
            operator.uid: {**description_of(operator), "restored": operator.uid in restored}
            for operator in metadata.operators
        },
        "found": True,
        "parent": None if metadata.parent is None else metadata.parent.path,
        "generation": 0,
    }


def description_of(operator: OperatorMetadata) -> dict[str, Any]:
    """Return the fields of an operator that users see."""
    return {
        "processor": operator.processor,
        "code_sha256": operator.code_sha256,
        "schema_sha256": operator.schema_sha256,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "backend": operator.backend,
    }


def unfound_row(origin: Origin) -> dict[str, Any]:
    """Return the row of a missing checkpoint or savepoint, from the record of its child."""
    return {
        "kind": origin.kind.value,
        "path": origin.path,
        "checkpoint_id": origin.checkpoint_id,
        "query_id": origin.query_id,
        "query_name": None,
        "epoch": origin.epoch,
        "completed_at": pd.NaT,
        "operators": {uid: {} for uid in origin.operators},
        "found": False,
        "parent": None,
        "generation": 0,
    }


_LEVELS = 5
"""As in ``directory / a fork / its checkpointLocation / pyspark_ckpt / chk-N``."""

_WITHOUT_EPOCHS = frozenset(
    {SHARED, TASK_OWNED, HISTORY, REQUESTS, "state", "offsets", "commits", "sources"}
)

_Identity = tuple[str, CheckpointKind, int, int | None]


@dataclass(frozen=True, slots=True)
class _StoredEpoch:
    metadata: CheckpointMetadata
    url: str

    @property
    def identity(self) -> _Identity:
        metadata = self.metadata
        return metadata.query_id, metadata.kind, metadata.epoch, metadata.checkpoint_id


def rows_of_tree(root: Storage) -> list[dict[str, Any]]:
    """Return a row for each checkpoint and savepoint below a directory, in the order of the tree.

    Each row is followed by the queries that were restored from it, oldest epochs first. If the
    origin of a query is not below the directory, a row with the query's record of its origin comes
    before the query. Damaged checkpoints and savepoints are left out. So is what may not be read,
    with a warning in the log.
    """
    by_query: dict[str, list[_StoredEpoch]] = {}
    for epoch in _below(root, _LEVELS):
        by_query.setdefault(epoch.metadata.query_id, []).append(epoch)
    there: dict[_Identity, list[str]] = {}
    for epoch in (each for of_one in by_query.values() for each in of_one):
        there.setdefault(epoch.identity, []).append(epoch.url)
    restored: dict[str | None, list[str]] = {}
    for query_id, stored in by_query.items():
        stored.sort(key=lambda each: (each.metadata.epoch, each.metadata.completed_at_ms))
        origin = stored[0].metadata.parent
        urls = [] if origin is None else there.get(_identity_of(origin), [])
        restored.setdefault(_url_of(origin, urls), []).append(query_id)
    return list(_tree(by_query, restored))


def _url_of(origin: Origin | None, urls: list[str]) -> str | None:
    """Return which of the epochs with an origin's identity it is, ``None`` if there is none.

    Savepoints of one epoch differ by their paths only, and any of them may have been moved.
    """
    if origin is None or not urls:
        return None
    return origin.path if origin.path in urls else urls[0]


def _tree(
    by_query: dict[str, list[_StoredEpoch]], restored: dict[str | None, list[str]]
) -> Iterator[dict[str, Any]]:
    """Yield rows depth first; a query that names itself as its origin is never reached."""
    waiting = [(query_id, 0) for query_id in reversed(restored.get(None, []))]
    unfound: set[str] = set()
    stack: list[tuple[_StoredEpoch, int]] = []
    while waiting or stack:
        if not stack:
            query_id, generation = waiting.pop()
            origin = by_query[query_id][0].metadata.parent
            if origin is not None:
                if origin.path not in unfound:
                    unfound.add(origin.path)
                    yield unfound_row(origin)
                generation += 1
            stack = [(each, generation) for each in reversed(by_query[query_id])]
        epoch, generation = stack.pop()
        yield {**found_row(epoch.metadata, epoch.url), "generation": generation}
        for query_id in reversed(restored.get(epoch.url, [])):
            stack += [(each, generation + 1) for each in reversed(by_query[query_id])]


def _below(directory: Storage, levels: int) -> Iterator[_StoredEpoch]:
    if directory.exists(METADATA_NAME):
        try:
            yield _StoredEpoch(read_metadata(directory), directory.url)
        except CkptError:
            return
    elif levels:
        for name in sorted(directory.list()):
            if name in _WITHOUT_EPOCHS or name.startswith((".", "_")):
                continue
            below = directory_below(directory, name)
            if below is None:
                continue
            try:
                yield from _below(below, levels - 1)
            except OF_ONE_FILE as exc:
                logger.warning("%s is left out of a search: %s", below.url, exc)


def _identity_of(origin: Origin) -> _Identity:
    return origin.query_id, origin.kind, origin.epoch, origin.checkpoint_id


_MOST_ROWS = 1000
"""How many generations are followed at most, because a path may name itself as its parent."""


def lineage(path: str) -> pd.DataFrame:
    """Return a checkpoint or savepoint and its ancestors, or the tree of all below a directory."""
    root = open_storage(path)
    if not root.exists(METADATA_NAME):
        tree = rows_of_tree(root)
        if not tree and (elsewhere := recorded_checkpoints(root)) is not None:
            tree = rows_of_tree(elsewhere)
        if tree:
            return as_frame(tree)
    metadata = read_metadata(root)
    return _chain([found_row(metadata, root.url), *_ancestors(metadata.parent, root.url)])


def ancestors_of(origin: Origin | None) -> pd.DataFrame:
    """Return the lineage of an origin, as :meth:`Location.lineage`."""
    return _chain(_ancestors(origin, ""))


def _chain(rows: list[dict[str, Any]]) -> pd.DataFrame:
    for generation, row in enumerate(reversed(rows)):
        row["generation"] = generation
    return as_frame(rows)


def _ancestors(origin: Origin | None, place: str) -> list[dict[str, Any]]:
    """Return the rows of an origin and its ancestors.

    `place` is the path of its child, which may be a stranger's. It names its origin, so nothing is
    opened on another server. Without a place, the origin is that of a query of this process.
    """
    rows: list[dict[str, Any]] = []
    seen = {place}
    while origin is not None and len(rows) < _MOST_ROWS:
        is_near = not place or _server(origin.path) == _server(place)
        metadata = _found(origin) if is_near and origin.path not in seen else None
        if metadata is None:
            return [*rows, unfound_row(origin)]
        rows.append(found_row(metadata, origin.path))
        seen.add(origin.path)
        origin = metadata.parent
    return rows


def _server(url: str) -> tuple[str, str]:
    """Return what a path lies on: the scheme of its storage, and the name after it."""
    scheme, separator, rest = url.partition("://")
    return (scheme, rest.partition("/")[0]) if separator and scheme != "file" else ("", "")


def _found(origin: Origin) -> CheckpointMetadata | None:
    """Return the metadata at an ancestor's path, ``None`` if it is not that ancestor's."""
    try:
        metadata = read_metadata(open_storage(origin.path))
    except (CkptError, OSError, ValueError):
        return None
    same = (metadata.query_id, metadata.epoch, metadata.kind) == (
        origin.query_id,
        origin.epoch,
        origin.kind,
    )
    return metadata if same else None
