"""Where a checkpoint or savepoint comes from: what its query was restored from, and so on back."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata, Origin, read_metadata
from pyspark_ckpt.on_disk.storage import open_storage

COLUMNS = (
    "kind", "path", "checkpoint_id", "query_id", "query_name", "epoch", "completed_at", "operators",
    "found",
)  # fmt: skip
_MOST = 1000
"""Generations that are followed; what names itself as its parent must not be followed for ever."""


def lineage(path: str) -> pd.DataFrame:
    """Return a checkpoint or savepoint and its ancestors, the youngest first; needs no Spark.

    A parent is found at the path that it had when the child's query was restored from it. One that
    was moved, deleted or damaged since is the last row, with what the child knows of it.

    Parameters
    ----------
    path
        A ``savepoint-...`` or ``chk-...`` directory.

    Returns
    -------
    pandas.DataFrame
        kind, path, checkpoint_id, query_id, query_name, epoch, completed_at (UTC), operators (a
        dictionary by uid: processor, code_sha256, schema_sha256, parallelism, max_parallelism,
        backend, restored), found. `restored` tells
        whether the operator's state came from the parent.

    Raises
    ------
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If there is none at `path`, or it cannot be trusted.
    """
    root = open_storage(path)
    metadata = read_metadata(root)
    return _frame([_row(metadata, root.url), *_ancestors(metadata.parent, root.url)])


def ancestors_of(origin: Origin | None) -> pd.DataFrame:
    """Return what a query was restored from, and so on back; as :func:`lineage`."""
    return _frame(_ancestors(origin, ""))


def _ancestors(origin: Origin | None, place: str) -> list[dict[str, Any]]:
    """Describe an origin and its ancestors; `place` is that of its child."""
    rows: list[dict[str, Any]] = []
    seen = {place}
    while origin is not None and len(rows) < _MOST:
        metadata = None if origin.path in seen else _found(origin)
        if metadata is None:
            return [*rows, _unfound(origin)]
        rows.append(_row(metadata, origin.path))
        seen.add(origin.path)
        origin = metadata.parent
    return rows


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"checkpoint_id": "Int64", "epoch": "Int64"})


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


def _row(metadata: CheckpointMetadata, path: str) -> dict[str, Any]:
    restored = () if metadata.parent is None else metadata.parent.operators
    return {
        "kind": metadata.kind,
        "path": path,
        "checkpoint_id": metadata.checkpoint_id,
        "query_id": metadata.query_id,
        "query_name": metadata.query_name,
        "epoch": metadata.epoch,
        "completed_at": pd.Timestamp(metadata.completed_at_ms, unit="ms", tz="UTC"),
        "operators": {
            operator.uid: {
                "processor": operator.processor,
                "code_sha256": operator.code_sha256,
                "schema_sha256": operator.schema_sha256,
                "parallelism": operator.parallelism,
                "max_parallelism": operator.max_parallelism,
                "backend": operator.backend,
                "restored": operator.uid in restored,
            }
            for operator in metadata.operators
        },
        "found": True,
    }


def _unfound(origin: Origin) -> dict[str, Any]:
    return {
        "kind": origin.kind,
        "path": origin.path,
        "checkpoint_id": origin.checkpoint_id,
        "query_id": origin.query_id,
        "query_name": None,
        "epoch": origin.epoch,
        "completed_at": pd.NaT,
        "operators": {uid: {} for uid in origin.operators},
        "found": False,
    }
