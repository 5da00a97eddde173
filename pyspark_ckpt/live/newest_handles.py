"""The newest committed epoch of a running query, and its handles."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.handles import committed_handle, committed_handles
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.clock import monotonic_ms, now_ms
from pyspark_ckpt.errors import UnknownEpochError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.spark.log import Sources

_LISTED_LATELY_MS = 1000
"""In this time a query cannot commit so many epochs that Spark deletes the next one's entry."""


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """One committed epoch.

    `watermark_ms` is the watermark that follows it. `offsets` has where each source continues, as
    Spark writes it. `began_ms` is its processing time.
    """

    epoch: int
    watermark_ms: int
    offsets: dict[int, str]
    began_ms: int

    def time_ms(self, time: TtlTime) -> int:
        """Return the time in which entries age, as it is for the epoch that begins now."""
        if time is TtlTime.EVENT_TIME:
            return self.watermark_ms
        return max(now_ms(), self.began_ms)


class CommittedEpochs:
    """Finds the newest committed epoch of a query."""

    def __init__(self, files: QueryFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._newest: CommittedEpoch | None = None
        self._looked_at_ms = 0
        self._commits = files.spark_log.storage.local_path("commits")

    def newest(self) -> CommittedEpoch:
        """Return the newest epoch that was committed before the call, or a newer one.

        It raises ``UnknownEpochError`` if no epoch is committed yet.
        """
        if self._is_newest():
            assert self._newest is not None  # it is the newest
            return self._newest
        looked_at_ms = monotonic_ms()
        epoch = self._files.spark_log.committed_epoch()
        if epoch is None:
            raise UnknownEpochError(
                f"query {self._files.query_id} has committed no epoch yet: read its state after "
                "the first epoch, for example after processAllAvailable"
            )
        with self._lock:
            if self._newest is None or self._newest.epoch < epoch:
                self._newest = self._read(epoch)
            self._looked_at_ms = looked_at_ms
            return self._newest

    def _is_newest(self) -> bool:
        """Return whether the known epoch is the newest, which on a disk is a look at one file.

        Spark deletes old entries, so a missing file means that only if they were listed lately.
        """
        newest = self._newest
        if newest is None or self._commits is None:
            return False
        if monotonic_ms() - self._looked_at_ms > _LISTED_LATELY_MS:
            return False
        return not os.path.exists(f"{self._commits}/{newest.epoch + 1}")  # noqa: PTH110  # 2 us

    def _read(self, epoch: int) -> CommittedEpoch:
        log = self._files.spark_log
        entry = log.offsets_entry(epoch)
        names = self._files.given_names if entry.is_named else ()
        sources = Sources(self._files.source_ids, names)
        offsets = entry.in_order(sources).source_offsets
        return CommittedEpoch(
            epoch,
            log.watermark_ms(epoch),
            dict(zip(sources.ids, offsets, strict=False)),
            int(entry.metadata.get("batchTimestampMs", 0)),
        )


class NewestHandles:
    """The handles of one operator at committed epochs, each epoch as new as the one before.

    Threads look up the newest epoch before they ask for handles, so one may ask for an older epoch
    than another did. It gets the newer epoch: Spark deletes the files of older ones.

    `spark` must be a session of :func:`reading_session`.
    """

    def __init__(self, spark: SparkSession, files: QueryFiles, operator_id: int) -> None:
        self._spark = spark
        self._files = files
        self._operator_id = operator_id
        self._lock = threading.Lock()
        self._asked: CommittedEpoch | None = None

    def of_subtask(
        self, committed: CommittedEpoch, subtask: int
    ) -> tuple[CommittedEpoch, Handle | None]:
        """Return the handle of a subtask at an epoch or a newer one, with the epoch that it is of.

        The handle is ``None`` if the subtask has no state yet.
        """
        with self._lock:
            committed = self._newest_asked(committed)
            place = committed.epoch, self._operator_id, subtask
            return committed, committed_handle(self._spark, self._files, *place)

    def of_all(self, committed: CommittedEpoch) -> tuple[CommittedEpoch, list[Handle]]:
        """Return the handles of all subtasks that have state, as :meth:`of_subtask`."""
        with self._lock:
            committed = self._newest_asked(committed)
            place = committed.epoch, self._operator_id
            return committed, list(committed_handles(self._spark, self._files, *place))

    def _newest_asked(self, committed: CommittedEpoch) -> CommittedEpoch:
        if self._asked is None or self._asked.epoch < committed.epoch:
            self._asked = committed
        return self._asked
