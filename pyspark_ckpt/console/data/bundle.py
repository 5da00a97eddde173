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
import os
import re
import secrets
import zipfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.bundled_content import Members, of_query, of_savepoint
from pyspark_ckpt.console.data.places import Places, QueryPlace, SavepointPlace
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import (
    METADATA_NAME,
    PLACES,
    SHARED,
    STORES,
    TASK_OWNED,
    is_savepoint_name,
)
from pyspark_ckpt.storage.corrupt_file import JSON_ERRORS, ZIP_ERRORS
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
    """Return when a bundle was made, ``None`` if an earlier version made it."""
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
