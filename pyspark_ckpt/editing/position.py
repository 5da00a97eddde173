"""Where the query of a savepoint stands: epoch, watermark, source offsets, logs of sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.layout import source_log_path
from pyspark_ckpt.formats.metadata import SourceLog
from pyspark_ckpt.spark.log import NO_OFFSET, OffsetsEntry, is_offset
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import Storage

_SEPARATORS = (",", ":")


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a query that has not run here.

    `epoch` is the last epoch that the state contains, and `watermark_ms` is the watermark after it.
    If `offsets_entry` has no offsets, the sources of the restored query start as their options say.
    `source_files` has files of the sources' logs by source and name, each with its storage and its
    path there. `location` is where the query has run, if it has, and `location_query_id` its id.
    """

    offsets_entry: str
    epoch: int = 0
    watermark_ms: int = 0
    commits_entry: str = ""
    source_ids: tuple[int, ...] = ()
    source_names: tuple[str, ...] = ()
    location: str | None = None
    location_query_id: str | None = None
    source_files: Mapping[tuple[int, str], tuple[Storage, str]] = field(default_factory=dict)

    def read_logs(self) -> list[tuple[SourceLog, bytes]]:
        """Return the logs of the sources as the savepoint will have them, with their content."""
        found = []
        for (index, name), (storage, path) in sorted(self.source_files.items(), key=itemgetter(0)):
            data = storage.read(path)
            digest = hashlib.sha256(data).hexdigest()
            file = FileReference(source_log_path(index, name, digest), len(data), digest)
            found.append((SourceLog(index, name, file), data))
        return found


def position_of(
    offsets: Sequence[str | Mapping[str, Any] | None] | None,
    watermark_ms: int,
    epoch: int,
    source_ids: tuple[int, ...] = (),
    source_names: tuple[str, ...] = (),
) -> Position:
    """Return the position at given offsets.

    An offset is ``None`` for a source that starts as its options say; `offsets` is ``None`` if all
    do. `epoch` is the last epoch. `source_ids` has the source at each place of the query, if the
    query is known.
    """
    if not isinstance(epoch, int) or not 0 <= epoch < 1 << 62:
        raise PlanError(f"epoch is {epoch!r}: give the number of an epoch, from 0")
    if not isinstance(watermark_ms, int) or not 0 <= watermark_ms < 1 << 62:
        raise PlanError(f"watermark_ms is {watermark_ms!r}: give milliseconds since 1970, from 0")
    texts = (
        None if offsets is None else [_text(number, each) for number, each in enumerate(offsets)]
    )
    sources = len(set(source_ids))
    if texts is not None and source_ids and len(texts) != sources:
        raise PlanError(
            f"{len(texts)} source offsets were given and the query reads {sources} sources: give "
            "one for each, in their order, and None for a source that starts as its options say"
        )
    places = source_ids or tuple(range(len(texts or ())))
    by_place = tuple(texts[source] for source in places) if texts is not None else ()
    metadata = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": now_ms(), "conf": {}}
    return Position(
        offsets_entry=OffsetsEntry(metadata, by_place).text(),
        epoch=epoch,
        watermark_ms=watermark_ms,
        commits_entry="v1\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms}),
        source_ids=places if by_place else (),
        source_names=source_names if by_place else (),
    )


def _text(number: int, offset: str | Mapping[str, Any] | None) -> str:
    if offset is None:
        return NO_OFFSET
    text = offset if isinstance(offset, str) else json.dumps(offset, separators=_SEPARATORS)
    if "\n" in text or not is_offset(text):
        raise PlanError(
            f"the offset of source {number} is {text[:80]!r}: give it as Spark writes it, which is "
            'JSON, such as {"events":{"0":42}} for Kafka'
        )
    if "logOffset" in text:
        raise PlanError(
            f"the offset of source {number} is one of a file source, which needs the source's log "
            "too: give None, and let the stream read a directory that has only new files"
        )
    return text
