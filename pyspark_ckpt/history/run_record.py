"""The records of a query's runs: JSON files in ``history/runs/`` of a checkpoints directory.

::

    history/runs/<number>-<what>-<random>.json

`number` grows with each record of the query, so no clock decides their order. `what` is
``started``, ``note`` or ``ended``. Nothing depends on these records. A reader ignores fields that
it does not know, and leaves out records of a newer version.
"""

from __future__ import annotations

import re
import secrets

import msgspec

from pyspark_ckpt.formats.layout import HISTORY

RUNS = f"{HISTORY}/runs"
RUN_RECORD_VERSION = 1
MAX_RECORD_BYTES = 1 << 20

_NAME = re.compile(r"(?P<number>[0-9]{12})-(?P<what>started|note|ended)-[0-9a-f]{8}\.json")


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


class OperatorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator did in the epoch of a checkpoint.

    Counts are sums over the subtasks, times are the times of the slowest subtask. `states` and
    `timers` are ``None`` until every subtask has counted its state. `slow_keys` are in the newest
    record of a note only.
    """

    uid: str
    rows: int = 0
    keys: int = 0
    reads: int = 0
    writes: int = 0
    expired: int = 0
    timers_fired: int = 0
    rebuilds: int = 0
    parked_keys: int = 0
    parked_rows: int = 0
    open_ms: int = 0
    process_ms: int = 0
    barrier_ms: int = 0
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
