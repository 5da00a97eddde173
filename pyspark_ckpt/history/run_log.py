"""The log of a query's runs: its records, how the last run ended, reading and writing.

Nothing depends on the log. A record that cannot be written or read is left out.

::

    history/runs/<number>-<what>-<random>.json

`number` grows with each record of the query, so no clock decides their order. `what` is
``started``, ``note`` or ``ended``. Nothing depends on these records. A reader ignores fields that
it does not know, and leaves out records of a newer version.
"""

from __future__ import annotations

import getpass
import re
import secrets
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.counters import EpochCounters
from pyspark_ckpt.formats.layout import HISTORY
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.storage.base import all_of
from pyspark_ckpt.storage.open import Storage

logger = library_logger(__name__)

KEPT_NOTES = 2880
"""Notes that stay, one day of them at two a minute."""

KEPT_RUNS = 200
"""Records of starts and ends that stay, with the first start, which stays for good."""

RUNS = f"{HISTORY}/runs"
RUN_RECORD_VERSION = 1
MAX_RECORD_BYTES = 1 << 20
_NAME = re.compile(r"(?P<number>[0-9]{12})-(?P<what>started|note|ended)-[0-9a-f]{8}\.json")

SILENCE_MS = 120_000
"""After this time without a sign of life a run is no longer called running: four notes."""


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
            outdated = self._outdated(name, record)
            if outdated:
                self._storage.delete(f"{RUNS}/{each}" for each in outdated)
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
        """Return the oldest start, ``None`` if it cannot be read."""
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
        except (OSError, CkptError):  # it has just been deleted
            return None


class SettingInForce(msgspec.Struct, frozen=True):
    """The value of a setting in a run, and where it came from."""

    key: str
    value: str
    source: str


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one state after an epoch, summed over all subtasks."""

    name: str
    keys: int
    entries: int
    size_bytes: int


class SlowKeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key that took much time in samples; `share` is its part of the time of all keys."""

    key: str
    subtask: int
    ms: int
    share: float


class OperatorRecord(EpochCounters, frozen=True, kw_only=True, omit_defaults=False):
    """What an operator did in the epoch of a checkpoint.

    The counters are of all subtasks together. `states` and `timers` are ``None`` until every
    subtask has counted its state. `slow_keys` are in the newest record of a note only.
    """

    uid: str
    timers: int | None = None
    states: tuple[StateRecord, ...] | None = None
    is_estimated: bool = False
    slow_keys: tuple[SlowKeyRecord, ...] = ()


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint. The record stays when retention removes the checkpoint."""

    checkpoint_id: int
    epoch: int
    triggered_at_ms: int
    duration_ms: int
    size_bytes: int
    new_bytes: int | None = None
    files: int | None = None
    phases_ms: dict[str, int] = {}
    requests: dict[str, int] | None = None
    operators: tuple[OperatorRecord, ...] = ()


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch as Spark reported it; `phases_ms` has Spark's names and milliseconds."""

    epoch: int
    began_at_ms: int
    duration_ms: int
    rows: int
    phases_ms: dict[str, int] = {}
    watermark_ms: int | None = None
    late_rows: int | None = None


class OperatorEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The time of an operator's slowest subtask in an epoch, by phase.

    `began_ms` is the time from the epoch's timestamp to the begin of the first subtask.
    """

    uid: str
    epoch: int
    began_ms: int
    open_ms: int
    read_ms: int
    user_ms: int
    write_ms: int
    barrier_ms: int

    @property
    def total_ms(self) -> int:
        """The time from the begin to the end of the subtask's work."""
        return self.open_ms + self.read_ms + self.user_ms + self.write_ms + self.barrier_ms


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="started"):
    """A run of the query has started.

    `outlives_client` says that a Spark Connect server runs the query, and continues it when the
    client ends that made this record.
    """

    run_id: str
    at_ms: int
    query_id: str
    query_name: str | None = None
    started_by: str = ""
    location: str = ""
    library_version: str = ""
    spark_version: str = ""
    operators: tuple[str, ...] = ()
    settings: tuple[SettingInForce, ...] = ()
    outlives_client: bool = False
    version: int = RUN_RECORD_VERSION


class RunNote(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="note"):
    """A sign of life of a run, with what happened after the note before.

    `epochs` are the slowest epochs. The others are summed: `other_epochs` of them took `other_ms`
    together. `epoch` is the newest epoch that Spark has reported. `operator_epochs` have what the
    operators did in their slowest epochs; they are known when a checkpoint follows the epoch.
    """

    run_id: str
    at_ms: int
    epoch: int | None = None
    epochs: tuple[EpochRecord, ...] = ()
    other_epochs: int = 0
    other_ms: int = 0
    checkpoints: tuple[CheckpointRecord, ...] = ()
    operator_epochs: tuple[OperatorEpoch, ...] = ()
    version: int = RUN_RECORD_VERSION

    @property
    def is_empty(self) -> bool:
        """Whether it is only a sign of life."""
        return not (self.epochs or self.other_epochs or self.checkpoints)


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="ended"):
    """A run has ended; `error` is ``None`` if it was stopped, or ended by itself."""

    run_id: str
    at_ms: int
    error: str | None = None
    error_kind: str | None = None
    version: int = RUN_RECORD_VERSION


RunRecord = RunStarted | RunNote | RunEnded


_decoder: msgspec.json.Decoder[RunRecord] = msgspec.json.Decoder(RunRecord)


def without_slow_keys(record: CheckpointRecord) -> CheckpointRecord:
    """Return a record without any key."""
    operators = tuple(msgspec.structs.replace(each, slow_keys=()) for each in record.operators)
    return msgspec.structs.replace(record, operators=operators)


def run_record_name(number: int, record: RunRecord) -> str:
    """Return a new, unique name for a record."""
    what = {RunStarted: "started", RunNote: "note", RunEnded: "ended"}[type(record)]
    return f"{number:012}-{what}-{secrets.token_hex(4)}.json"


def run_record_number(name: str) -> int | None:
    """Return the number in a record's name, ``None`` for any other name."""
    match = _NAME.fullmatch(name)
    return int(match["number"]) if match else None


def run_record_kind(name: str) -> str | None:
    """Return ``started``, ``note`` or ``ended``, ``None`` for any other name."""
    match = _NAME.fullmatch(name)
    return match["what"] if match else None


def encode_run_record(record: RunRecord) -> bytes:
    """Return the bytes of a record."""
    return msgspec.json.encode(record)


def decode_run_record(data: bytes) -> RunRecord | None:
    """Return a record, ``None`` if it is damaged, too large or of a newer version."""
    if len(data) > MAX_RECORD_BYTES:
        return None
    try:
        record = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return record if record.version <= RUN_RECORD_VERSION else None


class RunState(str, Enum):
    """What a query's last run is doing, as far as its directory says."""

    RUNNING = "running"
    SILENT = "no sign of life"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a query. `alive_at_ms` is its last sign of life."""

    state: RunState
    started: RunStarted | None
    ended: RunEnded | None
    alive_at_ms: int | None


def _end_of(records: Sequence[RunStarted | RunEnded], started: RunStarted) -> RunEnded | None:
    """Return the newest end of a run: one that has ended may fail later, at a restart."""
    ends = [
        each for each in records if isinstance(each, RunEnded) and each.run_id == started.run_id
    ]
    return ends[-1] if ends else None


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """The runs of a query that may go on, because nothing says that they have ended.

    `started` are their starts, oldest first. `has_unknown` says that there is one more, whose start
    cannot be read.
    """

    started: tuple[RunStarted, ...]
    has_unknown: bool

    @classmethod
    def of(
        cls,
        records: Sequence[RunStarted | RunEnded],
        newest: RunNote | None,
        *,
        has_unread: bool = False,
    ) -> OpenRuns:
        """Return them without comparing times, which may be of several hosts.

        A run that has reported an epoch has taken the query over from the runs before it.

        `records` must be ordered oldest first. `has_unread` says whether a start cannot be read,
        such as one of a newer version.
        """
        starts = [each for each in records if isinstance(each, RunStarted)]
        ended = {each.run_id for each in records if isinstance(each, RunEnded)}
        ids = [each.run_id for each in starts]
        is_known = newest is None or newest.run_id in {*ids, *ended}
        if newest is not None and newest.epoch is not None and newest.run_id in ids:
            starts = starts[ids.index(newest.run_id) :]
        return cls(
            tuple(each for each in starts if each.run_id not in ended),
            has_unread or not is_known,
        )

    @property
    def may_run(self) -> bool:
        """Whether there is one."""
        return bool(self.started) or self.has_unknown

    def __str__(self) -> str:
        runs = [f"run {each.run_id}, started by {each.started_by}" for each in self.started]
        return "; ".join([*runs, *["a run whose start cannot be read"] * self.has_unknown])


def last_run(
    records: Sequence[RunStarted | RunEnded],
    note: RunNote | None,
    now_ms: int,
    checkpointed_at_ms: int | None = None,
) -> LastRun:
    """Return what the records say of a query's last run.

    `records` must be ordered oldest first. `checkpointed_at_ms` is when the newest checkpoint was
    complete.
    """
    starts = [each for each in records if isinstance(each, RunStarted)]
    if not starts:
        return LastRun(RunState.UNKNOWN, None, None, checkpointed_at_ms)
    started, ended = starts[-1], _end_of(records, starts[-1])
    if note is not None and ended is not None and note.at_ms > ended.at_ms:
        # A driver that was started while another one ran, and was fenced: the other one runs on.
        others = [each for each in starts if each.run_id == note.run_id]
        if others and _end_of(records, others[-1]) is None:
            started, ended = others[-1], None
    signs = [started.at_ms, checkpointed_at_ms or 0]
    if note is not None and note.run_id == started.run_id:
        signs.append(note.at_ms)
    if ended is not None:
        state = RunState.STOPPED if ended.error is None else RunState.FAILED
        return LastRun(state, started, ended, ended.at_ms)
    alive_at_ms = max(signs)
    is_silent = now_ms - alive_at_ms > SILENCE_MS
    return LastRun(RunState.SILENT if is_silent else RunState.RUNNING, started, None, alive_at_ms)


def user_and_host() -> str:
    """Return who runs this process, for records and requests: ``user@host``, of limited length."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:200]
