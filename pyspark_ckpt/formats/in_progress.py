"""The ``_in_progress`` file: a savepoint that is being taken, and which files belong to it.

It is written before the first file of the savepoint, and removed after ``_metadata`` is written. If
it exists without ``_metadata``, the driver is still at work, or it ended before the savepoint was
complete.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pyspark_ckpt.clock import utc_text
from pyspark_ckpt.errors import CorruptFileError, UnsafePathError
from pyspark_ckpt.formats.layout import (
    IN_PROGRESS_NAME,
    METADATA_NAME,
    SHARED,
    TASK_OWNED,
    is_canonical_of,
    written_path,
)
from pyspark_ckpt.formats.metadata_check import MAX_FILES, check_path
from pyspark_ckpt.storage.base import CoordinatorStorage, corrupt_file

DISPOSED = b"this savepoint was not complete and is being disposed of\n"
"""The content of ``_metadata`` during a disposal, so that the savepoint cannot be completed."""

OWN_DIRECTORIES = (SHARED, TASK_OWNED)
"""Where the files of a savepoint are, besides ``_metadata``."""

_FORMAT = 1
_MAX_BYTES = 1 << 28


class InProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A savepoint that is not complete.

    `run` is a name that no other start of the query has. `files` are the names of copied files,
    which are known before. Files that are made for the savepoint have `token` in their names.
    """

    query_id: str
    run: str
    epoch: int
    began_at_ms: int
    token: str
    files: tuple[str, ...] = ()
    format: int = _FORMAT

    def own_of(self, paths: Iterable[str]) -> list[str]:
        """Return the paths whose files, whole or not, belong to this savepoint."""
        known = frozenset(self.files)

        def is_own(path: str) -> bool:
            written = written_path(path)
            return written in known or is_canonical_of(written, self.token)

        return [path for path in paths if is_own(path)]

    def description(self) -> str:
        """Return the savepoint as errors describe it."""
        return (
            f"a savepoint of query {self.query_id[:80]}, epoch {self.epoch}, begun at "
            f"{utc_text(self.began_at_ms)}"
        )


def encode_in_progress(savepoint: InProgress) -> bytes:
    """Return the bytes of an ``_in_progress`` file."""
    return msgspec.json.encode(savepoint)


def read_in_progress(storage: CoordinatorStorage) -> InProgress | None:
    """Read the ``_in_progress`` file of a directory, ``None`` if there is no such file."""
    size_bytes = storage.size_bytes(IN_PROGRESS_NAME)
    if size_bytes is None:
        return None
    name = storage.url_of(IN_PROGRESS_NAME)
    if size_bytes > _MAX_BYTES:
        raise _corrupt(name, f"it is larger than {_MAX_BYTES} bytes")
    try:
        found = msgspec.json.decode(storage.read(IN_PROGRESS_NAME), type=InProgress)
    except FileNotFoundError:  # the savepoint was completed a moment ago
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _corrupt(name, str(exc)) from exc
    if found.format != _FORMAT:
        raise _corrupt(
            name, f"this version does not know format {found.format}; upgrade pyspark_ckpt"
        )
    if not 0 <= found.began_at_ms < _END_OF_TIME_MS or len(found.files) > MAX_FILES:
        raise _corrupt(name, "its time or its number of files is impossible")
    for path in found.files:
        check_path(path, name)
        if path.partition("/")[0] not in OWN_DIRECTORIES or "/" not in path:
            raise UnsafePathError(
                f"{name} names {path!r}, which is not a file of a savepoint: it is damaged or "
                "hostile, so nothing was deleted; look at its directory, and delete it by hand"
            )
    return found


def is_disposed(storage: CoordinatorStorage) -> bool:
    """Return whether the ``_metadata`` of a directory is that of a disposal."""
    size_bytes = storage.size_bytes(METADATA_NAME)
    return size_bytes == len(DISPOSED) and storage.read(METADATA_NAME) == DISPOSED


_END_OF_TIME_MS = 253_402_300_800_000
"""The first millisecond after the year 9999, the last year of Python's calendar."""


def _corrupt(name: str, what: str) -> CorruptFileError:
    return corrupt_file(name, what, "look at its directory, and delete it by hand")
