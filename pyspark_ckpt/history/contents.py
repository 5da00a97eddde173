"""What is stored at a path: checkpoints, savepoints, and the content of one of them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pandas as pd

from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.formats.layout import is_savepoint_name
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.history.frames import as_frame, entries_of
from pyspark_ckpt.history.lineage import description_of
from pyspark_ckpt.history.places import LEVELS, find_checkpoints_directory, savepoint_entries
from pyspark_ckpt.history.records import format_of
from pyspark_ckpt.history.verification import size_on_disk_bytes
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stores.open import find_store

_COLUMNS = (
    "kind", "status", "checkpoint_id", "epoch", "format", "triggered_at", "duration_ms",
    "size_bytes", "files", "path",
)  # fmt: skip


def list_stored(path: str) -> pd.DataFrame:
    """Return the checkpoints of a query, or the savepoints in and below a directory."""
    directory = open_storage(path)
    has_savepoints = any(is_savepoint_name(name) for name in directory.list())
    if has_savepoints and (found := savepoint_entries(directory, LEVELS)):
        return as_frame(found, _COLUMNS)
    try:
        checkpoints = find_checkpoints_directory(path)
    except CheckpointNotFoundError:
        savepoints = savepoint_entries(directory, LEVELS)
        if not savepoints:
            raise
        return as_frame(savepoints, _COLUMNS)
    with closing(find_store(checkpoints)) as store:
        return as_frame(entries_of(store), _COLUMNS)


def describe(path: str) -> dict[str, Any]:
    """Return what a checkpoint or savepoint holds."""
    directory = open_storage(path)
    metadata = read_metadata(directory)
    fields: dict[str, Any] = {
        "kind": metadata.kind,
        "checkpoint_id": metadata.checkpoint_id,
        "epoch": metadata.epoch,
        "query_id": metadata.query_id,
        "query_name": metadata.query_name,
        "watermark_ms": metadata.watermark_ms,
        "completed_at_ms": metadata.completed_at_ms,
        "size_bytes": metadata.size_bytes,
        "files": len({reference.path for reference in metadata.files()}) + 1,
        "spark_version": metadata.spark_version,
        "library_version": metadata.library_version,
        "operators": [_operator(operator) for operator in metadata.operators],
        "spark_operators": [operator.name for operator in metadata.spark_operators],
    }
    if metadata.is_savepoint:  # a checkpoint has the size that a list of them shows
        fields["size_bytes"] = size_on_disk_bytes(directory, metadata)
        fields["format"] = format_of(metadata)
    return fields


def _operator(operator: OperatorMetadata) -> dict[str, Any]:
    states = {
        state.name: {"name": state.name, "kind": state.kind, "schema": state.value_schema}
        for handle in operator.handles
        for state in handle.states
        if state.sweeps is None
    }
    return {
        "uid": operator.uid,
        **description_of(operator),
        "base_formats": sorted(
            {handle.base.format for handle in operator.handles if handle.base is not None}
        ),
        "states": list(states.values()),
    }
