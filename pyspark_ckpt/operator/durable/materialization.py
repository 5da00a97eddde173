"""When a subtask's changelog is materialized: turned into a base snapshot, step by step.

``due -> taken on local disk, pending in the handle -> uploaded in the background -> base``

Every step but the upload is taken at the start of an epoch and is in the handle that the epoch
leaves, so Spark commits, retries and rolls it back with the state. Until a snapshot has become the
base, the old base and all segments remain the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.formats.handle import Handle, PendingSnapshot, Segment
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.durable.local_copy import LocalCopy
from pyspark_ckpt.operator.durable.local_snapshots import (
    DAMAGED,
    LocalSnapshot,
    background_uploads,
    outlives_tasks,
    upload,
)
from pyspark_ckpt.operator.durable.stored_files import make_base
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import BackendCorruptError, find_snapshot_format, snapshot_format_of

MOST_SEGMENTS = 3
"""An epoch waits for the upload once there are so many times the segments that make it due."""

_MOST_REPLAYED_BYTES = 16 * 1024**2
"""A larger changelog is worth a snapshot that shares files with the base, however large that is.

A restart has to apply it, which takes about half a second of a core.
"""

logger = library_logger(__name__)

StartUpload = Callable[[WorkerStorage, LocalSnapshot], None]


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The facts about an epoch at its start.

    `run_id` is the run of the query, the same in all its tasks.
    """

    number: int
    processing_time_ms: int
    run_id: str


def is_due(
    handle: Handle,
    segments: Sequence[Segment],
    since_ms: int | None,
    now_ms: int,
    settings: Materialization,
    *,
    shares_files: bool,
) -> bool:
    """Return whether these segments are worth a new base snapshot.

    Waiting until they are as large as the base keeps all base snapshots together within a constant
    factor of all changes written. If a snapshot shares files with the base, only what the backend
    has rewritten is uploaded, and a restart need not apply so much. A clock that went back only
    delays the period.
    """
    if not segments:
        return False
    changelog_bytes = sum(segment.size_bytes for segment in segments)
    worth_bytes = 0 if handle.base is None else handle.base.size_bytes
    if shares_files:
        worth_bytes = min(worth_bytes, _MOST_REPLAYED_BYTES)
    return (
        changelog_bytes > max(worth_bytes, settings.min_changelog_bytes)
        or len(segments) >= settings.max_segments
        or (since_ms is not None and now_ms - since_ms >= settings.interval_ms)
    )


class Materializer:
    """Brings a subtask's base snapshot forward at the start of an epoch.

    Called by a task on an executor that holds the local copy, which is at the handle's version.

    `start_upload` uploads in the background; if it is ``None``, the epoch waits for the upload.
    """

    def __init__(
        self,
        copy: LocalCopy,
        storage: WorkerStorage,
        settings: Materialization,
        start_upload: StartUpload | None,
    ) -> None:
        self._copy = copy
        self._storage = storage
        self._settings = settings
        self._start_upload = start_upload

    def advance(self, handle: Handle, epoch: EpochStart) -> Handle:
        """Return the handle that the epoch builds on: the same state, perhaps on another base.

        It raises ``OSError`` if the changelog is so long that the epoch must wait for an upload,
        and the upload fails.
        """
        if self._copy.is_private:  # its snapshots would go with it
            return self._make_base(handle, epoch) if self._must_wait(handle) else handle
        kept = _used_snapshots(handle)
        if handle.pending is not None:
            handle = self._advance_pending(handle, handle.pending, epoch)
        if handle.pending is None and self._are_due(
            handle, handle.segments, handle.changelog_since_ms, epoch
        ):
            handle = self._take_snapshot(handle, epoch)
        self._copy.snapshots.keep_only(
            kept | _used_snapshots(handle)
        )  # a retry starts where this did
        if handle.changelog_since_ms is None:
            handle = msgspec.structs.replace(handle, changelog_since_ms=epoch.processing_time_ms)
        return handle

    def _are_due(
        self, handle: Handle, segments: Sequence[Segment], since_ms: int | None, epoch: EpochStart
    ) -> bool:
        own = snapshot_format_of(self._copy.backend_type)
        shares_files = (
            own is not None and handle.base is not None and handle.base.format == own.name
        )
        now_ms = epoch.processing_time_ms
        return is_due(handle, segments, since_ms, now_ms, self._settings, shares_files=shares_files)

    def _must_wait(self, handle: Handle) -> bool:
        return len(handle.segments) >= MOST_SEGMENTS * self._settings.max_segments

    def _take_snapshot(self, handle: Handle, epoch: EpochStart) -> Handle:
        """Take a snapshot of the version that the epoch starts from."""
        snapshot = self._copy.snapshots.take(
            self._copy.backend, self._copy.backend_type, handle, epoch.number
        )
        pending = PendingSnapshot(
            snapshot.directory.name,
            handle.version,
            epoch.number,
            epoch.processing_time_ms,
            epoch.run_id,
        )
        handle = msgspec.structs.replace(handle, pending=pending)
        return self._upload_or_use(handle, pending, snapshot)

    def _advance_pending(
        self, handle: Handle, pending: PendingSnapshot, epoch: EpochStart
    ) -> Handle:
        snapshot = self._copy.snapshots.find(pending.snapshot_id)
        if snapshot is not None:
            return self._upload_or_use(handle, pending, snapshot)
        since = handle.segments_since(pending.version)
        is_overtaken = pending.run_id != epoch.run_id or self._are_due(
            handle, since or (), pending.taken_at_ms, epoch
        )
        # It may be on another executor, to which the subtask may return.
        return _without_pending(handle) if since is None or is_overtaken else handle

    def _upload_or_use(
        self, handle: Handle, pending: PendingSnapshot, snapshot: LocalSnapshot
    ) -> Handle:
        """Make a local pending snapshot the base if it is uploaded; otherwise upload it."""
        if snapshot.note().missing:
            if self._start_upload is not None and not self._must_wait(handle):
                self._start_upload(self._storage, snapshot)
                return handle
            try:
                upload(self._storage, snapshot)
            except BackendCorruptError as exc:
                logger.error(DAMAGED, snapshot.directory, exc)
                return _without_pending(handle)
        base = snapshot.note().base()
        since = handle.segments_since(pending.version)
        lost = [each.file for each in base.files if not self._storage.exists(each.file.path)]
        if lost:
            logger.warning(
                "snapshot %s is not used, because its file %s is missing",
                base.snapshot_id,
                lost[0].path,
            )
            return _without_pending(handle)
        if since is None or base.version != pending.version:
            return _without_pending(handle)
        return msgspec.structs.replace(
            handle,
            base=base,
            segments=since,
            pending=None,
            changelog_since_ms=pending.taken_at_ms,
        )

    def _make_base(self, handle: Handle, epoch: EpochStart) -> Handle:
        base = make_base(self._storage, self._copy.backend, handle, epoch.number)
        return msgspec.structs.replace(
            handle,
            base=base,
            segments=(),
            pending=None,
            changelog_since_ms=epoch.processing_time_ms,
        )


def materializer(
    copy: LocalCopy, storage: WorkerStorage, settings: Materialization
) -> Materializer:
    """Return a materializer; it uploads in the background if this worker outlives its task."""
    start_upload = background_uploads.start if outlives_tasks() else None
    return Materializer(copy, storage, settings, start_upload)


def _used_snapshots(handle: Handle) -> set[str]:
    """Return the ids of the local snapshots that a handle has a use for."""
    pending = set() if handle.pending is None else {handle.pending.snapshot_id}
    if handle.base is None or find_snapshot_format(handle.base.format) is None:
        return pending
    return {handle.base.snapshot_id, *pending}


def _without_pending(handle: Handle) -> Handle:
    return msgspec.structs.replace(handle, pending=None)
