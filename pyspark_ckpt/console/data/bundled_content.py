"""What a bundle has of a query or a savepoint: its records, without data and keys.

The most important members come first, and the kinds take turns. If not all of many queries fits
into a bundle, it has the newest of each kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator

import msgspec

from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.kept_files import KEPT_FILES_NAME, encode_kept_files
from pyspark_ckpt.console.data.places import QueryPlace, SavepointPlace
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import (
    AUTHOR_NAME,
    BUNDLED_MARK,
    CHECKPOINTS_DIRECTORY,
    HISTORY,
    METADATA_NAME,
    ROLLED_BACK_NAME,
    SHARED,
    checkpoint_name,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.formats.origin import ORIGIN_NAME
from pyspark_ckpt.history.log import KEPT
from pyspark_ckpt.history.run_log import KEPT_RUNS
from pyspark_ckpt.history.run_record import (
    MAX_RECORD_BYTES,
    RUNS,
    RunNote,
    decode_run_record,
    encode_run_record,
    run_record_kind,
    without_slow_keys,
)
from pyspark_ckpt.storage.open import Storage

CHECKPOINTS_KEPT = 100
EPOCHS_KEPT = 20
NOTES_KEPT = 1000

Members = dict[str, bytes]
"""Files that are of use only together, by their names."""


def of_query(query: QueryPlace) -> Generator[Members, None, None]:
    """Yield what a bundle has of a query, by names below the query's directory in it."""
    below = f"{CHECKPOINTS_DIRECTORY}/"
    for members in _of_checkpoints_directory(query):
        yield {f"{below}{name}": content for name, content in members.items()}
    if query.location is not None:
        yield from _file(query.location, ROLLED_BACK_NAME)
        yield from _epochs(query.location)


def _of_checkpoints_directory(query: QueryPlace) -> Iterator[Members]:
    storage = query.checkpoints
    # The mark is there so that the query is found without a checkpoint too.
    yield {KEPT_FILES_NAME: encode_kept_files(query), f"{SHARED}/{BUNDLED_MARK}": b""}
    yield from _file(storage, ORIGIN_NAME)
    waiting = deque([_runs(storage), _checkpoints(storage), _notes(storage), _entries(storage)])
    while waiting:
        kind = waiting.popleft()
        members = next(kind, None)
        if members is not None:
            waiting.append(kind)
            yield members


def _runs(storage: Storage) -> Iterator[Members]:
    """Yield starts and ends: notes of a long run push out none of them."""
    names = [
        name for name in _names(storage, RUNS) if run_record_kind(name) in ("started", "ended")
    ]
    first = next((name for name in names if run_record_kind(name) == "started"), None)
    newest = names[-KEPT_RUNS:]
    if first is not None and first not in newest:
        newest.insert(0, first)
    # The newest end is of use with its start, and the first start says who made the query.
    order = [*reversed(newest[-2:]), *newest[:-2][:1], *reversed(newest[:-2][1:])]
    for name in order:
        yield from _file(storage, f"{RUNS}/{name}", without_keys)


def _notes(storage: Storage) -> Iterator[Members]:
    names = [name for name in _names(storage, RUNS) if run_record_kind(name) == "note"]
    for name in reversed(names[-NOTES_KEPT:]):
        yield from _file(storage, f"{RUNS}/{name}", without_keys)


def _entries(storage: Storage) -> Iterator[Members]:
    names = [name for name in _names(storage, HISTORY) if name.endswith(".json")]
    for name in reversed(names[-KEPT:]):
        yield from _file(storage, f"{HISTORY}/{name}")


def _checkpoints(storage: Storage) -> Iterator[Members]:
    try:
        with retained_checkpoints(storage) as found:
            for number in found.newest(CHECKPOINTS_KEPT):
                metadata = found.read(number)
                if isinstance(metadata, CheckpointMetadata):
                    directory = checkpoint_name(number)
                    yield {
                        f"{directory}/{AUTHOR_NAME}": b"bundle",
                        f"{directory}/{METADATA_NAME}": encode_metadata(without_data(metadata)),
                    }
    except (OSError, CkptError):  # the other records tell of the query too
        return


def _epochs(location: Storage) -> Iterator[Members]:
    for directory in ("offsets", "commits"):
        numbers = sorted(int(name) for name in _names(location, directory) if name.isdecimal())
        for number in numbers[-EPOCHS_KEPT:]:
            yield from _file(location, f"{directory}/{number}")


def _names(storage: Storage, directory: str) -> list[str]:
    try:
        return sorted(storage.list(directory))
    except (OSError, CkptError):  # as for a file
        return []


def _file(storage: Storage, name: str, cut: Callable[[bytes], bytes] = bytes) -> Iterator[Members]:
    try:
        content = storage.read_start(name, MAX_RECORD_BYTES + 1)
    except (OSError, CkptError):  # it is not there, or was deleted meanwhile
        return
    if len(content) <= MAX_RECORD_BYTES:  # no reader takes a larger one
        yield {name: cut(content)}


def of_savepoint(place: SavepointPlace) -> bytes | None:
    """Return the metadata of a savepoint as a bundle has it, ``None`` if it cannot be read."""
    try:
        return encode_metadata(without_data(read_metadata(place.storage)))
    except (OSError, CkptError):
        return None


def without_data(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return metadata without the changes and keys that handles contain."""
    operators = tuple(
        msgspec.structs.replace(
            operator, handles=tuple(_handle_without_data(each) for each in operator.handles)
        )
        for operator in metadata.operators
    )
    return msgspec.structs.replace(metadata, operators=operators)


def without_keys(data: bytes) -> bytes:
    """Return a record of a run without the keys that took most time."""
    record = decode_run_record(data)
    if record is None:
        return b"{}"
    if isinstance(record, RunNote):
        checkpoints = tuple(map(without_slow_keys, record.checkpoints))
        record = msgspec.structs.replace(record, checkpoints=checkpoints)
    return encode_run_record(record)


def _handle_without_data(handle: Handle) -> Handle:
    segments = tuple(
        each if each.inline is None else msgspec.structs.replace(each, inline=b"")
        for each in handle.segments
    )
    return msgspec.structs.replace(handle, segments=segments, sweep_from=b"")
