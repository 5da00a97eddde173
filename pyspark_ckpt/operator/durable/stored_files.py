"""The files that a handle names: a base snapshot, and the segments of changes after it.

A base snapshot is a full copy of a subtask's state: a change file, a canonical file, or the files
of the backend that took it. Every backend can be built from each of them. To read the state that
base and segments are together is the work of ``stored``, or of a backend.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.canonical_file import decode_canonical
from pyspark_ckpt.formats.change_file import EntryCount, decode_changes, encode_changes
from pyspark_ckpt.formats.handle import (
    CANONICAL_FORMAT,
    CHANGES_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
    Segment,
)
from pyspark_ckpt.formats.layout import base_path
from pyspark_ckpt.operator.table.writes import frames_of
from pyspark_ckpt.storage.base import CHUNK_BYTES, FileReference, WorkerStorage, sha256_of
from state_backends import (
    BackendCorruptError,
    Changes,
    SnapshotFormat,
    StateBackend,
    find_snapshot_format,
    open_snapshot,
)

CHANGES_NAME = "state.chg"


def make_base(
    storage: WorkerStorage, backend: StateBackend, handle: Handle, epoch: int
) -> BaseSnapshot:
    """Write all state of a backend, which is at the handle's version, as a new base snapshot.

    The file is durable on return and works for every backend.
    """
    count = EntryCount()
    content = encode_changes(count.through(frames_of(backend)))
    file = storage.write(base_path(handle.uid, handle.subtask, epoch), content)
    files = (BaseFile(CHANGES_NAME, file),)
    return BaseSnapshot(version=handle.version, epoch=epoch, entries=count.entries, files=files)


def read_base(
    storage: WorkerStorage, base: BaseSnapshot, directory: Path | None = None
) -> Iterator[Changes]:
    """Yield all state of a base snapshot of any backend.

    A database is put into `directory` for as long as it is read; by default the system chooses the
    place.
    """
    if base.format == CHANGES_FORMAT:
        for each in base.files:
            with storage.open_verified(each.file) as file:
                yield from decode_changes(file, each.file.path)
    elif base.format == CANONICAL_FORMAT:
        counted = -1 if base.entries is None else base.entries  # it always is
        for each in base.files:
            with storage.open_verified(each.file) as file:
                yield from decode_canonical(file, each.file.path, counted)
    elif (files_format := find_snapshot_format(base.format)) is not None:
        with tempfile.TemporaryDirectory(prefix="base-", dir=directory) as temporary:
            place = Path(temporary) / "files"
            fetch_files(storage, base, files_format, place, in_place=True)
            with open_fetched(place, base, read_only=True) as backend:
                yield from frames_of(backend)
    else:
        raise CorruptFileError(
            f"base snapshot {base.version} below {storage.url} has the format {base.format!r}, "
            "which this library does not know: upgrade pyspark_ckpt"
        )


def fetch_files(
    storage: WorkerStorage,
    base: BaseSnapshot,
    files_format: SnapshotFormat,
    directory: Path,
    local_files: Iterable[Path] = (),
    other_directories: Callable[[], Iterable[Path]] = tuple,
    *,
    in_place: bool = False,
    checked: bool = False,
) -> None:
    """Put the files of a backend's snapshot into a new directory.

    Every file has the size and the digest that were written.

    `directory` is made here. Files of the snapshot among `local_files`, and large files in the
    directories that `other_directories` returns, are not read from the storage; these directories
    may be removed during the call. `in_place` allows links to the storage's files, so the caller
    must only read them, and not for long; `checked` requires that the caller's job wrote the files
    a moment ago, because only their size is compared.
    """
    directory.mkdir()
    names = [each.name for each in base.files]
    strange = [name for name in names if not files_format.is_file(name) or names.count(name) > 1]
    if strange:
        raise CorruptFileError(
            f"base snapshot {base.version} below {storage.url} has files {strange!r}, which no "
            "database has; restore from another checkpoint"
        )
    by_size: dict[int, list[Path]] = defaultdict(list)
    for path in local_files:
        by_size[path.stat().st_size].append(path)
    others: list[Path] | None = None
    for each in base.files:
        target = directory / each.name
        own = storage.local_path(each.file.path) if in_place else None
        candidates = by_size[each.file.size_bytes] if own is None else [own]
        is_it = _has_size if checked and own is not None else _is
        found = next((path for path in candidates if is_it(path, each.file)), None)
        is_linked = files_format.is_immutable(each.name)
        if found is None and is_linked:
            others = list(other_directories()) if others is None else others
            found = next((path for path in others if _is(path / each.name, each.file)), None)
            found = None if found is None else found / each.name
        if found is None or not _link_or_copy(found, target, is_linked=is_linked):
            with storage.open_verified(each.file) as source, target.open("xb") as file:
                shutil.copyfileobj(source, file, CHUNK_BYTES)


def open_fetched(place: Path, base: BaseSnapshot, *, read_only: bool = False) -> StateBackend:
    """Open the files of a backend's snapshot, which become the backend's own."""
    try:
        backend = open_snapshot(base.format, place, read_only=read_only)
    except BackendCorruptError as exc:
        raise _not_a_database(base, str(exc)) from exc
    try:
        version = backend.version()
    except BackendCorruptError as exc:
        backend.close()
        raise _not_a_database(base, str(exc)) from exc
    if version != base.version:
        backend.close()
        raise _not_a_database(base, f"its database is at version {version!r}")
    return backend


def _link_or_copy(found: Path, target: Path, *, is_linked: bool) -> bool:
    """Link or copy a local file; ``False`` if it has been removed in the meantime."""
    try:
        if is_linked:
            with suppress(OSError):  # another file system, or a file of another user
                target.hardlink_to(found)
                return True
        shutil.copyfile(found, target)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
        return False
    return True


def _has_size(path: Path, reference: FileReference) -> bool:
    try:
        return path.stat().st_size == reference.size_bytes
    except FileNotFoundError:
        return False


def _is(path: Path, reference: FileReference) -> bool:
    try:
        with path.open("rb") as file:
            return _has_size(path, reference) and sha256_of(file) == reference.sha256
    except FileNotFoundError:
        return False


def _not_a_database(base: BaseSnapshot, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"base snapshot {base.version} cannot be used: {what}; restore from another checkpoint"
    )


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
