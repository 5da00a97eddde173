"""The log of Spark's file sink, ``_spark_metadata``: which epochs it has written.

A reader takes what the log lists, from the last compaction on, and wants every entry from there.
The sink skips the epochs that the log has. So a query whose first epoch is not 0 needs a log with
empty entries before it. Names and texts are Spark's (FileStreamSinkLog, version 1).
"""

from __future__ import annotations

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.storage.open import open_storage

COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
DEFAULT_COMPACT_INTERVAL = 10
_LOG = "_spark_metadata"
_EMPTY_ENTRY = b"v1"


class FileSinkLog:
    """The log of one output path.

    Parameters
    ----------
    path
        The output path.
    compact_interval
        Spark's: every so many epochs an entry holds all before it.
    """

    def __init__(self, path: str, compact_interval: int) -> None:
        self.path = path
        self._log = open_storage(path).child(_LOG)
        self._interval = compact_interval

    def newest_epoch(self) -> int | None:
        """Return the newest epoch that was written, ``None`` if there is none."""
        names = [name.removesuffix(".compact") for name in self._log.list()]
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def check_fresh(self, epoch: int) -> None:
        """Check that no query has written here but for what :meth:`fill` writes.

        Raises
        ------
        RestoreError
            If one has: the sink skips epochs it has seen, so output would be lost.
        """
        if not self.is_fresh(epoch):
            raise RestoreError(
                f"{self.path} already has the output of another query, whose epochs Spark's file "
                "sink would skip: give the restored query a new path or table"
            )

    def is_fresh(self, epoch: int) -> bool:
        """Tell whether there is nothing but what :meth:`fill` writes, or a part of that."""
        wanted = self._entries(epoch)
        return all(
            name in wanted and self._log.read(name) == _EMPTY_ENTRY
            for name in self._log.list()
            if not name.startswith(".")
        )

    def fill(self, epoch: int) -> None:
        """Have the log say of all epochs up to this one that they wrote nothing; durable."""
        for name in self._entries(epoch):
            if not self._log.exists(name):
                self._log.write(name, [_EMPTY_ENTRY])

    def _entries(self, epoch: int) -> list[str]:
        """Return the names of the last compaction up to an epoch, and of what follows it."""
        first = (epoch + 1) // self._interval * self._interval - 1
        if first < 0:
            return [str(number) for number in range(epoch + 1)]
        return [f"{first}.compact", *(str(number) for number in range(first + 1, epoch + 1))]
