"""Divides databases among more subtasks as files: only timers are read entry by entry.

If each new subtask takes over a part of one old subtask, its state is the old database without the
key groups of others. So the files of the old subtasks are copied once. Each new subtask opens them,
deletes the ranges of the other key groups, and stores the few files that this wrote. The new
subtasks have files in common until their databases merge them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import (
    BaseFile,
    BaseSnapshot,
    Handle,
    StateDescriptor,
    decode_handle,
    encode_handle,
    new_version,
)
from pyspark_ckpt.formats.layout import new_snapshot_id, snapshot_path
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.durable.base_snapshot import fetch_files, open_fetched
from pyspark_ckpt.operator.durable.local_copy import executor_local_root
from pyspark_ckpt.operator.durable.local_version import segment_changes
from pyspark_ckpt.operator.rescale.entries import earliest_timer_ms
from pyspark_ckpt.operator.rescale.unify import UnifiedStates
from pyspark_ckpt.operator.rows.key_groups import key_groups_of
from pyspark_ckpt.operator.table.stored_keys import (
    KEY_GROUP_BYTES,
    OPERATOR_STATE,
    TIME_BYTES,
    TIME_INDEX,
    encode_key_group,
)
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.storage.chunks import chunks_of
from pyspark_ckpt.storage.open import Storage, open_storage
from state_backends import BackendCorruptError, StateBackend, find_snapshot_format

DIVIDED_SCHEMA = "handle binary"

_MEMORY_BYTES = 16 << 20
"""Memory for the timers that are deleted; more go to disk."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one new subtask takes over.

    Parameters
    ----------
    first
        The handle of the new subtask without state.
    stored
        The handle of the old subtask that has its key groups.
    base
        The old subtask's base snapshot, whose files are copied into the new query's directory.
    """

    first: Handle
    stored: Handle
    base: BaseSnapshot


def shares_of(
    handles: Sequence[Handle],
    bases: Sequence[BaseSnapshot],
    operator: OperatorDescriptor,
    query_id: str,
    epoch: int,
) -> list[Share]:
    """Return what each new subtask takes over; without those that get no state.

    Parameters
    ----------
    handles
        The handles of the old subtasks, for which :func:`can_be_divided` is true.
    bases
        Their base snapshots in the new query's directory.
    operator
        The new operator.
    query_id
        The new query's.
    epoch
        The epoch that the new handles are of.
    """
    return [
        Share(operator.first_handle(query_id, subtask, epoch), handle, base)
        for subtask in range(operator.parallelism)
        for handle, base in zip(handles, bases, strict=True)
        if _overlap(subtask, operator, handle)
    ]


def can_be_divided(
    handles: Sequence[Handle], operator: OperatorDescriptor, states: UnifiedStates
) -> bool:
    """Return whether every new subtask gets a part of one database, with its entries as they are.

    State that belongs to a subtask and not to a key is not known from the handles: see
    :func:`divided`.
    """
    return all(
        handle.max_parallelism == operator.max_parallelism
        and handle.base is not None
        and (files_format := find_snapshot_format(handle.base.format)) is not None
        and files_format.deletes_ranges
        and states.are_those_of(handle)
        for handle in handles
    ) and all(
        sum(_overlap(subtask, operator, handle) for handle in handles) <= 1
        for subtask in range(operator.parallelism)
    )


def _overlap(subtask: int, operator: OperatorDescriptor, handle: Handle) -> bool:
    new = key_groups_of(subtask, operator.parallelism, operator.max_parallelism)
    old = key_groups_of(handle.subtask, handle.parallelism, handle.max_parallelism)
    return new.start < old.stop and old.start < new.stop


class DivideSubtasks:
    """The function given to ``mapInArrow`` over the numbers of shares: yields the new handles.

    Parameters
    ----------
    shares
        What the new subtasks take over.
    source_root, target_root
        The directories of the old subtasks' segments, and of the new query's files.
    states
        The states that the new subtasks have.
    has_same_clock
        Whether timers follow the same time as they did.
    """

    def __init__(
        self,
        shares: Sequence[Share],
        source_root: str,
        target_root: str,
        states: tuple[StateDescriptor, ...],
        *,
        has_same_clock: bool,
    ) -> None:
        self._shares = [
            (encode_handle(share.first), encode_handle(share.stored), share.base)
            for share in shares
        ]
        self._source_root = source_root
        self._target_root = target_root
        self._states = states
        self._has_same_clock = has_same_clock

    @marks_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the handle of each new subtask, whose files are durable.

        A missing handle says that the subtask has state that belongs to no key.
        """
        source, target = open_storage(self._source_root), open_storage(self._target_root)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first, stored, base = self._shares[number]
                share = Share(decode_handle(first), decode_handle(stored), base)
                root = executor_local_root(share.first.subtask)
                with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-", dir=root) as scratch:
                    handle = divided(
                        share,
                        source,
                        target,
                        self._states,
                        Path(scratch),
                        has_same_clock=self._has_same_clock,
                    )
                encoded = None if handle is None else encode_handle(handle)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([encoded], pa.binary())], names=["handle"]
                )


def divided(
    share: Share,
    source: Storage,
    target: Storage,
    states: tuple[StateDescriptor, ...],
    scratch: Path,
    *,
    has_same_clock: bool,
) -> Handle | None:
    """Store a new subtask's part of a database durably, and return its handle.

    Called by a task on an executor.

    Parameters
    ----------
    share
        The part.
    source, target
        The directory of the old subtask's segments, and that of the new query.
    states
        The operator's states.
    scratch
        A directory for the length of the call.
    has_same_clock
        Whether timers follow the same time as they did.

    Returns
    -------
    Handle or None
        ``None`` if the old subtask has operator list, broadcast or raw state, which other
        subtasks get too.

    Raises
    ------
    CorruptFileError
        If a file is missing or changed.
    """
    first, base = share.first, share.base
    files_format = find_snapshot_format(base.format)
    assert files_format is not None  # as `can_be_divided` says
    place, snapshot = scratch / "files", scratch / "snapshot"
    # The restore has just copied and checked these files. Whoever reads the result checks them too.
    fetch_files(target, base, files_format, place, in_place=True, checked=True)
    groups = key_groups_of(first.subtask, first.parallelism, first.max_parallelism)
    version = new_version(first.epoch)
    others = [
        (encode_key_group(0), encode_key_group(groups.start)),
        (encode_key_group(groups.stop), TIME_INDEX),
    ]
    try:
        with open_fetched(place, base) as backend:
            if share.stored.segments:
                backend.apply(segment_changes(source, share.stored.segments), version)
            if next(backend.scan(start=OPERATOR_STATE), None) is not None:
                return None
            backend.delete_ranges([(start, end) for start, end in others if start < end], version)
            earliest_ms = _delete_timers(backend, groups, version, scratch)
            names = backend.snapshot_files(snapshot)
    except BackendCorruptError as exc:
        raise CorruptFileError(
            f"the base snapshot of operator {first.uid!r}, subtask {share.stored.subtask} cannot "
            f"be divided: {exc}; restore from another checkpoint"
        ) from exc
    stored = {each.name: each for each in base.files}
    snapshot_id = new_snapshot_id()
    files = []
    for name in names:
        path = snapshot / name
        before = stored.get(name)
        if before is None or not files_format.is_immutable(name):
            if files_format.is_immutable(name):
                files_format.check_file(path)
            new = snapshot_path(first.uid, first.subtask, first.epoch, snapshot_id)
            with path.open("rb") as file:
                before = BaseFile(name, target.write(new, chunks_of(file)))
        files.append(before)
    return Handle(
        query_id=first.query_id,
        uid=first.uid,
        subtask=first.subtask,
        parallelism=first.parallelism,
        max_parallelism=first.max_parallelism,
        epoch=first.epoch,
        key_schema=first.key_schema,
        states=states,
        base=BaseSnapshot(
            version, first.epoch, None, tuple(files), base.format, snapshot_id=snapshot_id
        ),
        time_mode=first.time_mode,
        # As at a barrier: Spark calls when its clock has passed the timeout.
        timeout_ms=earliest_ms - 1 if has_same_clock and earliest_ms is not None else None,
    )


def _delete_timers(backend: StateBackend, groups: range, version: str, scratch: Path) -> int | None:
    """Delete the timers of other key groups in the order of time; return the earliest time left."""
    start = len(TIME_INDEX) + TIME_BYTES
    earliest_ms: int | None = None
    deleted = EpochWrites(_MEMORY_BYTES, scratch)
    try:
        for key, _ in backend.scan(TIME_INDEX):
            if int.from_bytes(key[start : start + KEY_GROUP_BYTES], "big") not in groups:
                deleted.add(key, None)
            elif earliest_ms is None:
                earliest_ms = earliest_timer_ms(key)
        if len(deleted) > 0 or deleted.is_spilled:
            backend.apply(deleted.all_in_order(), version)
    finally:
        deleted.close()
    return earliest_ms
