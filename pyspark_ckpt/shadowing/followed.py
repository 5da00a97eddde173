"""The epochs of the query that a shadow follows, and how a fork gets them.

A fork runs exactly the epochs of the query: with its source offsets, and with its processing time.
Only its watermark is its own, because its program may define another one. So rows are late, timers
fire and entries expire in the same epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, CorruptFileError
from pyspark_ckpt.spark.log import NO_OFFSET, OffsetsEntry, Sources, SparkLog
from pyspark_ckpt.storage.open import Storage

_TIMESTAMP, _WATERMARK = "batchTimestampMs", "batchWatermarkMs"


@dataclass(frozen=True, slots=True)
class FollowedEpoch:
    """An epoch that the query has committed.

    `offsets` are by the number of the source, and `names` has the names of the sources if Spark
    uses names. `logs` are the files that sources need for it, by their paths in a location.
    """

    epoch: int
    timestamp_ms: int
    watermark_ms: int
    offsets: dict[int, str]
    names: tuple[str, ...]
    logs: dict[str, bytes]


class FollowedQuery:
    """Reads the committed epochs of a query from Spark's logs, one after the other."""

    def __init__(
        self,
        log: SparkLog,
        query_id: str,
        source_ids: tuple[int, ...],
        given_names: tuple[str, ...],
        after: int,
    ) -> None:
        self._log = log
        self._query_id = query_id
        self._source_ids = source_ids
        self._given_names = given_names
        self._first = after + 1
        self._last = after
        self._known: set[str] = set()

    def next(self) -> FollowedEpoch | None:
        """Return the next epoch, ``None`` if it is not committed yet.

        ``CheckpointAbortedError`` is raised if Spark has deleted the entry of the epoch already, or
        if the location belongs to another query by now.
        """
        self._check_query()
        committed = self._log.committed_epoch()
        if committed is None or committed <= self._last:
            return None
        epoch = self._last + 1
        try:
            found = self._read(epoch)
        except (CorruptFileError, CheckpointAbortedError, FileNotFoundError) as exc:
            self._check_query()
            reason = (
                "The shadow began at an old checkpoint: trigger one of the query first"
                if epoch == self._first
                else "The shadow is too slow: give it more resources"
            )
            raise CheckpointAbortedError(
                f"{self._log.storage.url}: epoch {epoch} can no longer be followed, the query has "
                f"committed epoch {committed} ({exc}). {reason}, or raise "
                "spark.sql.streaming.minBatchesToRetain of the query"
            ) from exc
        self._check_query()  # a rollback while it was read may have mixed two epochs of one number
        self._last = epoch
        return found

    def _check_query(self) -> None:
        """Check that the location was not rolled back; numbers of epochs do not show it."""
        if self._log.query_id() != self._query_id:
            raise CheckpointAbortedError(
                f"{self._log.storage.url}: query {self._query_id} was rolled back, or its location "
                "was cleared, so the epochs of the shadow are void: discard it, and begin another"
            )

    def _read(self, epoch: int) -> FollowedEpoch:
        entry = self._log.offsets_entry(epoch)
        sources = Sources(self._source_ids, self._given_names if entry.is_named else ())
        ordered = entry.in_order(sources)
        files = self._log.source_log_files(ordered, sources)
        logs = {
            file.path: self._log.storage.read(file.path)
            for file in files
            if file.path not in self._known
        }
        self._known |= logs.keys()
        return FollowedEpoch(
            epoch,
            int(entry.metadata[_TIMESTAMP]),
            int(entry.metadata.get(_WATERMARK, 0)),
            dict(zip(sources.ids, ordered.source_offsets, strict=True)),
            sources.names,
            logs,
        )


def begin_epoch(location: Storage, followed: FollowedEpoch, source_ids: Sequence[int]) -> None:
    """Write the offsets of an epoch at the location of a fork, which then has to run it.

    The newest epoch at `location` is the one before, and ``CkptError`` is raised if the fork has
    not committed it. `source_ids` has the source at each place where the program of the fork reads
    one.
    """
    log = SparkLog(location)
    epoch = followed.epoch
    if log.committed_epoch() != epoch - 1:
        raise CkptError(
            f"{location.url} has committed epoch {log.committed_epoch()}, not {epoch - 1}: the "
            "shadow cannot continue there; discard it and begin another one"
        )
    for path, content in followed.logs.items():
        if not location.exists(path):
            location.write(path, [content])
    before = log.offsets_entry(epoch - 1)
    times = {_TIMESTAMP: followed.timestamp_ms, _WATERMARK: log.watermark_ms(epoch - 1)}
    metadata = {**before.metadata, **times}
    name = f"offsets/{epoch}"
    if not location.exists(name):
        entry = _entry(before, metadata, followed, source_ids)
        location.write(name, [entry.text().encode()])


def _entry(
    before: OffsetsEntry,
    metadata: dict[str, object],
    followed: FollowedEpoch,
    source_ids: Sequence[int],
) -> OffsetsEntry:
    """Return the offsets in the form of the fork's own log."""
    if before.is_named:
        by_name = {followed.names[number]: each for number, each in followed.offsets.items()}
        return OffsetsEntry(metadata, tuple(by_name.values()), tuple(by_name))
    values = tuple(followed.offsets.get(number, NO_OFFSET) for number in source_ids)
    keys = None if before.keys is None else tuple(map(str, range(len(values))))
    return replace(before, metadata=metadata, source_offsets=values, keys=keys)
