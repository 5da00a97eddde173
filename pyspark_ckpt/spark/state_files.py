"""Spark's files in ``state/<operator id>/`` of a ``checkpointLocation``: names and versions.

Epoch N ends with version N + 1 of every store. A store's directory is ``<partition>`` or, if an
operator has several, ``<partition>/<name>``. Each version has its own file there:

* HDFSBackedStateStoreProvider: ``<version>.delta``, and sometimes ``<version>.snapshot``, which
  holds all state in the same format;
* RocksDBStateStoreProvider: ``<version>.zip``, which names files in ``SSTs/`` and ``logs/``, or
  ``<version>.changelog``, the changes after the version before.

In the state store's checkpoint format 2 the version is followed by ``_<id>``.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, RestoreError
from pyspark_ckpt.storage.base import ZIP_ERRORS, all_of, corrupt_file
from pyspark_ckpt.storage.open import Storage

STATE = "state"
OUR_NAME = "applyInPandasWithState"
"""What Spark calls the operators of this library."""

OPERATOR_METADATA = "_metadata/metadata"
SCHEMA = "0/_metadata/schema"
"""The schema of an operator's state, below its directory, unless its format is newer."""

FIRST_VERSION = 1
_VERSIONED = re.compile(r"(\d{1,18})(_[0-9A-Za-z-]{1,64})?\.(delta|snapshot|zip|changelog)(\.crc)?")
_SCHEMA_NAME = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}/){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
)
_WHOLE = {"delta": "snapshot", "snapshot": "snapshot", "zip": "zip"}
"""The new file ending when a file of the first version is copied as another version."""


def version_of(name: str) -> tuple[int, str] | None:
    """Return version and kind of a store's file; ``None`` for other files and names with an id."""
    match = _VERSIONED.fullmatch(name)
    if match is None or match[2] or match[4]:
        return None
    return int(match[1]), match[3]


def missing_partitions(location: Storage, operator_id: int, partitions: int) -> list[int]:
    """Return the partitions of an operator without the directory that the first epoch gives each.

    Spark's reader of state takes the directories that are there for all there were.
    """
    there = {*location.list(f"{STATE}/{operator_id}")}
    return [partition for partition in range(partitions) if str(partition) not in there]


def partitions_without(
    location: Storage, operator_id: int, version: int, partitions: int
) -> list[int]:
    """Return the partitions of an operator whose stores have written no file of a version."""

    def has_version(partition: int) -> bool:
        names = location.list(f"{STATE}/{operator_id}/{partition}")
        found = filter(None, map(_VERSIONED.fullmatch, names))
        return any(int(match[1]) == version and not match[4] for match in found)

    found = all_of(has_version, range(partitions), at_once=location.is_remote)
    return [partition for partition, is_there in enumerate(found) if not is_there]


def operator_name(location: Storage, operator_id: int) -> str | None:
    """Return the name of an operator in Spark's metadata, ``None`` without metadata."""
    directory = f"{STATE}/{operator_id}/_metadata"
    newest = max(
        (int(name) for name in location.list(f"{directory}/v2") if name.isdecimal()), default=None
    )
    path = (
        f"{STATE}/{operator_id}/{OPERATOR_METADATA}"
        if newest is None
        else f"{directory}/v2/{newest}"
    )
    if not location.exists(path):
        return None
    with _as_spark_writes(location.url_of(path)):
        return str(_decoded(location.read(path))[1]["operatorInfo"]["operatorName"])


def files_below(storage: Storage, directory: str) -> Iterator[str]:
    """Yield the paths of the files below a directory, without hidden ones."""
    for path in storage.files_below(directory):
        within = path.removeprefix(f"{directory}/")
        # Hadoop's checksums, and unfinished files
        if not any(part.startswith(".") for part in within.split("/")):
            yield path


def copy_first_version(
    source: Storage,
    target: Storage,
    operator_ids: Mapping[int, int],
    version: int,
    place: Storage | None = None,
) -> None:
    """Copy state stores that have only their first version, as another version; durable.

    `operator_ids` has the new ids by the ids in `source`. `place` is where `target` will lie if it
    is moved once it is filled.
    """
    for old, new in operator_ids.items():
        for path in files_below(source, f"{STATE}/{old}"):
            within = path.removeprefix(f"{STATE}/{old}/")
            if within == f"{OPERATOR_METADATA}.crc":
                continue  # the checksum of the file that is changed
            content: Iterator[bytes]
            if within == OPERATOR_METADATA:
                content = iter([with_operator_id(source.read(path), place or target, new)])
            else:
                content = source.chunks(path)
            target.write(f"{STATE}/{new}/{_as_version(within, version, source)}", content)


def is_operator_metadata(path: str) -> bool:
    """Return whether a path below ``state/<operator id>/`` belongs to Spark's operator metadata."""
    return path.startswith("_metadata/")


def with_operator_id(metadata: bytes, location: Storage, operator_id: int) -> bytes:
    """Return Spark's metadata of an operator for another location and another id.

    It has whole paths of schemas, so `location` is where the files will lie in the end.
    """
    with _as_spark_writes(f"the metadata of Spark's operator {operator_id}"):
        version, fields = _decoded(metadata)
        fields["operatorInfo"]["operatorId"] = operator_id
        for store in fields["stateStoreInfo"]:
            paths = store.get("stateSchemaFilePaths")
            if paths:
                root = _hadoop_uri(location, f"{STATE}/{operator_id}")
                store["stateSchemaFilePaths"] = [
                    f"{root}/_stateSchema/{_below_schemas(path)}" for path in paths
                ]
    return f"{version}\n{json.dumps(fields, separators=(',', ':'))}".encode()


def _hadoop_uri(location: Storage, directory: str) -> str:
    """Return the URL of a directory as Spark keeps it in its metadata: nothing is escaped."""
    scheme, _, path = location.hadoop_url.partition(":")
    root = f"file:{os.path.normpath(path)}" if scheme == "file" else location.hadoop_url
    return f"{root}/{directory}"


def _below_schemas(path: str) -> str:
    """Return the part of a schema file's path that is the same at every location."""
    name = str(path).rpartition("/_stateSchema/")[2]
    if _SCHEMA_NAME.fullmatch(name) is None:
        raise CorruptFileError(
            f"Spark's metadata of an operator names the schema file {str(path)[:200]!r}, and Spark "
            "uses no such names: restore from another checkpoint or savepoint"
        )
    return name


@contextmanager
def _as_spark_writes(name: str) -> Iterator[None]:
    """Make one error of all that reading a changed file of Spark's may raise."""
    try:
        yield
    except CorruptFileError:
        raise
    except (LookupError, TypeError, AttributeError, RecursionError, *ZIP_ERRORS) as exc:
        raise corrupt_file(name, f"it is not what Spark writes ({exc!r:.200})") from exc


def _decoded(metadata: bytes) -> tuple[str, dict[str, Any]]:
    version, fields = metadata.decode().split("\n", 1)
    return version, json.loads(fields)


def _as_version(path: str, version: int, source: Storage) -> str:
    directory, _, name = path.rpartition("/")
    match = _VERSIONED.fullmatch(name)
    if match is None:
        return path
    found, unique_id, kind, checksum = match.groups()
    if int(found) != FIRST_VERSION or kind not in _WHOLE:
        raise RestoreError(
            f"{source.url}/.../{path} is not a file that Spark's state stores write as a first "
            "version: restore with the default spark.sql.streaming.stateStore.providerClass, or "
            "with RocksDBStateStoreProvider"
        )
    return f"{directory}/{version}{unique_id or ''}.{_WHOLE[kind]}{checksum or ''}"


_STORE_WIDE = frozenset({"SSTs", "logs", "_metadata"})
_WHOLE_AND_CHANGES = (("snapshot", "delta"), ("zip", "changelog"))
_DESCRIPTIONS = ("_metadata", "_stateSchema")


def needed_files(location: Storage, operator_id: int, version: int, partitions: int) -> list[str]:
    """Return the paths, below ``state/<operator id>/``, that a version of all partitions needs.

    For each store these are the newest file with a whole version up to this one, the files that it
    names, and the changes after it. Spark keeps them for ``spark.sql.streaming.minBatchesToRetain``
    epochs.

    ``CheckpointAbortedError`` is raised if a file is missing, or does not belong to a known state
    store.
    """
    root = f"{STATE}/{operator_id}"
    paths = [
        path
        for partition in range(partitions)
        for store in state_stores(location, f"{root}/{partition}")
        for path in _version_files(location, store, version)
    ]
    paths += _description_files(location, root, version)
    return sorted(path.removeprefix(f"{root}/") for path in paths)


def state_stores(location: Storage, partition: str) -> list[str]:
    """Return the directories of a partition's stores, also of stores whose files are missing."""
    names = [name for name in location.list(partition) if not name.startswith(".")]
    stores = [f"{partition}/{name}" for name in names if name not in _STORE_WIDE]
    if not stores or any(version_of(name) for name in names):
        return [partition]
    return stores


def _version_files(location: Storage, store: str, version: int) -> Iterator[str]:
    """Yield the files of a version of one store."""
    found = {parsed for name in location.list(store) if (parsed := version_of(name))}
    for whole, changes in _WHOLE_AND_CHANGES:
        if not any(kind in (whole, changes) for _, kind in found):
            continue
        first = max((n for n, kind in found if kind == whole and n <= version), default=0)
        later = range(first + 1, version + 1)
        if first:
            yield f"{store}/{first}.{whole}"
        if whole == "zip" and first:
            yield from _named_by(location, store, first)
        if any((number, changes) not in found for number in later):
            break
        yield from (f"{store}/{number}.{changes}" for number in later)
        return
    raise _missing(location, store, version)


def wanted_files(location: Storage, store: str, version: int) -> list[str]:
    """Return the files that a version of one store needs, also those that are missing.

    They are those of the newest whole version and of the changes after it, as far as names show.
    """
    names = location.list(store)
    if any(match[2] for match in filter(None, map(_VERSIONED.fullmatch, names))):
        return []  # only the commits know the ids in their names
    found = {parsed for name in names if (parsed := version_of(name))}
    kinds = {kind for _, kind in found}
    whole, changes = next(
        (each for each in _WHOLE_AND_CHANGES if not kinds.isdisjoint(each)), _WHOLE_AND_CHANGES[0]
    )
    first = max((n for n, kind in found if kind == whole and n <= version), default=0)
    paths = [f"{store}/{first}.{whole}"] if first else []
    return paths + [f"{store}/{number}.{changes}" for number in range(first + 1, version + 1)]


def _named_by(location: Storage, store: str, version: int) -> Iterator[str]:
    """Yield the files that the ``zip`` of a RocksDB version names."""
    try:
        content = location.read(f"{store}/{version}.zip")
    except FileNotFoundError as exc:
        raise _missing(location, store, version) from exc
    with _as_spark_writes(location.url_of(f"{store}/{version}.zip")):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            fields = json.loads(archive.read("metadata").decode().split("\n", 1)[1])
        named = [f"{store}/SSTs/{file['dfsSstFileName']}" for file in fields.get("sstFiles", ())]
        logs = fields.get("logFiles", ()) or ()
        named += [f"{store}/logs/{file['dfsLogFileName']}" for file in logs]
    yield from named


def _description_files(location: Storage, root: str, version: int) -> Iterator[str]:
    """Yield the files with the operator's name, its stores and their schemas."""
    for path in files_below(location, root):
        parts = path.removeprefix(f"{root}/").split("/")
        if not any(name in parts for name in _DESCRIPTIONS) or path.endswith(".crc"):
            continue
        if parts[:2] == ["_metadata", "v2"] and int(parts[2]) >= version:
            continue  # a later epoch's file
        yield path


def _missing(location: Storage, directory: str, version: int) -> CheckpointAbortedError:
    return CheckpointAbortedError(
        f"{location.url}/{directory} does not have version {version} of Spark's state: Spark has "
        "deleted it, or its state store is not supported. The next checkpoint is of a newer epoch; "
        "if it fails too, raise spark.sql.streaming.minBatchesToRetain"
    )
