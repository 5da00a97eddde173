"""How a local copy gets to the version that a handle names.

==================================================  ==============================================
The copy's version                                  What is done
==================================================  ==============================================
is in the handle's lineage                          the segments that follow are applied
is in the lineage, and a part of what follows is    the segments that follow are applied again
applied, because a process was killed
is any other                                        the copy is rebuilt from durable files
==================================================  ==============================================
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path

from pyspark_ckpt.formats.change_file import decode_changes
from pyspark_ckpt.formats.handle import (
    EMPTY_VERSION,
    BaseSnapshot,
    Handle,
    Segment,
)
from pyspark_ckpt.gathering import gathered
from pyspark_ckpt.operator.durable.base_snapshot import fetch_files, open_fetched, read_base
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshots, directories_of_all
from pyspark_ckpt.storage.base import WorkerStorage
from state_backends import (
    BackendCorruptError,
    BackendResourceError,
    Changes,
    SnapshotFormat,
    StateBackend,
    StateBackendError,
    open_backend,
    snapshot_format_of,
)

_GROUP_BYTES = 64 << 20
"""Segments of about 64 MiB are applied together: a kill loses the work of one group at most."""


def at_version(
    place: Path,
    backend_type: str,
    storage: WorkerStorage,
    handle: Handle | None,
    snapshots: LocalSnapshots,
    scratch: Path,
    root: Path | None = None,
) -> tuple[StateBackend, bool]:
    """Return the backend, and whether it had to be rebuilt from durable files.

    `handle` is ``None`` for a subtask that has no state yet. `scratch` is made if it does not
    exist.
    """
    base = None if handle is None else handle.base
    try:
        if snapshots.is_any_damaged():  # it shares its files with the local copy
            raise BackendCorruptError(f"a snapshot beside {place} is damaged")
        backend = _existing_at_version(place, backend_type, storage, handle)
        if backend is not None:
            return backend, False
    except BackendResourceError:
        raise  # it would not be any better for another copy
    except StateBackendError:  # a damaged copy is replaced like an outdated one
        snapshots.keep_only(() if base is None else {base.snapshot_id})  # it has digests
    own = snapshot_format_of(backend_type)
    if base is not None and own is not None and base.format == own.name:
        assert handle is not None  # it has the base
        return _rebuild_from_files(place, storage, handle, base, own, snapshots, root), True
    shutil.rmtree(place, ignore_errors=True)
    # The first segment goes into a new backend as it would into an empty one.
    had_more = handle is not None and (base is not None or len(handle.segments) > 1)
    return _rebuild(place, backend_type, storage, handle, scratch), had_more


def _existing_at_version(
    place: Path, backend_type: str, storage: WorkerStorage, handle: Handle | None
) -> StateBackend | None:
    """Open the existing copy; ``None`` without one, or if it cannot get to the version."""
    if not place.is_dir():
        return None
    backend = open_backend(backend_type, place, create=False)
    try:
        if _catch_up(backend, storage, handle):
            return backend
    except BaseException:
        backend.close()
        raise
    backend.close()
    return None


def _catch_up(backend: StateBackend, storage: WorkerStorage, handle: Handle | None) -> bool:
    """Apply the segments that a copy lacks; ``False`` if it is not in the handle's lineage."""
    lineage = (EMPTY_VERSION,) if handle is None else handle.lineage
    version = _complete_version(backend, lineage)
    if version is None:
        return False
    if version == EMPTY_VERSION and lineage[-1] != EMPTY_VERSION:
        # A rebuild costs no more. It leaves RocksDB no tiny oldest file, because of which RocksDB
        # would soon rewrite all other files.
        return False
    if handle is not None:
        for group in _groups(handle.segments[lineage.index(version) :]):
            backend.apply(segment_changes(storage, group), group[-1].version)
    return True


def _complete_version(backend: StateBackend, lineage: Sequence[str]) -> str | None:
    """Return the version of a lineage that a copy has, perhaps with a part of what follows.

    A part of what follows does no harm if all of that is applied once more: segments never change,
    so each of them puts and deletes the same entries again.
    """
    version = backend.version()
    half = backend.half_applied()
    if half is not None and half.before in lineage:
        follows = lineage[lineage.index(half.before) + 1 :]
        version = half.before if half.after in follows else None
    return version if version in lineage else None


def _groups(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Divide segments into groups that are worth a step of their own."""
    return gathered(segments, _GROUP_BYTES, attrgetter("size_bytes"))


def _rebuild(
    place: Path, backend_type: str, storage: WorkerStorage, handle: Handle | None, scratch: Path
) -> StateBackend:
    with _whole_or_gone(place):
        backend = open_backend(backend_type, place, create=True)
        try:
            _fill(backend, storage, handle, scratch)
        except BaseException:
            with suppress(StateBackendError):
                backend.close()
            raise
    return backend


def _fill(
    backend: StateBackend, storage: WorkerStorage, handle: Handle | None, scratch: Path
) -> None:
    groups = _groups(() if handle is None else handle.segments)
    if handle is not None and handle.base is not None:
        scratch.mkdir(exist_ok=True)
        backend.load(read_base(storage, handle.base, scratch), handle.base.version)
    elif (first := next(groups, None)) is not None:
        backend.load(segment_changes(storage, first), first[-1].version)
    else:
        backend.load((), EMPTY_VERSION)
    for group in groups:
        backend.apply(segment_changes(storage, group), group[-1].version)


@contextmanager
def _whole_or_gone(directory: Path) -> Iterator[None]:
    """Remove an incomplete directory after a failure, because it may have filled the disk."""
    try:
        yield
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _rebuild_from_files(
    place: Path,
    storage: WorkerStorage,
    handle: Handle,
    base: BaseSnapshot,
    own: SnapshotFormat,
    snapshots: LocalSnapshots,
    root: Path | None,
) -> StateBackend:
    """Build a backend from the files of its snapshot; fetch the files that are not here.

    The query that a fork comes from, or the subtask that it had before a rescale, may have them.
    """
    here = [path for path in (*place.glob("*"), *snapshots.all_files()) if path.is_file()]
    others: Callable[[], list[Path]] = list if root is None else partial(directories_of_all, root)
    kept = snapshots.keep_base(
        base, handle, lambda files: fetch_files(storage, base, own, files, here, others)
    )
    building = place.with_name(f"{place.name}.new")
    shutil.rmtree(building, ignore_errors=True)  # of an attempt that was killed
    with _whole_or_gone(building):
        kept.copy_to(building, own)
    shutil.rmtree(place, ignore_errors=True)
    building.rename(place)
    backend = open_fetched(place, base)
    try:
        is_at_version = _catch_up(backend, storage, handle)
        assert is_at_version  # the base is the first of the lineage
    except BaseException:
        backend.close()
        raise
    return backend


def segment_changes(storage: WorkerStorage, segments: Sequence[Segment]) -> Iterator[Changes]:
    """Yield the puts and deletes of segments in their order, each checked by its digest."""
    for segment in segments:
        if segment.inline is not None:
            name = f"inline segment {segment.version}"
            yield from decode_changes(io.BytesIO(segment.inline), name)
        else:
            assert segment.file is not None  # a segment is inline or in a file
            with storage.open_verified(segment.file) as file:
                yield from decode_changes(file, segment.file.path)
