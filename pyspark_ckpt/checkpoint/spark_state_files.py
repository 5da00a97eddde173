"""Which of Spark's files in ``state/<operator id>/`` one version of an operator's state needs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator

from pyspark_ckpt.checkpoint.spark_state import STATE, files_below, version_of
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.storage.open import LocalStorage

_STORE_WIDE = frozenset({"SSTs", "logs", "_metadata"})
_WHOLE_AND_CHANGES = (("snapshot", "delta"), ("zip", "changelog"))
_DESCRIPTIONS = ("_metadata", "_stateSchema")


def needed_files(
    location: LocalStorage, operator_id: int, version: int, partitions: int
) -> list[str]:
    """Return the paths, below ``state/<operator id>/``, that a version of all partitions needs.

    Of each store: the newest file that holds a whole version up to this one, what that names, and
    the changes after it. Spark keeps them for as many epochs as
    ``spark.sql.streaming.minBatchesToRetain`` says.

    Raises
    ------
    CheckpointAbortedError
        If one is not there any more, or is none that is known here.
    """
    root = f"{STATE}/{operator_id}"
    paths = [
        path
        for partition in range(partitions)
        for store in _stores(location, f"{root}/{partition}")
        for path in _version_files(location, store, version)
    ]
    paths += _description_files(location, root, version)
    return sorted(path.removeprefix(f"{root}/") for path in paths)


def _stores(location: LocalStorage, partition: str) -> list[str]:
    """Return the directories of a partition that have, or should have, versions in them."""
    names = [name for name in location.list(partition) if not name.startswith(".")]
    stores = [f"{partition}/{name}" for name in names if name not in _STORE_WIDE]
    if not stores or any(version_of(name) for name in names):
        return [partition]
    return stores


def _version_files(location: LocalStorage, store: str, version: int) -> Iterator[str]:
    """Yield what a version of one store consists of."""
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


def _named_by(location: LocalStorage, store: str, version: int) -> Iterator[str]:
    """Yield the files that a RocksDB snapshot consists of besides its own."""
    try:
        with zipfile.ZipFile(location.path(f"{store}/{version}.zip")) as archive:
            fields = json.loads(archive.read("metadata").decode().split("\n", 1)[1])
    except FileNotFoundError as exc:
        raise _missing(location, store, version) from exc
    for file in fields.get("sstFiles", ()):
        yield f"{store}/SSTs/{file['dfsSstFileName']}"
    for file in fields.get("logFiles", ()) or ():
        yield f"{store}/logs/{file['dfsLogFileName']}"


def _description_files(location: LocalStorage, root: str, version: int) -> Iterator[str]:
    """Yield what tells the operator's name, its stores and their schemas."""
    for path in files_below(location, root):
        parts = path.removeprefix(f"{root}/").split("/")
        if not any(name in parts for name in _DESCRIPTIONS) or path.endswith(".crc"):
            continue
        if parts[:2] == ["_metadata", "v2"] and int(parts[2]) >= version:
            continue  # of an epoch that has begun since
        yield path


def _missing(location: LocalStorage, directory: str, version: int) -> CheckpointAbortedError:
    return CheckpointAbortedError(
        f"{location.url}/{directory} does not have version {version} of Spark's state: Spark has "
        "cleaned it away, or its state store is none that can be checkpointed; the next checkpoint "
        "of a newer epoch will find its own, or raise spark.sql.streaming.minBatchesToRetain"
    )
