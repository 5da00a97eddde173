"""Whether files are left on the store that nothing needs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pyspark_ckpt.checkpoint.cleaning import garbage_of
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import SHARED, TASK_OWNED
from pyspark_ckpt.storage.corrupt_file import JSON_ERRORS
from pyspark_ckpt.stores.reader_pins import pinned_files

KEPT_FILES_NAME = "_files.json"
"""What a bundle has beside a query's checkpoints, because it has no data files."""

CHECKPOINTS_READ = 100
_MEASURED = 200


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """The data files of a query.

    `unneeded` are files that no retained checkpoint, reader or later epoch needs; the next
    checkpoint deletes them. `unneeded_bytes` is their size, of the first ones if there are many.
    `problem` says why the files could not be judged.
    """

    files: int
    needed: int
    recent: int
    unneeded: tuple[str, ...]
    unneeded_bytes: int
    problem: str | None = None


def kept_files(place: QueryPlace) -> KeptFiles:
    """Return which data files of a query are needed.

    Parameters
    ----------
    place
        The query.
    """
    storage = place.checkpoints
    names = {f"{top}/{name}" for top in (SHARED, TASK_OWNED) for name in storage.list(top)}
    needed: set[str] = set()
    with retained_checkpoints(storage) as found:
        numbers = found.newest(CHECKPOINTS_READ + 1)
        if not numbers or len(numbers) > CHECKPOINTS_READ:
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
    sizes = (storage.size_bytes(path) or 0 for path in unneeded[:_MEASURED])
    return KeptFiles(
        files=len(names),
        needed=len(names & needed),
        recent=len(names - needed - set(unneeded)),
        unneeded=tuple(unneeded),
        unneeded_bytes=sum(sizes),
    )


def encode_kept_files(place: QueryPlace) -> bytes:
    """Return which data files of a query are needed now, for a bundle."""
    try:
        found = kept_files(place)
    except (OSError, CkptError) as exc:
        found = _unknown(str(exc))
    return msgspec.json.encode(found)


def bundled_kept_files(place: QueryPlace) -> KeptFiles:
    """Return which data files of a query were needed when its bundle was made.

    Parameters
    ----------
    place
        The query, unpacked from a bundle.
    """
    try:
        return msgspec.json.decode(place.checkpoints.read(KEPT_FILES_NAME), type=KeptFiles)
    except FileNotFoundError:
        return _unknown("the bundle does not say it: an earlier version made the bundle")
    except JSON_ERRORS as exc:
        return _unknown(f"the bundle is damaged ({exc}): make it again with `pyspark-ckpt bundle`")


def _unknown(problem: str) -> KeptFiles:
    return KeptFiles(0, 0, 0, (), 0, problem)
