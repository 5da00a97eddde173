"""The tree of checkpoints, savepoints and forks below a directory.

A snapshot does not know what was restored from it; a restored query does. So all are gathered, and
each query is put behind the snapshot that it was restored from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.checkpoint.lineage_rows import found_row, unfound_row
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import HISTORY, METADATA_NAME, REQUESTS, SHARED, TASK_OWNED
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import Storage

_LEVELS = 5
"""As in ``directory / a fork / its checkpointLocation / pyspark_ckpt / chk-N``."""

_WITHOUT_SNAPSHOTS = frozenset(
    {SHARED, TASK_OWNED, HISTORY, REQUESTS, "state", "offsets", "commits", "sources"}
)

_Identity = tuple[str, str, int, int | None]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    metadata: CheckpointMetadata
    url: str

    @property
    def identity(self) -> _Identity:
        metadata = self.metadata
        return metadata.query_id, metadata.kind, metadata.epoch, metadata.checkpoint_id


def rows_of_family(root: Storage) -> list[dict[str, Any]]:
    """Describe all checkpoints and savepoints below a directory in the order of the tree.

    Behind each come the queries that were restored from it, oldest epochs first; those whose
    origin is not below the directory come behind a row that tells what they know of it. Damaged
    ones are left out.
    """
    by_query: dict[str, list[_Snapshot]] = {}
    for snapshot in _below(root, _LEVELS):
        by_query.setdefault(snapshot.metadata.query_id, []).append(snapshot)
    there = {snapshot.identity for of_one in by_query.values() for snapshot in of_one}
    restored: dict[_Identity | None, list[str]] = {}
    for query_id, snapshots in by_query.items():
        snapshots.sort(key=lambda each: (each.metadata.epoch, each.metadata.completed_at_ms))
        origin = snapshots[0].metadata.parent
        place = None if origin is None else _identity_of(origin)
        restored.setdefault(place if place in there else None, []).append(query_id)
    return list(_tree(by_query, restored))


def _tree(
    by_query: dict[str, list[_Snapshot]], restored: dict[_Identity | None, list[str]]
) -> Iterator[dict[str, Any]]:
    """Yield rows depth first; what names itself as its origin is never come to."""
    waiting = [(query_id, 0) for query_id in reversed(restored.get(None, []))]
    unfound: set[_Identity] = set()
    stack: list[tuple[_Snapshot, int]] = []
    while waiting or stack:
        if not stack:
            query_id, generation = waiting.pop()
            origin = by_query[query_id][0].metadata.parent
            if origin is not None:
                if _identity_of(origin) not in unfound:
                    unfound.add(_identity_of(origin))
                    yield unfound_row(origin)
                generation += 1
            stack = [(each, generation) for each in reversed(by_query[query_id])]
        snapshot, generation = stack.pop()
        yield {**found_row(snapshot.metadata, snapshot.url), "generation": generation}
        for query_id in reversed(restored.get(snapshot.identity, [])):
            stack += [(each, generation + 1) for each in reversed(by_query[query_id])]


def _below(directory: Storage, levels: int) -> Iterator[_Snapshot]:
    if directory.exists(METADATA_NAME):
        try:
            yield _Snapshot(read_metadata(directory), directory.url)
        except CkptError:
            return
    elif levels:
        for name in sorted(directory.list()):
            if name not in _WITHOUT_SNAPSHOTS and not name.startswith((".", "_")):
                yield from _below(directory.child(name), levels - 1)


def _identity_of(origin: Origin) -> _Identity:
    return origin.query_id, origin.kind, origin.epoch, origin.checkpoint_id
