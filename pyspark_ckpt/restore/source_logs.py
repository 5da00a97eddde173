"""Spark's source logs in a restore: exactly the entries up to the offset, and nothing in them more.

A file source takes what its log says for what it has found, without asking the file system again.
An entry beyond the offset, or one that says so inside, would make the restored query read any file
that its executors may read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError
from pyspark_ckpt.formats.metadata import SourceLog
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.log import NO_OFFSET, entries_up_to
from pyspark_ckpt.storage.open import LocalStorage

_FILE_OFFSET = re.compile(r'\{"logOffset":(0|[1-9][0-9]{0,17})\}')
_VERSION = b"v1"
_FIELDS = {"path": str, "timestamp": int, "batchId": int}
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f]")
_MAX_LINE_BYTES = 1 << 20


def position_of(offset: str) -> int | None:
    """Return a file source's position in its log, ``None`` for an offset of another source."""
    match = _FILE_OFFSET.fullmatch(offset)
    return int(match[1]) if match else None


def copy_source_logs(source: RestoreSource, location: LocalStorage) -> None:
    """Copy into a location that is being filled what its sources must find; durable.

    Parameters
    ----------
    source
        The checkpoint or savepoint; entries that its offsets do not ask for are left behind.
    location
        The ``checkpointLocation``.

    Raises
    ------
    CorruptFileError
        If an entry is missing, or says what Spark would not have written.
    """
    for log in needed_source_logs(source):
        path = f"sources/{log.source_index}/{log.log_name}"
        if position_of(source.offsets[log.source_index]) is None:
            location.copy_in(source.storage, log.file, path)
            continue
        with source.storage.open_verified(log.file) as file:
            name = source.storage.url_of(log.file.path)
            number = int(log.log_name.removesuffix(".compact"))
            location.write(path, _checked_entries(file, number, name))


def needed_source_logs(source: RestoreSource) -> list[SourceLog]:
    """Return the source logs that the offsets of a checkpoint or savepoint ask for.

    Raises
    ------
    CorruptFileError
        If an entry is missing.
    """
    needed: list[SourceLog] = []
    for index, offset in source.offsets.items():
        logs = {
            log.log_name: log for log in source.metadata.source_logs if log.source_index == index
        }
        position = position_of(offset)
        if position is not None:
            try:
                names = entries_up_to(list(logs), position, f"{source.path}, sources/{index}")
            except CheckpointAbortedError as exc:
                raise CorruptFileError(
                    f"{source.path}: the log of source {index} is not whole up to entry "
                    f"{position}; restore from another checkpoint or savepoint"
                ) from exc
            needed += [logs[name] for name in names]
        elif "logOffset" in offset:
            raise CorruptFileError(
                f"{source.path}: {offset[:80]!r} is no offset that Spark's file source writes; "
                "restore from another checkpoint or savepoint"
            )
        elif offset != NO_OFFSET:
            needed += logs.values()
    return needed


def _checked_entries(file: BinaryIO, number: int, name: str) -> Iterator[bytes]:
    """Yield the lines of a file source's log file, each checked before it is."""
    first = file.readline(_MAX_LINE_BYTES)
    if first.removesuffix(b"\n") != _VERSION:
        raise _wrong(name, f"it begins with {first[:40]!r}")
    yield first
    while line := file.readline(_MAX_LINE_BYTES):
        _check_entry(line, number, name)
        yield line


def _check_entry(line: bytes, number: int, name: str) -> None:
    try:
        if _CONTROL.search(line):  # Spark ends lines at more of them than Python does
            raise ValueError("it has control characters")
        fields = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError) as exc:
        raise _wrong(name, str(exc)) from exc
    if (
        not isinstance(fields, dict)
        or {key: type(value) for key, value in fields.items()} != _FIELDS
    ):
        raise _wrong(name, f"{line[:80]!r} is no entry")
    if not 0 <= fields["batchId"] <= number:
        raise _wrong(name, f"it has a file of batch {fields['batchId']}, beyond its own {number}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _wrong(name: str, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{name} is not what Spark's file source writes: {what}; restore from another checkpoint "
        "or savepoint"
    )
