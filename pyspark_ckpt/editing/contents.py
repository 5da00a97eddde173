"""What a new savepoint has besides its operators: position, identity and origin."""

from __future__ import annotations

import uuid

import msgspec

from pyspark_ckpt.editing.position import Position
from pyspark_ckpt.formats.metadata import EpochContents, Origin, SourceLog
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.version import __version__


def edited_contents(
    source: RestoreSource, uids: tuple[str, ...], parent: Origin | None
) -> EpochContents:
    """Return the contents of a savepoint that is made of another.

    Its state is that of no query. So it has a query id of its own, and the source as its origin.
    """
    metadata = source.metadata
    stored = {operator.uid for operator in metadata.operators}
    origin = Origin(
        path=source.path,
        kind=metadata.kind,
        checkpoint_id=metadata.checkpoint_id,
        query_id=metadata.query_id,
        epoch=metadata.epoch,
        operators=tuple(uid for uid in uids if uid in stored),
        sha256=source.sha256,
    )
    return msgspec.structs.replace(
        metadata.contents(), query_id=str(uuid.uuid4()), parent=parent or origin
    )


def first_contents(
    position: Position, spark_version: str, parent: Origin | None
) -> tuple[EpochContents, list[tuple[SourceLog, bytes]]]:
    """Return the contents of a first savepoint, and the logs of its sources with their content."""
    logs = position.read_logs()
    contents = EpochContents(
        epoch=position.epoch,
        query_id=str(uuid.uuid4()),
        query_name=None,
        parent=parent,
        spark_version=spark_version,
        library_version=__version__,
        watermark_ms=position.watermark_ms,
        offsets_entry=position.offsets_entry,
        commits_entry=position.commits_entry,
        source_logs=tuple(log for log, _ in logs),
        operators=(),
        source_ids=position.source_ids,
        source_names=position.source_names,
    )
    return contents, logs
