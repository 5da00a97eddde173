"""What is told of a checkpoint or savepoint in a lineage."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin

COLUMNS = (
    "kind", "path", "checkpoint_id", "query_id", "query_name", "epoch", "completed_at", "operators",
    "found", "parent", "generation",
)  # fmt: skip


def as_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"checkpoint_id": "Int64", "epoch": "Int64", "generation": "Int64"})


def found_row(metadata: CheckpointMetadata, path: str) -> dict[str, Any]:
    """Describe one that is there."""
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
        "parent": None if metadata.parent is None else metadata.parent.path,
        "generation": 0,
    }


def unfound_row(origin: Origin) -> dict[str, Any]:
    """Describe one that is not there, as its child knows it."""
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
        "parent": None,
        "generation": 0,
    }
