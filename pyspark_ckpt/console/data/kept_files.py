"""Whether files are left on the store that nothing needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from pyspark_ckpt.checkpoint.cleaning import garbage_of
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import SHARED, TASK_OWNED, state_file
from pyspark_ckpt.storage.corrupt_file import JSON_ERRORS
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.reader_pins import pinned_files

KEPT_FILES_NAME = "_files.json"
"""What a bundle has beside a query's checkpoints, because it has no data files."""

CHECKPOINTS_READ = 100
FILES_MEASURED = 200
"""Unneeded files whose sizes and ages are looked up, one by one."""


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """A file that nothing needs.

    `changed_at_ms` is known on this machine only, `epoch` if the file's name has one.
    """

    path: str
    size_bytes: int | None
    changed_at_ms: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """The data files of a query.

    `unneeded` are files that no retained checkpoint, reader or later epoch needs; the next
    checkpoint deletes them. `measured` are the first of them, and `unneeded_bytes` is the size of
    these. `problem` says why the files could not be judged.
    """

    files: int
    needed: int
    recent: int
    unneeded: tuple[str, ...]
    unneeded_bytes: int
    problem: str | None = None
    measured: tuple[MeasuredFile, ...] = ()


def kept_files(
    place: QueryPlace, *, most_checkpoints: int = CHECKPOINTS_READ, measures: bool = True
) -> KeptFiles:
    """Return which data files of a query are needed.

    If more than `most_checkpoints` checkpoints are retained, the files are not judged. Without
    `measures`, sizes and ages of unneeded files are not looked up.
    """
    storage = place.checkpoints
    needed: set[str] = set()
    with retained_checkpoints(storage) as found:
        numbers = found.newest(most_checkpoints + 1)
        names = {f"{top}/{name}" for top in (SHARED, TASK_OWNED) for name in storage.list(top)}
        if not numbers or len(numbers) > most_checkpoints:
            why = "there is no checkpoint yet" if not numbers else "too many checkpoints to read"
            return KeptFiles(len(names), 0, 0, (), 0, why)
        newest = None
        for number in numbers:
            metadata = found.read(number)
            if isinstance(metadata, CkptError):
                return KeptFiles(len(names), 0, 0, (), 0, str(metadata))
            newest = newest or metadata
            needed.update(reference.path for reference in metadata.files())
    assert newest is not None  # there is a checkpoint
    needed |= pinned_files(storage, now_ms())
    unneeded = sorted(garbage_of(storage, newest, needed))
    measured = [_measured(storage, path) for path in unneeded[:FILES_MEASURED] if measures]
    return KeptFiles(
        files=len(names),
        needed=len(names & needed),
        recent=len(names - needed - set(unneeded)),
        unneeded=tuple(unneeded),
        unneeded_bytes=sum(each.size_bytes or 0 for each in measured),
        measured=tuple(measured),
    )


def _measured(storage: Storage, path: str) -> MeasuredFile:
    """Return what a store says of a file without opening it."""
    file = state_file(PurePosixPath(path).name)
    local = storage.local_path(path)
    try:
        changed_at_ms = None if local is None else local.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:  # deleted meanwhile
        changed_at_ms = None
    return MeasuredFile(
        path, storage.size_bytes(path), changed_at_ms, None if file is None else file.epoch
    )


def encode_kept_files(place: QueryPlace) -> bytes:
    """Return which data files of a query are needed now, for a bundle."""
    try:
        found = kept_files(place)
    except (OSError, CkptError) as exc:
        found = _unknown(str(exc))
    return msgspec.json.encode(found)


def bundled_kept_files(place: QueryPlace) -> KeptFiles:
    """Return which data files of a query were needed when its bundle was made."""
    try:
        return msgspec.json.decode(place.checkpoints.read(KEPT_FILES_NAME), type=KeptFiles)
    except FileNotFoundError:
        return _unknown("the bundle does not say it: an earlier version made the bundle")
    except JSON_ERRORS as exc:
        return _unknown(f"the bundle is damaged ({exc}): make it again with `pyspark-ckpt bundle`")


def _unknown(problem: str) -> KeptFiles:
    return KeptFiles(0, 0, 0, (), 0, problem)
