"""The log of a query's runs: reads and writes its records.

Nothing depends on the log. A record that cannot be written or read is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.history.run_record import (
    MAX_RECORD_BYTES,
    RUNS,
    RunEnded,
    RunNote,
    RunRecord,
    RunStarted,
    decode_run_record,
    encode_run_record,
    run_record_kind,
    run_record_name,
    run_record_number,
)
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.at_once import all_of
from pyspark_ckpt.storage.open import Storage

logger = library_logger(__name__)

KEPT_NOTES = 2880
"""Notes that stay, one day of them at two a minute."""

KEPT_RUNS = 200
"""Records of starts and ends that stay, with the first start, which stays for good."""


class RunLog:
    """Writes the records of one run; only one thread uses it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._number: int | None = None
        self._notes: deque[str] = deque()
        self._runs: deque[str] = deque()
        self._sign_of_life: str | None = None

    def write(self, record: RunRecord) -> bool:
        """Write a record, and delete the oldest ones; return whether it was written.

        A note that is only a sign of life is replaced by the next record.
        """
        try:
            if self._number is None:
                self._look()
            assert self._number is not None  # looked for
            self._number += 1
            name = run_record_name(self._number, record)
            self._storage.write(f"{RUNS}/{name}", [encode_run_record(record)])
            self._delete(self._outdated(name, record))
        except (OSError, CkptError) as exc:
            logger.warning(
                "%s: the log of runs has no record of what happened last: %s",
                self._storage.url,
                exc,
            )
            return False
        return True

    def _look(self) -> None:
        names = sorted(name for name in self._storage.list(RUNS) if run_record_kind(name))
        self._notes.extend(name for name in names if run_record_kind(name) == "note")
        self._runs.extend(name for name in names if run_record_kind(name) != "note")
        self._number = max((run_record_number(name) or 0 for name in names), default=0)

    def _outdated(self, name: str, record: RunRecord) -> list[str]:
        outdated = [] if self._sign_of_life is None else [self._sign_of_life]
        self._sign_of_life = None
        if isinstance(record, RunNote) and record.is_empty:
            self._sign_of_life = name
            return outdated
        if isinstance(record, RunNote):
            self._notes.append(name)
            while len(self._notes) > KEPT_NOTES:
                outdated.append(self._notes.popleft())
            return outdated
        self._runs.append(name)
        while len(self._runs) > KEPT_RUNS:
            outdated.append(self._runs[1])
            del self._runs[1]  # the first one says who made the query
        return outdated

    def _delete(self, names: list[str]) -> None:
        if names:
            self._storage.delete(f"{RUNS}/{name}" for name in names)


class RecordedRuns:
    """The records that a query's runs have left, read as they are asked for.

    `names` are the names of their files. Without them, `problem` says why they cannot be listed.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.problem: str | None = None
        try:
            self.names = sorted(name for name in storage.list(RUNS) if run_record_kind(name))
        except (OSError, CkptError) as exc:
            self.names = []
            self.problem = str(exc)

    def starts_and_ends(self, most: int = KEPT_RUNS) -> list[RunStarted | RunEnded]:
        """Return the newest records of starts and ends, oldest first."""
        names = [name for name in self.names if run_record_kind(name) != "note"]
        return [
            record
            for record in self._read(names[-most:])
            if isinstance(record, RunStarted | RunEnded)
        ]

    def has_unread(self, records: Sequence[RunStarted | RunEnded]) -> bool:
        """Return whether a start is not in :meth:`starts_and_ends`, because it cannot be read."""
        names = [name for name in self.names if run_record_kind(name) != "note"][-KEPT_RUNS:]
        starts = sum(run_record_kind(name) == "started" for name in names)
        return starts > sum(isinstance(record, RunStarted) for record in records)

    def first_start(self) -> RunStarted | None:
        """Return the oldest start; a log that an earlier version kept may not have the first."""
        names = [name for name in self.names if run_record_kind(name) == "started"]
        first = self._record(names[0]) if names else None
        return first if isinstance(first, RunStarted) else None

    def notes(self, most: int) -> list[RunNote]:
        """Return the newest notes, oldest first."""
        names = [name for name in self.names if run_record_kind(name) == "note"]
        return [record for record in self._read(names[-most:]) if isinstance(record, RunNote)]

    def _read(self, names: list[str]) -> list[RunRecord]:
        found = all_of(self._record, names, at_once=self._storage.is_remote)
        return [record for record in found if record is not None]

    def _record(self, name: str) -> RunRecord | None:
        try:
            return decode_run_record(
                self._storage.read_start(f"{RUNS}/{name}", MAX_RECORD_BYTES + 1)
            )
        except (OSError, CkptError):  # deleted meanwhile
            return None
