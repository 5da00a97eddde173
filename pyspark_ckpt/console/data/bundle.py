"""A bundle: one file with what the console shows of queries, without their data.

::

    queries/<number>/pyspark_ckpt/  history/**, origin.json, chk-N/_metadata and chk-N/_author
    queries/<number>/pyspark_ckpt/  _files.json: which data files are needed, and which are not
    queries/<number>/               _rolled_back.json, offsets and commits of the last epochs
    savepoints/<number>/savepoint-.../_metadata
    bundle.json                     when it was made of which directories, and sizes of data files

It is a ZIP file. Inline changes and keys are left out of ``_metadata``. Texts of errors are kept,
and they may contain a key. A store elsewhere, such as ZooKeeper, is left out: each checkpoint that
was complete when the bundle was made is in it.
"""

from __future__ import annotations

import errno
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.kept_files import KEPT_FILES_NAME, encode_kept_files
from pyspark_ckpt.console.data.places import Places, QueryPlace, SavepointPlace
from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import (
    AUTHOR_NAME,
    BUNDLED_MARK,
    CHECKPOINTS_DIRECTORY,
    HISTORY,
    METADATA_NAME,
    ROLLED_BACK_NAME,
    SHARED,
    STORES,
    TASK_OWNED,
    checkpoint_name,
    is_savepoint_name,
)
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.formats.origin import ORIGIN_NAME
from pyspark_ckpt.history.log import KEPT
from pyspark_ckpt.history.run_log import KEPT_RUNS
from pyspark_ckpt.history.run_record import (
    RUNS,
    RunNote,
    decode_run_record,
    encode_run_record,
    run_record_kind,
    without_slow_keys,
)
from pyspark_ckpt.storage.corrupt_file import JSON_ERRORS, ZIP_ERRORS
from pyspark_ckpt.storage.open import LocalStorage, Storage

BUNDLE_VERSION = 1
INDEX_NAME = "bundle.json"
CHECKPOINTS_KEPT = 100
EPOCHS_KEPT = 20
NOTES_KEPT = 1000
MOST_FILES = 100_000
MOST_BYTES = 1 << 30

_NAME = re.compile(
    r"(?:queries/[0-9]{1,6}/(?:pyspark_ckpt/)?|savepoints/[0-9]{1,6}/)"
    r"[A-Za-z0-9_.-]{1,120}(?:/[A-Za-z0-9_.-]{1,120}){0,3}"
)


class BundleIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle was made of: directories by their number, and the sizes of their data files.

    `made_at_ms` is when; earlier versions did not say it.
    """

    version: int
    root: str
    made_at_ms: int | None = None
    queries: dict[str, str] = {}
    savepoints: dict[str, str] = {}
    layout: dict[str, dict[str, int]] = {}


def write_bundle(root: Storage, places: Places, path: Path) -> int:
    """Write a bundle and return the number of its files; an existing file is not replaced.

    Parameters
    ----------
    root
        The directory that was searched.
    places
        What is in it.
    path
        The new file.

    Raises
    ------
    FileExistsError
        If there is such a file.
    """
    index = BundleIndex(
        version=BUNDLE_VERSION,
        root=root.url,
        made_at_ms=now_ms(),
        queries={str(n): each.path for n, each in enumerate(places.queries)},
        savepoints={str(n): each.storage.url for n, each in enumerate(places.savepoints)},
        layout={str(n): _layout(each.checkpoints) for n, each in enumerate(places.queries)},
    )
    count = 1
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as file:
        file.writestr(INDEX_NAME, msgspec.json.encode(index))
        for name, content in _contents(places):
            file.writestr(name, content)
            count += 1
    return count


def _contents(places: Places) -> Iterator[tuple[str, bytes]]:
    for number, query in enumerate(places.queries):
        below = f"queries/{number}"
        for name, content in _of_query(query):
            yield f"{below}/{CHECKPOINTS_DIRECTORY}/{name}", content
        if query.location is not None:
            for name, content in _of_location(query.location):
                yield f"{below}/{name}", content
    for number, savepoint in enumerate(places.savepoints):
        stored = _savepoint(savepoint)
        if stored is not None:
            # The index has its path. A copy may have any name, as with spaces.
            name = savepoint.storage.name
            name = name if is_savepoint_name(name) else f"savepoint-{number}"
            yield f"savepoints/{number}/{name}/{METADATA_NAME}", stored


def _of_query(query: QueryPlace) -> Iterator[tuple[str, bytes]]:
    storage = query.checkpoints
    for name in [name for name in storage.list(HISTORY) if name.endswith(".json")][-KEPT:]:
        yield from _file(storage, f"{HISTORY}/{name}")
    for name in _run_records(storage):
        for path, content in _file(storage, f"{RUNS}/{name}"):
            yield path, without_keys(content)
    yield from _file(storage, ORIGIN_NAME)
    yield KEPT_FILES_NAME, encode_kept_files(query)
    yield f"{SHARED}/{BUNDLED_MARK}", b""  # so that it is found without a checkpoint too
    with retained_checkpoints(storage) as found:
        for number in found.newest(CHECKPOINTS_KEPT):
            metadata = found.read(number)
            if isinstance(metadata, CheckpointMetadata):
                directory = checkpoint_name(number)
                yield f"{directory}/{AUTHOR_NAME}", b"bundle"
                yield f"{directory}/{METADATA_NAME}", encode_metadata(without_data(metadata))


def _run_records(storage: Storage) -> list[str]:
    """Return the records of runs that a bundle has: notes of a long run push out no start."""
    names = sorted(name for name in storage.list(RUNS) if run_record_kind(name))
    notes = [name for name in names if run_record_kind(name) == "note"]
    runs = [name for name in names if run_record_kind(name) != "note"]
    first = [name for name in runs if run_record_kind(name) == "started"][:1]
    return sorted({*first, *runs[-KEPT_RUNS:], *notes[-NOTES_KEPT:]})


def _of_location(location: Storage) -> Iterator[tuple[str, bytes]]:
    yield from _file(location, ROLLED_BACK_NAME)
    for directory in ("offsets", "commits"):
        numbers = sorted(int(name) for name in location.list(directory) if name.isdecimal())
        for number in numbers[-EPOCHS_KEPT:]:
            yield from _file(location, f"{directory}/{number}")


def _file(storage: Storage, name: str) -> Iterator[tuple[str, bytes]]:
    try:
        yield name, storage.read(name)
    except (OSError, CkptError):  # it is not there, or was deleted meanwhile
        return


def _savepoint(place: SavepointPlace) -> bytes | None:
    try:
        return encode_metadata(without_data(read_metadata(place.storage)))
    except (OSError, CkptError):
        return None


def without_data(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return metadata without the changes and keys that handles contain.

    Parameters
    ----------
    metadata
        What a checkpoint or savepoint stores.
    """
    operators = tuple(
        msgspec.structs.replace(
            operator, handles=tuple(_handle_without_data(each) for each in operator.handles)
        )
        for operator in metadata.operators
    )
    return msgspec.structs.replace(metadata, operators=operators)


def without_keys(data: bytes) -> bytes:
    """Return a record of a run without the keys that took most time.

    Parameters
    ----------
    data
        The record, as it is stored.
    """
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


def _layout(storage: Storage) -> dict[str, int]:
    """Return the sizes of a query's data files; of a server, only their names are asked for."""
    names = [f"{top}/{name}" for top in (SHARED, TASK_OWNED) for name in storage.list(top)]
    if storage.is_remote:
        return dict.fromkeys(names[:MOST_FILES], -1)
    return {name: storage.size_bytes(name) or 0 for name in names[:MOST_FILES]}


def unpack_bundle(path: str, directory: Path) -> BundleIndex:
    """Unpack a bundle into an empty directory, so that it is read as a directory of queries.

    Only names that this library writes are unpacked, up to a limit of files and bytes. Data files
    get no content.

    Parameters
    ----------
    path
        The bundle.
    directory
        The directory.

    Raises
    ------
    CorruptFileError
        If it is no bundle, is damaged, or is larger than a bundle is.
    """
    target = LocalStorage(directory)
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            if len(members) > MOST_FILES or sum(each.file_size for each in members) > MOST_BYTES:
                raise _no_bundle(path, "it is too large")
            size = Path(path).stat().st_size
            if any(each.compress_size > size for each in members):  # a buffer is made for it
                raise _no_bundle(path, "a file in it is larger than the bundle")
            index = _index(path, file.read(INDEX_NAME))
            for member in members:
                if member.filename == INDEX_NAME:
                    continue
                # The note on a store has an address, which a reader of the bundle would connect to.
                forbidden = {"..", STORES} & {*member.filename.split("/")}
                if forbidden or _NAME.fullmatch(member.filename) is None:
                    raise _no_bundle(path, f"{member.filename[:120]!r} is no name of a bundle")
                target.write(member.filename, [file.read(member)])
            target.write(INDEX_NAME, [msgspec.json.encode(index)])
    except CorruptFileError:
        raise
    except (FileExistsError, *ZIP_ERRORS) as exc:
        raise _no_bundle(path, str(exc)) from exc
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # which is a place before the start of the file
            raise
        raise _no_bundle(path, str(exc)) from exc
    return index


def made_at_ms(unpacked: Storage) -> int | None:
    """Return when a bundle was made, ``None`` if an earlier version made it.

    Parameters
    ----------
    unpacked
        The directory that it was unpacked into.
    """
    try:
        return msgspec.json.decode(unpacked.read(INDEX_NAME), type=BundleIndex).made_at_ms
    except (OSError, *JSON_ERRORS):
        return None


def _index(path: str, data: bytes) -> BundleIndex:
    try:
        index = msgspec.json.decode(data, type=BundleIndex)
    except JSON_ERRORS as exc:
        raise _no_bundle(path, str(exc)) from exc
    if index.version > BUNDLE_VERSION:
        raise CorruptFileError(
            f"{path}: version {index.version} of a bundle is newer than this library's "
            f"{BUNDLE_VERSION}: upgrade pyspark_ckpt"
        )
    return index


def _no_bundle(path: str, what: Any) -> CorruptFileError:
    return CorruptFileError(
        f"{path} is no bundle of pyspark_ckpt ({what}): make one with `pyspark-ckpt bundle`"
    )
