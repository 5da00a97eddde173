"""Spark's files in a ``checkpointLocation``: committed epochs, source offsets, compacted logs.

Layout and texts are Spark's (HDFSMetadataLog, OffsetSeqLog, CommitLog, FileStreamSourceLog). They
are read as they are. They are written while a restore seeds a fresh location, and by a drain.

An entry is named by its number. Every so often Spark writes a compaction instead, ``N.compact``,
which has all entries up to ``N``. Spark ignores other names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, NotBuiltYetError
from pyspark_ckpt.settings import SHUFFLE_PARTITIONS
from pyspark_ckpt.storage.open import Storage

NO_OFFSET = "-"

SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""With it Spark identifies a source by its name, and not by its place in the query."""

_RESERVED_BY = "pyspark_ckpt.restart"
"""What Spark does not know, in the conf of an epoch's offsets."""

_KNOWN_VERSIONS = {"offsets": ("v1", "v2"), "commits": ("v1", "v2")}
_MOST_NAMED = 20
COMPACT = ".compact"
_NAME = re.compile(r"[0-9]{1,18}(?:\.compact)?")


def checksum_of(path: str) -> str:
    """Return where Hadoop's local file system keeps a file's checksum.

    It is deleted before the file is replaced, because Hadoop would refuse the new content.
    """
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.crc".lstrip("/")


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a query.

    `ids` has the source at each place where the query reads one. `names` are the names that the
    user gave the sources, by their ids; it is empty if Spark does not use them.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...] = ()

    def log_name(self, number: int) -> str:
        """Return the name of a source's directory in ``sources/``."""
        return self.names[number] if self.names else str(number)


@dataclass(frozen=True, slots=True)
class OffsetsEntry:
    """One entry of ``offsets/``: how far Spark had read each source by the end of an epoch.

    In Spark's format v1 the offsets are in the order of the places at which the query reads its
    sources. In format v2 each offset has a key, which is the number of a place or the name of a
    source.
    """

    metadata: dict[str, Any]
    source_offsets: tuple[str, ...]
    keys: tuple[str, ...] | None = None

    @property
    def is_named(self) -> bool:
        """Whether the keys are the names that the user gave the sources."""
        return self.keys is not None and self._conf.get(SOURCE_EVOLUTION) == "true"

    @property
    def parallelism(self) -> int | None:
        """The number of shuffle partitions that the query is bound to."""
        text = self._conf.get(SHUFFLE_PARTITIONS)
        return None if text is None else int(text)

    @property
    def reserved_by(self) -> str | None:
        """The swap that began the epoch, which has no input; ``None`` if Spark began it."""
        swap = self._conf.get(_RESERVED_BY)
        return None if swap is None else str(swap)

    def with_conf(self, parallelism: int, reserved_by: str | None = None) -> OffsetsEntry:
        """Return the entry as it is with another parallelism, perhaps of a reserved epoch."""
        conf = {key: value for key, value in self._conf.items() if key != _RESERVED_BY}
        conf[SHUFFLE_PARTITIONS] = str(parallelism)
        if reserved_by is not None:
            conf[_RESERVED_BY] = reserved_by
        return replace(self, metadata={**self.metadata, "conf": conf})

    @property
    def watermark_ms(self) -> int:
        """The query's watermark in the epoch; 0 before there is one."""
        return int(self.metadata.get("batchWatermarkMs", 0))

    @property
    def state_store(self) -> str | None:
        """The class of Spark's state store provider that the epoch ran with."""
        store = self._conf.get("spark.sql.streaming.stateStore.providerClass")
        return None if store is None else str(store)

    @property
    def watermark_policy(self) -> str | None:
        """Which of several watermarks the query uses, ``min`` or ``max``."""
        policy = self._conf.get("spark.sql.streaming.multipleWatermarkPolicy")
        return None if policy is None else str(policy).lower()

    @property
    def _conf(self) -> dict[str, Any]:
        conf = self.metadata.get("conf")
        return conf if isinstance(conf, dict) else {}

    def in_order(self, sources: Sources) -> OffsetsEntry:
        """Return the entry in format v1, with the offsets in the order of the places."""
        if self.keys is None:
            return self
        by_key = dict(zip(self.keys, self.source_offsets, strict=True))
        if self.is_named:
            # Spark does the same with a source that is new, or that the query has no longer.
            by_source = {
                number: by_key.get(name, NO_OFFSET) for number, name in enumerate(sources.names)
            }
        else:
            # Two places of one source share an offset, and Spark keeps it at one of them.
            places = {str(place): number for place, number in enumerate(sources.ids)}
            by_source = {places[key]: by_key[key] for key in by_key if key in places}
        if not set(sources.ids) <= set(by_source):
            raise CheckpointAbortedError(
                f"Spark keeps offsets of the sources {', '.join(by_key)}, the query reads "
                f"{', '.join(sources.names) or len(set(sources.ids))}; report the query's plan"
            )
        return OffsetsEntry(self.metadata, tuple(by_source[number] for number in sources.ids))

    def text(self) -> str:
        """Return the entry as Spark writes it."""
        lines = self.source_offsets
        if self.keys is not None:
            lines = tuple(map(":".join, zip(self.keys, self.source_offsets, strict=True)))
        version = "v1" if self.keys is None else "v2"
        return "\n".join([version, json.dumps(self.metadata), *lines])


@dataclass(frozen=True, slots=True)
class SourceLogFile:
    """A file in ``sources/<id of the source>/`` that a source needs to continue from an offset."""

    source_index: int
    log_name: str
    path: str


class SparkLog:
    """The log files of one ``checkpointLocation``."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def committed_epoch(self) -> int | None:
        """Return the newest committed epoch, ``None`` before the first."""
        return max(_numbers(self.storage.list("commits")), default=None)

    def begun_epoch(self) -> int | None:
        """Return the newest epoch that has offsets, committed or not; ``None`` if there is none."""
        return max(_numbers(self.storage.list("offsets")), default=None)

    def query_id(self) -> str | None:
        """Return the id of the query that owns the location, ``None`` before its first start."""
        if not self.storage.exists("metadata"):
            return None
        fields = self._json("metadata", self._text("metadata"))
        query_id = fields.get("id")
        if not isinstance(query_id, str):
            raise self._corrupt("metadata", "it has no query id")
        return query_id

    def offsets_entry(self, epoch: int) -> OffsetsEntry:
        """Read the offsets of an epoch."""
        path = f"offsets/{epoch}"
        lines = self._entry(path, epoch).split("\n")
        offsets, keys = tuple(lines[2:]), None
        if lines[0] == "v2":
            pairs = [line.partition(":") for line in offsets]
            keys, offsets = tuple(key for key, _, _ in pairs), tuple(each for *_, each in pairs)
        if not offsets or not all(map(is_offset, offsets)):
            raise self._corrupt(path, "it is cut short")
        return OffsetsEntry(self._json(path, lines[1]), offsets, keys)

    def is_committed(self, epoch: int) -> bool:
        """Return whether an epoch is committed, and neither lost nor deleted by Spark."""
        return all(self.storage.exists(f"{each}/{epoch}") for each in ("offsets", "commits"))

    def is_purged(self, epoch: int) -> bool:
        """Return whether Spark has deleted an epoch's files: it keeps those of the last epochs."""
        return epoch < min(_numbers(self.storage.list("offsets")), default=epoch)

    def parallelism_before(self, epoch: int) -> int | None:
        """Return the parallelism of the epoch before, ``None`` if its offsets are gone."""
        before = max((n for n in _numbers(self.storage.list("offsets")) if n < epoch), default=None)
        return None if before is None else self.offsets_entry(before).parallelism

    def operator_ids(self) -> list[int]:
        """Return the ids of the stateful operators whose state is in the location."""
        return sorted(_numbers(self.storage.list("state")))

    def commits_entry(self, epoch: int) -> str:
        """Return the text that Spark wrote when it committed an epoch."""
        return self._entry(f"commits/{epoch}", epoch)

    def watermark_ms(self, epoch: int) -> int:
        """Return the watermark that follows a committed epoch."""
        return int(self._commit(epoch).get("nextBatchWatermarkMs", 0))

    def committed_operator_ids(self, epoch: int) -> list[int]:
        """Return the ids of the stateful operators that a commit names.

        Only with the state store's checkpoint format 2 it names any.
        """
        named = self._commit(epoch).get("stateUniqueIds")
        return sorted(_numbers(list(named))) if isinstance(named, dict) else []

    def _commit(self, epoch: int) -> dict[str, Any]:
        path = f"commits/{epoch}"
        return self._json(path, self._entry(path, epoch).split("\n")[1])

    def source_log_files(self, offsets: OffsetsEntry, sources: Sources) -> list[SourceLogFile]:
        """Return the files that sources need to continue from `offsets`, and no later files.

        A file source regards every file in its log as read, so entries beyond the offset are left
        out. Other sources keep only what they wrote at their first start.

        `offsets` are in format v1. ``CheckpointAbortedError`` is raised if Spark has already
        deleted an entry, or if the number of offsets is not as expected.
        """
        if len(sources.ids) != len(offsets.source_offsets):
            raise CheckpointAbortedError(
                f"{self.storage.url}: Spark stores {len(offsets.source_offsets)} offsets, but the "
                f"query reads sources at {len(sources.ids)} places: report the query's plan to the "
                "authors of pyspark_ckpt"
            )
        files: list[SourceLogFile] = []
        for index, offset in dict(zip(sources.ids, offsets.source_offsets, strict=True)).items():
            if offset == NO_OFFSET:
                continue
            directory = f"sources/{sources.log_name(index)}"
            names = list(numbered(self.storage.list(directory)))
            position = log_position(offset)
            needed = names if position is None else entries_up_to(names, position, directory)
            files += [SourceLogFile(index, name, f"{directory}/{name}") for name in needed]
        return files

    def replace(self, path: str, text: str) -> None:
        """Replace one of Spark's files, unless it has this text; as :meth:`Storage.replace`."""
        if self.storage.exists(path) and self.storage.read(path) == text.encode():
            return
        self.storage.delete([checksum_of(path)])
        self.storage.replace(path, text.encode())

    def _entry(self, path: str, epoch: int) -> str:
        if not self.storage.exists(path):
            raise CorruptFileError(
                f"{self.storage.url_of(path)} is missing: Spark has not committed epoch {epoch}"
            )
        text = self._text(path)
        version, separator, _ = text.partition("\n")
        if not re.fullmatch(r"v\d+", version) or not separator:
            raise self._corrupt(path, "it is cut short")
        if version not in _KNOWN_VERSIONS[path.partition("/")[0]]:
            raise NotBuiltYetError(
                f"{self.storage.url_of(path)}: Spark's log version {version!r} is not supported "
                "yet: use a version of PySpark that this library supports"
            )
        return text

    def _text(self, path: str) -> str:
        try:
            return self.storage.read(path).decode()
        except UnicodeDecodeError as exc:
            raise self._corrupt(path, str(exc)) from exc

    def _json(self, path: str, line: str) -> dict[str, Any]:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise self._corrupt(path, str(exc)) from exc
        if not isinstance(fields, dict):
            raise self._corrupt(path, f"{line[:80]!r} is not a JSON object")
        return fields

    def _corrupt(self, path: str, what: str) -> CorruptFileError:
        return CorruptFileError(
            f"{self.storage.url_of(path)} is not what Spark writes: {what}; restore a checkpoint "
            "into a fresh checkpointLocation"
        )


def _numbers(names: list[str]) -> list[int]:
    return [int(name) for name in names if name.isdecimal()]


def is_offset(line: str) -> bool:
    """Return whether a line of an entry is a source's offset, or says that there is none yet."""
    if line == NO_OFFSET:
        return True
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def log_position(offset: str) -> int | None:
    """Return a file source's position in its log, ``None`` for another source's offset."""
    try:
        fields = json.loads(offset)
        if isinstance(fields, dict) and set(fields) == {"logOffset"}:
            return int(fields["logOffset"])
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return None


def entries_up_to(names: list[str], position: int, directory: str) -> list[str]:
    """Return the log files of entries 0 to `position`: the last compaction and those after."""
    numbers = {number: name for name, number in numbered(names).items()}
    needed = range(max(newest_compaction(names, position), 0), position + 1)
    missing = list(islice((each for each in needed if each not in numbers), _MOST_NAMED))
    if missing:
        raise CheckpointAbortedError(
            f"{directory} lacks the entries {missing}, because Spark has deleted them. The next "
            "checkpoint is of a newer epoch; if it fails too, raise "
            "spark.sql.streaming.minBatchesToRetain"
        )
    return [numbers[number] for number in needed]


def entry_number(name: str) -> int | None:
    """Return the number of an entry or compaction, ``None`` for another file."""
    return int(name.removesuffix(COMPACT)) if _NAME.fullmatch(name) else None


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of entries and compactions by their names, in the order of the names."""
    numbers = ((name, entry_number(name)) for name in names)
    return {name: number for name, number in numbers if number is not None}


def newest_compaction(names: Iterable[str], up_to: int | None = None) -> int:
    """Return the number of the newest compaction, at most `up_to`; -1 if there is none."""
    compactions = [number for name, number in numbered(names).items() if name.endswith(COMPACT)]
    return max((each for each in compactions if up_to is None or each <= up_to), default=-1)


def guessed_interval(entries: int, least: int) -> int:
    """Return the interval that Spark guesses from one compaction of a number of entries."""
    if entries // 2 <= least:
        return entries
    divisors = range(least, entries // 2 + 1)
    return next((each for each in divisors if entries % each == 0), entries)
