"""Records that users see: their words are plain text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pyspark.sql import types as T

from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.formats.origin import RestoredFrom
from pyspark_ckpt.history.verification import verify
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.storage.open import LocalStorage


def test_spark_makes_rows_of_records(
    storage: LocalStorage, snapshot: CheckpointMetadata, tmp_path: Path
) -> None:
    """``createDataFrame`` cannot infer the type of an enum, not even of an enum of texts."""
    made = write_savepoint(snapshot, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)
    origin = Origin(
        path=made.path,
        kind=CheckpointKind.SAVEPOINT,
        checkpoint_id=None,
        query_id="q",
        epoch=6,
        operators=(),
    )
    for record, field, word in (
        (made, "format", "NATIVE"),
        (verify(made.path), "kind", "savepoint"),
        (RestoredFrom.of(origin), "claim_mode", "NO_CLAIM"),
    ):
        schema = T._infer_schema(asdict(record))
        assert schema[field].dataType == T.StringType()
        assert asdict(record)[field] == word
