"""The handle: names one version of one subtask's state; and the handles of an initial state.

Spark keeps the encoded handle in GroupState. So Spark commits it, and writes it again when it
repeats an epoch. It is MessagePack in GroupState and JSON inside ``_metadata``, never pickle.

The file is written before the query starts. It is garbage once epoch 0 has been committed, because
each subtask then has a handle in Spark's state store.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.counters import OF_METRICS, OF_PHASES, EpochMetrics, EpochPhases
from pyspark_ckpt.formats.layout import SHARED, InitialFile, initial_file, initial_path
from pyspark_ckpt.formats.modes import (
    ListRedistribution,
    TimeMode,
    TtlTime,
    TtlUpdate,
    TtlVisibility,
)
from pyspark_ckpt.storage.base import CoordinatorStorage, FileReference, WorkerStorage

HANDLE_FORMAT_VERSION = 1

QUARANTINED_TIMERS_MS = 253_402_300_123_457
"""`timeout_ms` of a subtask whose timers are all of quarantined keys, so none fires: in the year
9999. Without it, nobody would know that it has timers."""

EMPTY_VERSION = "empty"
"""Version of a subtask's state before its first change."""

CHANGES_FORMAT = "changes"
"""Format of a base snapshot that is one change file, which every backend can load."""

CANONICAL_FORMAT = "canonical"
"""Format of a base snapshot that is one canonical file, as savepoints have it."""

KEPT_PREDECESSORS = 5
"""How many earlier versions a handle records; see :func:`following`.

The simulation found an attempt that Spark did not commit, and whose executor began the next epoch
from its own handle three times in a row."""

KEPT_PHASES = 32
"""Epochs whose phases a handle has; the console shows them. An epoch takes 12 to 20 bytes."""

_encoder = msgspec.msgpack.Encoder()


class Segment(msgspec.Struct, frozen=True):
    """A changelog segment: one epoch's puts and deletes, inline or in a file."""

    version: str
    epoch: int
    entries: int
    size_bytes: int
    inline: bytes | None = None
    file: FileReference | None = None


class BaseFile(msgspec.Struct, frozen=True):
    """A file of a base snapshot under the name that it has inside the snapshot."""

    name: str
    file: FileReference


class BaseSnapshot(msgspec.Struct, frozen=True):
    """A full copy of a subtask's state at `version`, in files of a `format`.

    The format is :data:`CHANGES_FORMAT`, :data:`CANONICAL_FORMAT`, or the name of a backend's own
    snapshot format, whose files snapshots may share. Executors know the snapshot by `snapshot_id`.
    `entries` is ``None`` if the entries were not counted.
    """

    version: str
    epoch: int
    entries: int | None
    files: tuple[BaseFile, ...]
    format: str = CHANGES_FORMAT
    snapshot_id: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes in all its files, shared ones included."""
        return sum(each.file.size_bytes for each in self.files)


class PendingSnapshot(msgspec.Struct, frozen=True):
    """A base snapshot of the state at `version` whose files are still being uploaded.

    It is not part of the state. While a handle names it, its files are kept, so that a later handle
    can have it as its base. `run_id` is the run of the query that took it.
    """

    snapshot_id: str
    version: str
    epoch: int
    taken_at_ms: int
    run_id: str


class Predecessor(msgspec.Struct, frozen=True):
    """A version before a handle's version, with the files that only the earlier version needs.

    `pending` is the id of a snapshot that was pending in the earlier version, and is not pending
    in the version after it.
    """

    epoch: int
    files: tuple[str, ...] = ()
    pending: str | None = None


class TtlDescriptor(msgspec.Struct, frozen=True):
    """A state's time to live.

    `since_ms` is when it was switched on for a state that had entries without a time to live.
    """

    duration_ms: int
    time: TtlTime
    update: TtlUpdate
    visibility: TtlVisibility
    since_ms: int | None = None


class StateDescriptor(msgspec.Struct, frozen=True):
    """One state variable; its place in the handle's list is its id in the stored keys.

    `kind` is ``value``, ``list``, ``map``, ``reducing``, ``aggregating``, ``operator-list`` or
    ``broadcast``. The schemas are Spark's JSON form of a StructType. Entries written before a
    schema change begin with the place of their schema in `earlier_schemas`. `is_stamped` is true
    once the state has had a time to live, because any entry may then have a time. `sweeps` says
    how far the entries of a deleted state are removed (``operator/state/removal.py``); it is
    ``None`` for a state in use.
    """

    name: str
    kind: str
    value_schema: str
    map_key_schema: str | None = None
    earlier_schemas: tuple[str, ...] = ()
    ttl: TtlDescriptor | None = None
    is_stamped: bool = False
    redistribution: ListRedistribution | None = None
    sweeps: int | None = None


class SlowKey(msgspec.Struct, frozen=True, array_like=True):
    """A key as text, and the time that samples found it under way."""

    key: str
    ms: int


class SlowKeys(msgspec.Struct, frozen=True, array_like=True):
    """The keys of a subtask that took most time; all keys together took `sampled_ms`.

    Both are from samples, and older epochs count less.
    """

    sampled_ms: int
    keys: tuple[SlowKey, ...] = ()


class StateCount(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one state; a list or map has several entries per key."""

    name: str
    keys: int
    entries: int
    size_bytes: int


class StateCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a subtask's keyed state at the end of `epoch`.

    Of the subtask's `of_groups` key groups, `groups` were counted: all, some, or 0 if they are too
    large. `timers` is the number of timers in the counted groups. Bytes include keys and values.
    """

    epoch: int
    counted_at_ms: int
    took_us: int
    groups: int
    of_groups: int
    timers: int
    states: tuple[StateCount, ...]


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one subtask's state: base snapshot, then segments in order.

    `sweep_from` is the stored key at which the removal of expired entries continues. Spark must
    call the subtask again by `timeout_ms`, in the time of `time_mode`. `counts` are from the last
    epoch that counted, ``None`` before the first. `changelog_since_ms` is the processing time at
    which `segments` began. `predecessors` are the last versions before this version, oldest first.
    `phases` are those of the subtask's last epochs, oldest first, with the handle's own.
    `slow_keys` is ``None`` until a sample found a key under way. `has_state_of_no_key` is false if
    the subtask has never written operator list, broadcast or raw state. It is unset, and not
    stored, if that is unknown.
    """

    format_version: int = HANDLE_FORMAT_VERSION
    query_id: str
    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    epoch: int
    key_schema: str
    states: tuple[StateDescriptor, ...] = ()
    base: BaseSnapshot | None = None
    segments: tuple[Segment, ...] = ()
    pending: PendingSnapshot | None = None
    changelog_since_ms: int | None = None
    sweep_from: bytes = b""
    time_mode: TimeMode = TimeMode.NONE
    timeout_ms: int | None = None
    metrics: EpochMetrics | None = None
    counts: StateCounts | None = None
    predecessors: tuple[Predecessor, ...] = ()
    phases: tuple[EpochPhases, ...] = ()
    slow_keys: SlowKeys | None = None
    has_state_of_no_key: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def lineage(self) -> tuple[str, ...]:
        """Versions that lead to this handle's state, oldest first; the last is its own version."""
        first = EMPTY_VERSION if self.base is None else self.base.version
        return (first, *(segment.version for segment in self.segments))

    @property
    def version(self) -> str:
        """The version of the state that this handle names."""
        return self.lineage[-1]

    def segments_since(self, version: str) -> tuple[Segment, ...] | None:
        """Return the segments that follow a version, ``None`` if it is not in the lineage."""
        if version not in self.lineage:
            return None
        return self.segments[self.lineage.index(version) :]

    def counted(self, epoch: int) -> dict[str, int]:
        """Return what the subtask counted in an epoch, by the fields of its counters."""
        metrics, is_called = self.metrics or EpochMetrics(), self.epoch == epoch
        phases = next((each for each in self.phases if each.epoch == epoch), None)
        return {
            **{
                field: getattr(metrics, field) if is_called or counter.lasts else 0
                for field, counter in OF_METRICS.items()
            },
            **{field: 0 if phases is None else getattr(phases, field) for field in OF_PHASES},
        }

    def files(self) -> list[FileReference]:
        """Return every file that this version of the state needs."""
        base = [] if self.base is None else [each.file for each in self.base.files]
        return base + [segment.file for segment in self.segments if segment.file is not None]

    def kept_files(self) -> set[str]:
        """Return the paths that another attempt's handle of this epoch may refer to."""
        return {path for each in self.predecessors for path in each.files}

    def kept_snapshots(self) -> set[str]:
        """Return the ids of pending snapshots that this or another attempt's handle may use."""
        own = set() if self.pending is None else {self.pending.snapshot_id}
        return own | {each.pending for each in self.predecessors if each.pending is not None}

    def kept_since(self) -> int:
        """Return the first epoch whose files another attempt's handle may refer to."""
        before = self.predecessors
        if len(before) < KEPT_PREDECESSORS:
            return before[0].epoch if before else self.epoch
        return before[1].epoch  # both attempts started from the version of `before[0]`


def with_phases(handle: Handle, phases: EpochPhases) -> Handle:
    """Return a handle with the phases of its epoch after those of the epochs before it."""
    before = [each for each in handle.phases if each.epoch < phases.epoch]
    return msgspec.structs.replace(handle, phases=(*before, phases)[-KEPT_PHASES:])


def following(handle: Handle, before: Handle | None) -> Handle:
    """Return the handle of an epoch with a record of the version that the epoch started from.

    Spark may run an epoch of a subtask twice, and both attempts may finish. Spark commits one of
    the two handles. But the other attempt's executor has the other handle in the memory of Spark's
    state store, and may start the next epoch from that handle. So the files that the other handle
    refers to must be kept: files of the versions before, and all files written in their epochs.
    """
    if before is None:
        return handle
    needed = {reference.path for reference in handle.files()}
    dropped = tuple(each.path for each in before.files() if each.path not in needed)
    pending = None if before.pending is None else before.pending.snapshot_id
    if handle.pending is not None and pending == handle.pending.snapshot_id:
        pending = None
    last = Predecessor(before.epoch, dropped, pending)
    kept = (*before.predecessors, last)[-KEPT_PREDECESSORS:]
    return msgspec.structs.replace(handle, predecessors=kept)


def new_version(epoch: int) -> str:
    """Return a version that no other attempt of this epoch can have."""
    return f"{epoch}-{secrets.token_hex(8)}"


class _Header(msgspec.Struct):
    """The fields that every format of a handle has."""

    format_version: int
    uid: str


_header_decoder = msgspec.msgpack.Decoder(_Header)


_decoder = msgspec.msgpack.Decoder(Handle)


def encode_handle(handle: Handle) -> bytes:
    """Encode a handle for GroupState."""
    return _encoder.encode(handle)


def decode_handle(data: bytes) -> Handle:
    """Decode a handle that Spark kept in GroupState."""
    try:
        header = _header_decoder.decode(data)
        if header.format_version > HANDLE_FORMAT_VERSION:
            raise CorruptFileError(
                f"handle format {header.format_version} of operator {header.uid!r} is "
                f"newer than this library's {HANDLE_FORMAT_VERSION}: upgrade pyspark_ckpt"
            )
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise CorruptFileError(
            f"Spark's state store holds {len(data)} bytes that are not a handle ({exc}): another "
            "program wrote the checkpointLocation, or it is damaged; restore from a checkpoint "
            "into a fresh checkpointLocation"
        ) from exc


def write_initial_handles(
    storage: CoordinatorStorage, handles: Sequence[Handle], time_ms: int
) -> FileReference:
    """Write the handles of all operators as the newest ones; durable on return."""
    newest = _newest(storage)
    path = initial_path(1 if newest is None else newest[0].number + 1, time_ms)
    return storage.write(path, [msgspec.msgpack.encode(list(handles))])


def _newest(storage: CoordinatorStorage) -> tuple[InitialFile, str] | None:
    """Return the file that was made last, with its path."""
    found = [(initial_file(name), f"{SHARED}/{name}") for name in storage.list(SHARED)]
    whole = [(file, path) for file, path in found if file is not None and file.is_whole]
    return max(whole, default=None)


def read_initial_handle(
    storage: WorkerStorage, reference: FileReference, uid: str, subtask: int
) -> Handle | None:
    """Return a subtask's handle, ``None`` if the initial state has no row for the subtask."""
    with storage.open_verified(reference) as file:
        content = file.read()
    handles = _decoded(content, reference.path)
    return next((each for each in handles if (each.uid, each.subtask) == (uid, subtask)), None)


def _decoded(content: bytes, path: str) -> list[Handle]:
    try:
        return msgspec.msgpack.decode(content, type=list[Handle])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise CorruptFileError(
            f"{path} does not hold the handles of an initial state ({exc}): start the query again "
            "to make the initial state again"
        ) from exc


def subtasks_not_woken(
    storage: CoordinatorStorage, uid: str, parallelism: int, handles: Sequence[Handle]
) -> list[int]:
    """Return the subtasks that have an initial state and, after epoch 0, no handle.

    Over Spark Connect this happens if epoch 0 had no task over the stream's rows. The initial
    states are in the storage until the first checkpoint is complete.
    """
    if len(handles) == parallelism:
        return []
    newest = _newest(storage)
    if newest is None:
        return []
    _, path = newest
    begun = {each.subtask for each in _decoded(storage.read(path), path) if each.uid == uid}
    return sorted(begun - {each.subtask for each in handles})


def not_woken(uid: str, subtasks: Sequence[int]) -> str:
    """Return the text of the error for subtasks that did not start from the initial state."""
    return (
        f"operator {uid!r}: subtasks {', '.join(map(str, subtasks))} did not start from the "
        "initialState, because epoch 0 had no task over the stream's rows: start the query at a "
        "fresh checkpointLocation when the stream has rows"
    )


def newest_initial_time_ms(storage: CoordinatorStorage) -> int | None:
    """Return the processing time of the initial states that were made last, ``None`` without any.

    Clocks may go back between two starts, so the times do not say which ones these are.
    """
    newest = _newest(storage)
    return None if newest is None else newest[0].time_ms
