"""A bundle: one file with what the console shows of queries, without their data and keys.

::

    queries/<number>/pyspark_ckpt/  history/**, origin.json, chk-N/_metadata and chk-N/_author
    queries/<number>/pyspark_ckpt/  _files.json: which data files are needed, and which are not
    queries/<number>/               _rolled_back.json, offsets and commits of the last epochs
    savepoints/<number>/savepoint-.../_metadata
    bundle.json                     when it was made of which directories, and sizes of data files

It is a ZIP file. Inline changes and keys are left out of ``_metadata``. Texts of errors are kept,
and they may contain a key. A store elsewhere, such as ZooKeeper, is left out: each checkpoint that
was complete when the bundle was made is in it.

The most important members come first, and the kinds take turns. If not all of many queries fits
into a bundle, it has the newest of each kind.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import Places, QueryPlace, SavepointPlace
from pyspark_ckpt.console.data.snapshots import KEPT_FILES_NAME, encode_kept_files
from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import (
    AUTHOR_NAME,
    BUNDLED_MARK,
    CHECKPOINTS_DIRECTORY,
    HISTORY,
    METADATA_NAME,
    PLACES,
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
from pyspark_ckpt.history.run_log import (
    KEPT_RUNS,
    MAX_RECORD_BYTES,
    RUNS,
    RunNote,
    decode_run_record,
    encode_run_record,
    run_record_kind,
    without_slow_keys,
)
from pyspark_ckpt.storage.base import JSON_ERRORS, ZIP_ERRORS
from pyspark_ckpt.storage.mount import give_name
from pyspark_ckpt.storage.open import LocalStorage, Storage

BUNDLE_VERSION = 1
INDEX_NAME = "bundle.json"
MOST_FILES = 100_000
MOST_BYTES = 1 << 30

_NAME = re.compile(
    r"(?:queries/[0-9]{1,6}/(?:pyspark_ckpt/)?|savepoints/[0-9]{1,6}/)"
    r"[A-Za-z0-9_.-]{1,120}(?:/[A-Za-z0-9_.-]{1,120}){0,3}"
)

CHECKPOINTS_KEPT = 100
EPOCHS_KEPT = 20
NOTES_KEPT = 1000

Members = dict[str, bytes]
"""Files that are of use only together, by their names."""


class BundleIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle was made of: directories by their number, and the sizes of their data files.

    `made_at_ms` is when.
    """

    version: int
    root: str
    made_at_ms: int
    queries: dict[str, str] = {}
    savepoints: dict[str, str] = {}
    layout: dict[str, dict[str, int]] = {}


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """How many files a new bundle has; `cut` are queries whose older records have no place in it.

    `unnamed` counts files whose names no bundle takes, such as copies that somebody has made.
    """

    files: int
    cut: tuple[str, ...]
    unnamed: int


def write_bundle(root: Storage, places: Places, path: Path) -> WrittenBundle:
    """Write a bundle that can be opened; an existing file is not replaced.

    The file gets its name once it is whole.
    """
    if path.exists():  # before the work; it is certain below only
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(path.parent))
    most = MOST_FILES // max(len(places.queries), 1)
    index = BundleIndex(
        version=BUNDLE_VERSION,
        root=root.url,
        made_at_ms=now_ms(),
        queries={str(n): each.path for n, each in enumerate(places.queries)},
        savepoints={str(n): each.storage.url for n, each in enumerate(places.savepoints)},
        layout={str(n): _layout(each.checkpoints, most) for n, each in enumerate(places.queries)},
    )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as file:
            writing = _Writing(file)
            writing.add({INDEX_NAME: msgspec.json.encode(index)})
            writing.add_savepoints(places.savepoints)
            writing.add_queries(places.queries)
        give_name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return WrittenBundle(writing.files, tuple(writing.cut), writing.unnamed)


class _Writing:
    """A bundle that is being written, within the limits of opening it."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self.files = 0
        self.cut: list[str] = []
        self.unnamed = 0
        self._file = file
        self._bytes_left = MOST_BYTES

    def add(self, members: Members) -> None:
        for name, content in members.items():
            self._file.writestr(name, content)
            self.files += 1
            self._bytes_left -= len(content)

    def add_savepoints(self, places: Sequence[SavepointPlace]) -> None:
        for number, place in enumerate(places):
            stored = of_savepoint(place)
            # Half of the place is for queries.
            if stored is not None and len(stored) <= self._bytes_left - MOST_BYTES // 2:
                # The index has its path. A copy may have any name, as with spaces.
                name = f"savepoints/{number}/{place.storage.name}/{METADATA_NAME}"
                if not (is_savepoint_name(place.storage.name) and is_member_name(name)):
                    name = f"savepoints/{number}/savepoint-{number}/{METADATA_NAME}"
                self.add({name: stored})
            elif stored is not None:
                self.cut.append(place.storage.url)

    def add_queries(self, places: Sequence[QueryPlace]) -> None:
        """Add queries; each gets an equal part of the place that those before it have left."""
        for number, place in enumerate(places):
            left = len(places) - number
            most_files = (MOST_FILES - self.files) // left
            most_bytes = self._bytes_left // left
            files, bytes_left = self.files, self._bytes_left
            is_cut = False
            with closing(of_query(place)) as content:
                for members in content:
                    named = {f"queries/{number}/{name}": each for name, each in members.items()}
                    if not all(map(is_member_name, named)):
                        self.unnamed += 1
                        continue
                    if self.files - files + len(named) > most_files:
                        is_cut = True
                        break
                    size = sum(map(len, named.values())) + bytes_left - self._bytes_left
                    if size > most_bytes:
                        is_cut = True  # what follows may be smaller
                        continue
                    self.add(named)
            if is_cut:
                self.cut.append(place.path)


def is_member_name(name: str) -> bool:
    """Return whether a file of a bundle may have a name: the library writes no other one."""
    # The note on a store has an address, which a reader of the bundle would connect to. So has the
    # record of where the checkpoints are.
    forbidden = {"..", PLACES, STORES} & {*name.split("/")}
    return not forbidden and _NAME.fullmatch(name) is not None


def _layout(storage: Storage, most: int) -> dict[str, int]:
    """Return the sizes of a query's data files; of a server, only their names are asked for."""
    names = [f"{top}/{name}" for top in (SHARED, TASK_OWNED) for name in storage.list(top)]
    if storage.is_remote:
        return dict.fromkeys(names[:most], -1)
    return {name: storage.size_bytes(name) or 0 for name in names[:most]}


def unpack_bundle(path: str, directory: Path) -> BundleIndex:
    """Unpack a bundle into an empty directory, so that it is read as a directory of queries.

    Only names that this library writes are unpacked, up to a limit of files and bytes. Data files
    get no content.
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
                if not is_member_name(member.filename):
                    raise _no_bundle(path, f"{member.filename[:120]!r} is not a name of a bundle")
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
    """Return when a bundle was made, ``None`` if its index cannot be read."""
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
        f"{path} is not a bundle of pyspark_ckpt ({what}): make one with `pyspark-ckpt bundle`"
    )


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
    except (OSError, CkptError):  # it is not there, or was just deleted
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
