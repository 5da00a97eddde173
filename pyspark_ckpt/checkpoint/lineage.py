"""Where a checkpoint or savepoint comes from: what its query was restored from, and so on back."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pyspark_ckpt.checkpoint.family import rows_of_family
from pyspark_ckpt.checkpoint.lineage_rows import as_frame, found_row, unfound_row
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import METADATA_NAME
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.storage.open import open_storage

_MOST = 1000
"""Generations that are followed; what names itself as its parent must not be followed for ever."""


def lineage(path: str) -> pd.DataFrame:
    """Return a checkpoint or savepoint and its ancestors, or the tree of all below a directory.

    Needs no Spark. Of one, the youngest comes first: a parent is found at the path that it had when
    the child's query was restored from it. One that was moved, deleted or damaged since is the last
    row, with what the child knows of it. Of a directory with the locations and savepoints of
    several queries, all their checkpoints and savepoints come in the order of a tree: behind each
    the queries that were restored from it, wherever it lies now.

    Parameters
    ----------
    path
        A ``savepoint-...`` or ``chk-...`` directory, or one that has such ones below it.

    Returns
    -------
    pandas.DataFrame
        kind, path, checkpoint_id, query_id, query_name, epoch, completed_at (UTC), operators (a
        dictionary by uid: processor, code_sha256, schema_sha256, parallelism, max_parallelism,
        backend, restored), found, parent, generation. `restored` tells whether the operator's state
        came from the parent; `parent` is the path that the query was restored from, and
        `generation` counts the restores since the oldest that is known.

    Raises
    ------
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If there is none at `path`, or it cannot be trusted.
    """
    root = open_storage(path)
    if not root.exists(METADATA_NAME) and (family := rows_of_family(root)):
        return as_frame(family)
    metadata = read_metadata(root)
    return _chain([found_row(metadata, root.url), *_ancestors(metadata.parent, root.url)])


def ancestors_of(origin: Origin | None) -> pd.DataFrame:
    """Return what a query was restored from, and so on back; as :func:`lineage`."""
    return _chain(_ancestors(origin, ""))


def _chain(rows: list[dict[str, Any]]) -> pd.DataFrame:
    for generation, row in enumerate(reversed(rows)):
        row["generation"] = generation
    return as_frame(rows)


def _ancestors(origin: Origin | None, place: str) -> list[dict[str, Any]]:
    """Describe an origin and its ancestors; `place` is that of its child."""
    rows: list[dict[str, Any]] = []
    seen = {place}
    while origin is not None and len(rows) < _MOST:
        metadata = None if origin.path in seen else _found(origin)
        if metadata is None:
            return [*rows, unfound_row(origin)]
        rows.append(found_row(metadata, origin.path))
        seen.add(origin.path)
        origin = metadata.parent
    return rows


def _found(origin: Origin) -> CheckpointMetadata | None:
    """Return the metadata at an ancestor's path, if it is still that ancestor's."""
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
