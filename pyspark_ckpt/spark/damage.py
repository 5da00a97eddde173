"""Which of Spark's own files in a location are missing or damaged.

A power loss, a disk that is full, or a person with ``rm`` leaves a location in which Spark cannot
begin an epoch. Spark reports it with a Java stack, and some damage only after it has begun. A start
looks at the small files first that Spark reads before an epoch. If Spark fails nevertheless, every
file is looked at that it needs.

What is not needed is not looked at: Spark deletes older epochs itself.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.spark.jobs import error_text
from pyspark_ckpt.spark.log import (
    NO_OFFSET,
    Sources,
    SparkLog,
    log_position,
    newest_compaction,
    numbered,
)
from pyspark_ckpt.spark.sink import FileSinkLog
from pyspark_ckpt.spark.state_files import (
    OPERATOR_METADATA,
    SCHEMA,
    STATE,
    missing_partitions,
    operator_name,
    state_stores,
    wanted_files,
)
from pyspark_ckpt.storage.open import LocalStorage, Storage

MISSING = "is missing"
_NOT_SPARKS = "is not what Spark writes"
_CHECKSUMS = b"crc\x00"
"""The first bytes of a file with the checksums that Hadoop keeps next to a local file."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A file or directory that Spark needs, by its full name, and what is wrong with it."""

    name: str
    what: str

    def __str__(self) -> str:
        """Return it as the beginning of an error."""
        return f"{self.name} {self.what}"


def damaged_metadata(log: SparkLog) -> Damage | None:
    """Return what is wrong with the file that has the id of the query, ``None`` if nothing."""
    has_epochs = log.begun_epoch() is not None or log.committed_epoch() is not None
    return next(_of_metadata(log, has_epochs=has_epochs), None)


def damaged_log(log: SparkLog, sources: Sources) -> Damage | None:
    """Return what is wrong with the logs that Spark reads before an epoch, ``None`` if nothing."""
    return next(_of_logs(log, sources), None)


def damaged_file(
    log: SparkLog, sources: Sources, parallelism: Mapping[int, int | None]
) -> Damage | None:
    """Return what is wrong with any file that Spark needs to continue, ``None`` if nothing shows.

    Every needed file is read. Call it when Spark has failed.

    `parallelism` has the number of partitions by Spark's operator ids, as far as it is known.
    """
    damage = damaged_log(log, sources)
    if damage is not None:
        return damage
    return next(_of_checksums(log, sources), None) or next(_of_states(log, parallelism), None)


def damaged_sink_log(sink: FileSinkLog) -> Damage | None:
    """Return what is wrong with an entry that readers of an output path need, ``None`` if nothing.

    The log has no gaps: a start refuses those, or fills them.
    """
    for name in sink.needed():
        what = _wrong_with(sink.log, name, is_compactible=True)
        if what is not None:
            return Damage(sink.log.url_of(name), what)
    return None


def _of_logs(log: SparkLog, sources: Sources) -> Iterator[Damage]:
    storage = log.storage
    begun, committed = log.begun_epoch(), log.committed_epoch()
    yield from _of_metadata(log, has_epochs=begun is not None or committed is not None)
    if committed is not None and (begun is None or begun < committed):
        yield Damage(storage.url_of(f"offsets/{committed}"), f"{MISSING}, and it is committed")
    if begun is None:
        return
    for epoch in (begun, begun - 1):
        if epoch >= 0:  # Spark begins with the offsets of the epoch before
            yield from _of_entry(storage, f"offsets/{epoch}", partial(log.offsets_entry, epoch))
    if begun > 0:
        counts = [len(log.offsets_entry(each).source_offsets) for each in (begun - 1, begun)]
        if counts[1] < counts[0]:
            yield Damage(storage.url_of(f"offsets/{begun}"), "is cut short")
    if committed is not None:
        yield from _of_entry(storage, f"commits/{committed}", partial(log.watermark_ms, committed))
    for path in _source_logs(log, sources, begun):
        what = _wrong_with(storage, path, is_compactible=True)
        if what is not None:
            yield Damage(storage.url_of(path), what)


def _of_metadata(log: SparkLog, *, has_epochs: bool) -> Iterator[Damage]:
    """Look at the file with the id of the query."""
    if log.storage.exists("metadata"):
        yield from _of_entry(log.storage, "metadata", log.query_id)
    elif has_epochs:
        yield Damage(log.storage.url_of("metadata"), f"{MISSING}, which has the id of the query")


def _of_entry(storage: Storage, path: str, read: Callable[[], object]) -> Iterator[Damage]:
    """Look at a small file, which `read` can parse if it is whole."""
    what = _wrong_with(storage, path)
    if what is None:
        try:
            read()
        except (CorruptFileError, ValueError, TypeError):
            what = _NOT_SPARKS
    if what is not None:
        yield Damage(storage.url_of(path), what)


def _source_logs(log: SparkLog, sources: Sources, epoch: int) -> Iterator[str]:
    """Yield the files that file sources read at their start, also those that are missing."""
    try:
        entry = log.offsets_entry(epoch)
        if not entry.is_named:
            sources = Sources(sources.ids)
        offsets = entry.in_order(sources)
    except CkptError:
        return
    if len(sources.ids) != len(offsets.source_offsets):
        return
    for index, offset in dict(zip(sources.ids, offsets.source_offsets, strict=True)).items():
        position = None if offset == NO_OFFSET else log_position(offset)
        if position is None:
            continue
        directory = f"sources/{sources.log_name(index)}"
        names = log.storage.list(directory)
        numbers = {number: name for name, number in numbered(names).items()}
        newest = max([position, *numbers])
        for number in range(max(newest_compaction(names), 0), newest + 1):
            yield f"{directory}/{numbers.get(number, number)}"


def _wrong_with(storage: Storage, path: str, *, is_compactible: bool = False) -> str | None:
    """Return what is wrong with the bytes of a file, ``None`` if it is whole as far as they show.

    The logs of file sources and file sinks are compactible: a version, and a JSON object in each
    line. They may be large, and are not parsed.
    """
    first, last, is_zero, size = b"", b"", True, 0
    try:
        for chunk in storage.chunks(path):
            first = (first + chunk)[:3]
            last = (last + chunk)[-3:]
            size += len(chunk)
            zeros = chunk.count(0)
            is_zero = is_zero and zeros == len(chunk)
            if is_compactible and zeros and not is_zero:
                return _NOT_SPARKS
    except FileNotFoundError:
        return MISSING
    if not size:
        return "is empty"
    if is_zero:
        return "has only zero bytes, as after a power loss"
    if is_compactible and (first[:2] != b"v1" or not (last == b"v1" or last[-1:] == b"}")):
        return _NOT_SPARKS
    return None


def _of_checksums(log: SparkLog, sources: Sources) -> Iterator[Damage]:
    """Compare local files with the checksums that Hadoop keeps next to them, as Spark does."""
    begun, committed = log.begun_epoch(), log.committed_epoch()
    paths = ["metadata"]
    if begun is not None:
        paths += [f"offsets/{epoch}" for epoch in (begun, begun - 1) if epoch >= 0]
        paths += _source_logs(log, sources, begun)
    if committed is not None:
        paths.append(f"commits/{committed}")
    for path in paths:
        if not _fits_checksums(log.storage, path):
            yield Damage(log.storage.url_of(path), "was changed")


def _of_states(log: SparkLog, parallelism: Mapping[int, int | None]) -> Iterator[Damage]:
    committed = log.committed_epoch()
    if committed is not None:
        for operator_id, partitions in sorted(parallelism.items()):
            yield from _of_state(log.storage, operator_id, committed + 1, partitions)


def _of_state(
    storage: Storage, operator_id: int, version: int, partitions: int | None
) -> Iterator[Damage]:
    """Look at all files that a version of an operator's state needs."""
    root = f"{STATE}/{operator_id}"
    names = storage.list(root)
    if not names:
        yield Damage(storage.url_of(root), MISSING)
        return
    count = len([name for name in names if name.isdecimal()]) if partitions is None else partitions
    for partition in missing_partitions(storage, operator_id, count):
        yield Damage(storage.url_of(f"{root}/{partition}"), MISSING)
    if storage.exists(f"{root}/{OPERATOR_METADATA}"):  # else Spark writes it again
        path, read = f"{root}/{OPERATOR_METADATA}", partial(operator_name, storage, operator_id)
        yield from _of_entry(storage, path, read)
    stores = [
        store
        for partition in range(count)
        for store in state_stores(storage, f"{root}/{partition}")
    ]
    paths = [path for store in stores for path in wanted_files(storage, store, version)]
    if "_stateSchema" not in names:  # where newer formats have the schemas
        paths.insert(0, f"{root}/{SCHEMA}")
    for path in paths:
        what = _wrong_with(storage, path)
        if what is None and not _fits_checksums(storage, path):
            what = "was changed"
        if what is not None:
            yield Damage(storage.url_of(path), what)


def _fits_checksums(storage: Storage, path: str) -> bool:
    """Return whether a local file has the checksums in the file next to it, if there is one."""
    if not isinstance(storage, LocalStorage) or not storage.exists(_checksums_of(path)):
        return True
    kept, content = storage.read(_checksums_of(path)), storage.read(path)
    block = int.from_bytes(kept[4:8], "big")
    if kept[:4] != _CHECKSUMS or block == 0:
        return False
    found = [zlib.crc32(content[at : at + block]) for at in range(0, len(content), block)]
    return kept[8:] == b"".join(each.to_bytes(4, "big") for each in found)


def _checksums_of(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.crc".lstrip("/")


def orphaned_checksums(log: SparkLog, operator_ids: Iterable[int]) -> list[str]:
    """Return the checksum files of files that were deleted, and that Spark would write again.

    Spark writes a file and renames it, and the rename fails if there is a checksum file of that
    name. Spark itself deletes a file together with its checksums. It writes the entries of the
    epochs after the newest, and an operator's metadata if there is none.
    """
    found = []
    for directory, newest in (("offsets", log.begun_epoch()), ("commits", log.committed_epoch())):
        for name in log.storage.list(directory):
            match = _ENTRY_CHECKSUMS.fullmatch(name)
            if match is not None and int(match[1]) > (-1 if newest is None else newest):
                found.append(f"{directory}/{name}")
    for operator_id in operator_ids:
        path = f"{STATE}/{operator_id}/{OPERATOR_METADATA}"
        if not log.storage.exists(path) and log.storage.exists(_checksums_of(path)):
            found.append(_checksums_of(path))
    return found


_ENTRY_CHECKSUMS = re.compile(r"\.(\d{1,18})\.crc")

_OF_SPARKS_FILES = re.compile(
    r"\[(?:CANNOT_LOAD_STATE_STORE|STDS_|MALFORMED_LOG_FILE|CANNOT_READ_STREAMING_STATE_FILE)"
    r"|\bbatch \d+ doesn't exist|Failed to read log file|Incomplete log file"
    r"|doesn't exist \(latestId: |Error reading (?:delta|snapshot) file|ChecksumException"
    r"|exception: Rename destination |Multiple streaming queries are concurrently using"
)
"""What Spark's errors have if it could not read or write one of its files in a location."""

_IS_DAMAGE = re.compile(
    r"EOFException|Checksum|corrupt|[Mm]alformed|MALFORMED|FileNotFoundException|does not exist"
    r"|doesn't exist|Incomplete log file|NegativeArraySize|STDS_FAILED_TO_READ|UNAVAILABLE\]"
    r"|JsonParseException|UTFDataFormat|InvalidProtocolBuffer"
)
"""What they have if the file is not whole; else its storage may only have been away."""

_CONDITION = re.compile(
    r"\[(?!INTERNAL_ERROR|STREAM_FAILED|[A-Z_]+\.UNCATEGORIZED)[A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] .*"
)
_CAUSE = re.compile(r"^Caused by: (.*)", re.MULTILINE)
_ENDED_WITH = re.compile(r"terminated with exception: (.*)")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*")
_SENTENCE = re.compile(r"(?<=\.)\s+(?=[A-Z])")
_HARMFUL = re.compile(r"clear|delete|new checkpoint|report|concurrently", re.IGNORECASE)
"""Spark advises to clear the location, which would destroy what is left of the state."""


def is_of_files(error: Exception) -> bool:
    """Return whether Spark may have failed because of one of its files in a location."""
    return _OF_SPARKS_FILES.search(str(error)) is not None


_ONE_EPOCH = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming jobs detected")
_ONE_LOG = re.compile(r"Multiple streaming queries are concurrently using (\S+)")


def is_of_another_driver(error: Exception, location: str) -> bool:
    """Return whether Spark found that somebody else has written the next entry of a query's log.

    The log of a file sink does not count, because another query may write to the same path.
    """
    text = str(error)
    log = _ONE_LOG.search(text)
    if log is None:
        return _ONE_EPOCH.search(text) is not None
    bare = location.removeprefix("file:").rstrip("/")
    return log[1].removeprefix("file:").startswith(f"{bare}/")


def unread_file(error: Exception, location: str, otherwise: str) -> Damage | None:
    """Return what Spark says of a file that it could not read, ``None`` if it may be whole."""
    text = str(error)
    if not (is_of_files(error) and _IS_DAMAGE.search(text)):
        return None
    bare = location.removeprefix("file:").rstrip("/")
    named = re.search(rf"{re.escape(bare)}/[^\s,;:'\"()\[\]]+", text)
    return Damage(
        named.group().rstrip(".") if named else otherwise, f"cannot be read: {said(error)}"
    )


def said(error: Exception) -> str:
    """Return what an error of Spark says in one line, without its advice."""
    text = str(error)
    ended, condition, causes = (
        _ENDED_WITH.search(text),
        _CONDITION.search(text),
        _CAUSE.findall(text),
    )
    if condition is not None:
        words = condition.group()
    elif causes:
        words = causes[-1]
    elif ended is not None:
        words = ended[1]
    else:
        words = error_text(error).splitlines()[0]
    sentences = _SENTENCE.split(_SQL_STATE.sub("", words))
    return " ".join(each for each in sentences if not _HARMFUL.search(each)).rstrip(". ")[:500]
