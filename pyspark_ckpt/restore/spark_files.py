"""Places Spark's files in a location that is being seeded, and checks what they say first.

Spark acts on what these files say, so a file from a stranger must not name more than it may:

* A file source takes the files that its log names for files that it has found.
* A RocksDB archive names the files that Spark copies, and where to.
* Spark makes an instance of any class that a schema calls a user-defined type.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, BinaryIO

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.metadata import SourceLog
from pyspark_ckpt.restore.planned import PlannedSources, SparkStateFile
from pyspark_ckpt.spark.log import COMPACT, guessed_interval
from pyspark_ckpt.spark.state_files import STATE, is_operator_metadata, with_operator_id
from pyspark_ckpt.storage.base import ZIP_ERRORS
from pyspark_ckpt.storage.open import Storage

_DEFAULT_INTERVAL = 10
"""Spark's default of ``spark.sql.streaming.fileSource.log.compactInterval``."""

_VERSION = b"v1"
_FIELDS = {"path": str, "timestamp": int, "batchId": int}
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f]")
_MAX_LINE_BYTES = 1 << 20

MAX_CHECKED_BYTES = 256 << 20
"""Such files hold names and schemas, and a database's small files; not its data."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_SCHEMA = re.compile(r"(?:^|/)(?:_stateSchema/|_metadata/schema)")
# A text may be cut into parts, with two bytes for the length of each.
_USER_DEFINED = re.compile(rb'"(?:..)?u(?:..)?d(?:..)?t(?:..)?"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:..)?u", re.DOTALL)
_NAMES = "metadata"
"""The entry of a RocksDB archive that names the database's other files."""


def place_spark_files(
    source: Storage,
    location: Storage,
    state_files: Iterable[SparkStateFile],
    sources: PlannedSources,
    place: Storage | None = None,
) -> None:
    """Copy all files of Spark that a plan names; as the two functions below."""
    place_state_files(source, location, state_files, place)
    place_source_logs(source, location, sources)


def place_source_logs(
    source: Storage,
    location: Storage,
    planned: PlannedSources,
) -> None:
    """Copy the logs that the query's sources need into a location, durably."""
    for log in planned.other_logs:
        location.copy_in(source, log.file, f"{_log_directory(log, planned)}/{log.log_name}")
    for _, logs in groupby(planned.file_logs, lambda log: log.source_index):
        _place_file_logs(source, location, list(logs), planned)


def place_state_files(
    source: Storage,
    location: Storage,
    files: Iterable[SparkStateFile],
    place: Storage | None = None,
) -> None:
    """Copy the state of Spark's own operators into a location, durably.

    `place` is where the location will lie if it is moved once it is filled.
    """
    for file in files:
        path = f"{STATE}/{file.operator_id}/{file.name}"
        if is_operator_metadata(file.name):
            content = _content(source, file)
            moved = with_operator_id(content, place or location, file.operator_id)
            location.write(path, [moved])
        elif is_checked(file.name):
            name = source.url_of(file.file.path)
            location.write(path, [checked_content(file.name, _content(source, file), name)])
        else:
            location.copy_in(source, file.file, path)


def _content(source: Storage, file: SparkStateFile) -> bytes:
    with source.open_verified(file.file) as opened:
        return opened.read()


def _place_file_logs(
    source: Storage,
    location: Storage,
    logs: list[SourceLog],
    planned: PlannedSources,
) -> None:
    """Write the log of one file source, with names that Spark will expect."""
    oldest, newest = logs[0], logs[-1]
    last = _number(newest)
    compaction = _number(oldest) if oldest.log_name.endswith(COMPACT) else None
    older, is_merged = other_compactions(compaction, last)
    if is_merged:
        path = f"{_log_directory(newest, planned)}/{last}{COMPACT}"
        location.write(path, _entries(source, logs, last))
        return
    if older is not None:
        path = f"{_log_directory(oldest, planned)}/{older}{COMPACT}"
        location.write(path, _entries(source, [oldest], older))
    for log in logs:
        path = f"{_log_directory(log, planned)}/{log.log_name}"
        location.write(path, _entries(source, [log], last))


def other_compactions(compaction: int | None, last: int) -> tuple[int | None, bool]:
    """Return which entries are written as compactions, because Spark guesses their interval.

    A snapshot has the newest compaction and the entries after it. Spark keeps more compactions, and
    takes the difference of two for their interval. From one of them it guesses an interval, which
    may be shorter than the one that the log was written with. It then asks for a compaction where
    an entry is, and the query does not start.

    The first result is an older compaction that shows the interval, or ``None`` if none is needed.
    The second result says whether all entries become one compaction, because no older one can show
    the interval.
    """
    if compaction is None:
        return None, last >= _DEFAULT_INTERVAL - 1
    size, after = compaction + 1, last - compaction
    if after == 0 or guessed_interval(size, _DEFAULT_INTERVAL) > after:
        return None, False
    intervals = [each for each in range(after + 1, size) if size % each == 0]
    if not intervals:
        return None, True
    likely = [each for each in intervals if each >= _DEFAULT_INTERVAL]
    return compaction - (likely or intervals[-1:])[0], False


def _number(log: SourceLog) -> int:
    return int(log.log_name.removesuffix(COMPACT))


def _log_directory(log: SourceLog, planned: PlannedSources) -> str:
    return f"sources/{planned.sources.log_name(log.source_index)}"


def _entries(source: Storage, logs: Iterable[SourceLog], newest: int) -> Iterator[bytes]:
    """Yield the content of one log file: the entries of some, up to a number; each is checked."""
    yield _VERSION
    for log in logs:
        with source.open_verified(log.file) as file:
            lines = _checked_entries(file, _number(log), source.url_of(log.file.path))
            for line, fields in lines:
                if fields["batchId"] <= newest:
                    yield b"\n" + line


def _checked_entries(
    file: BinaryIO, number: int, name: str
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the entries of a file source's log file, as text and as fields; each is checked."""
    first = file.readline(_MAX_LINE_BYTES)
    if first.removesuffix(b"\n") != _VERSION:
        raise _not_of_file_source(name, f"it begins with {first[:40]!r}")
    while line := file.readline(_MAX_LINE_BYTES):
        yield line.removesuffix(b"\n"), _checked_entry(line, number, name)


def _checked_entry(line: bytes, number: int, name: str) -> dict[str, Any]:
    try:
        if _CONTROL.search(line):  # Spark ends lines at more of them than Python does
            raise ValueError("it has control characters")
        fields = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError) as exc:
        raise _not_of_file_source(name, str(exc)) from exc
    if (
        not isinstance(fields, dict)
        or {key: type(value) for key, value in fields.items()} != _FIELDS
    ):
        raise _not_of_file_source(name, f"{line[:80]!r} is not an entry")
    if not 0 <= fields["batchId"] <= number:
        raise _not_of_file_source(
            name, f"it has a file of batch {fields['batchId']}, beyond its own {number}"
        )
    return fields


def is_checked(path: str) -> bool:
    """Return whether a file below ``state/<operator id>/`` says what Spark will act on."""
    return path.endswith(".zip") or _SCHEMA.search(path) is not None


def checked_content(path: str, content: bytes, name: str) -> bytes:
    """Return the content of such a file as it can be given to Spark.

    `path` is below ``state/<operator id>/``. ``CorruptFileError`` is raised if the content names
    files outside of the state store, or a class.
    """
    if path.endswith(".zip"):
        return _checked_archive(content, name)
    if _USER_DEFINED.search(content) or _ESCAPE.search(content):
        raise _not_of_store(
            name, "its schema has a user-defined type, which Spark would load by name"
        )
    return content


def _checked_archive(content: bytes, name: str) -> bytes:
    """Write a RocksDB archive anew, so that every reader finds what was checked."""
    made = io.BytesIO()
    try:
        with (
            zipfile.ZipFile(io.BytesIO(content)) as archive,
            zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target,
        ):
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > MAX_CHECKED_BYTES:
                raise _not_of_store(name, f"it expands to more than {MAX_CHECKED_BYTES} bytes")
            if len({entry.filename for entry in entries}) != len(entries):
                raise _not_of_store(name, "it has an entry twice")
            for entry in entries:
                _check_name(entry.filename, name)
                data = archive.read(entry)
                if entry.filename == _NAMES:
                    _check_names_in(_fields(data, name), name)
                target.writestr(entry.filename, data)
    except CorruptFileError:
        raise
    except (OSError, *ZIP_ERRORS) as exc:
        raise _not_of_store(name, str(exc)) from exc
    return made.getvalue()


def _fields(data: bytes, name: str) -> Any:
    try:
        return json.loads(data.decode().split("\n", 1)[1], object_pairs_hook=_once)
    except (ValueError, IndexError, RecursionError) as exc:
        raise _not_of_store(name, f"its metadata cannot be read: {exc}") from exc


def _check_names_in(part: Any, name: str) -> None:
    """Check every name of a file, wherever it is."""
    if isinstance(part, list):
        for each in part:
            _check_names_in(each, name)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key.endswith("FileName"):
                _check_name(value, name)
            _check_names_in(value, name)


def _check_name(value: object, name: str) -> None:
    if not isinstance(value, str) or not _PLAIN_NAME.fullmatch(value):
        raise _not_of_store(name, f"{str(value)[:200]!r} is not a plain name of a file")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("it has a field twice")
    return fields


def _not_of_file_source(name: str, what: str) -> CorruptFileError:
    return _not_what_spark_writes(name, "Spark's file source writes", what)


def _not_of_store(name: str, what: str) -> CorruptFileError:
    return _not_what_spark_writes(name, "Spark's state stores write", what)


def _not_what_spark_writes(name: str, writes: str, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{name} is not what {writes}: {what}; restore from another checkpoint or savepoint"
    )
