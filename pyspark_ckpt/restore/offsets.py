"""Decides where the query's sources continue: their offsets, and the entries of their logs.

A file source takes what its log says for what it has found, without asking the file system again.
An entry beyond the offset would make the restored query read any file that its executors may read,
so exactly the entries up to the offset are taken.

Spark writes an offset without the name of its source, but offsets of Spark's sources differ in
form. A source that gets another source's offset would start at a wrong position, or read other
data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, CorruptFileError, RestoreError
from pyspark_ckpt.formats.metadata import SourceLog
from pyspark_ckpt.operator.schema.verdict import StateOutcome
from pyspark_ckpt.restore.planned import PlannedSources, planned_state, refused_part
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.log import NO_OFFSET, SOURCE_EVOLUTION, Sources, entries_up_to

_FILE_OFFSET = re.compile(r'\{"logOffset":(0|[1-9][0-9]{0,17})\}')
_QUERY = "(query)"
_SOURCES = "(sources)"

_FILE = "FileSource["
"""Spark's name of a file source begins with this text; its path follows."""


def plan_sources(
    source: RestoreSource,
    source_ids: tuple[int, ...] | None = None,
    source_names: Sequence[str] | None = None,
    given_names: tuple[str, ...] = (),
) -> PlannedSources:
    """Decide where the sources continue; refuse other sources than there are offsets of.

    `source_ids` has the source that the query reads at each place, and `source_names` and
    `given_names` are by source id. ``None`` for `source_ids` or `source_names` leaves out that
    check, and `given_names` is empty if Spark uses none.
    """
    stored, times_ms = source.offsets, source.times_ms
    if not stored:
        return _started_anew(times_ms, source_ids or (), given_names)
    stored_ids, errors = _stored_ids(source, stored, given_names)
    offsets = {number: stored[stored_id] for number, stored_id in stored_ids.items()}
    errors = errors or _misfits(source.path, offsets, source_ids, source_names)
    if errors:
        part = refused_part(_QUERY, _SOURCES, *errors)
        return PlannedSources(rows=part.rows, errors=part.errors, times_ms=times_ms)
    places = source_ids or source.metadata.source_ids or tuple(offsets)
    file_logs: list[SourceLog] = []
    other_logs: list[SourceLog] = []
    for index, offset in offsets.items():
        logs = [
            msgspec.structs.replace(log, source_index=index)
            for log in source.metadata.source_logs
            if log.source_index == stored_ids[index]
        ]
        match = _FILE_OFFSET.fullmatch(offset)
        if match is not None:
            file_logs += _logs_up_to(source.path, index, logs, int(match[1]))
        elif "logOffset" in offset:
            raise CorruptFileError(
                f"{source.path}: {offset[:80]!r} is not an offset that Spark's file source writes; "
                "restore from another checkpoint or savepoint"
            )
        elif offset != NO_OFFSET:
            other_logs += logs
    return PlannedSources(
        offsets=tuple(offsets[number] for number in places),
        file_logs=tuple(file_logs),
        other_logs=tuple(other_logs),
        times_ms=times_ms,
        sources=Sources(tuple(places), given_names),
    )


def _started_anew(
    times_ms: dict[str, int], places: tuple[int, ...], given_names: tuple[str, ...]
) -> PlannedSources:
    """Let every source start as its options say.

    Every query has a source. So only a savepoint that was made without a query has no offsets.
    """
    why = "no offsets are stored: every source starts as its options say"
    return PlannedSources(
        rows=(planned_state(_QUERY, _SOURCES, StateOutcome.NEW, why),),
        offsets=(NO_OFFSET,) * len(places),
        times_ms=times_ms,
        sources=Sources(places, given_names),
    )


def _stored_ids(
    source: RestoreSource, stored: dict[int, str], given_names: tuple[str, ...]
) -> tuple[dict[int, int], list[CkptError]]:
    """Return the stored number of each source of the query, by its own, or why a name has none.

    Sources without names, on either side, correspond in their order.
    """
    names = source.metadata.source_names
    if not names:
        return {number: number for number in stored}, []
    if sorted(stored) != list(range(len(names))):
        raise CorruptFileError(
            f"{source.path} has offsets of {len(stored)} sources and {len(names)} names for them; "
            "restore from another checkpoint or savepoint"
        )
    if sorted(given_names) == sorted(names):
        return {number: names.index(name) for number, name in enumerate(given_names)}, []
    now = f"are named {', '.join(given_names)}" if given_names else "have no names that Spark uses"
    return {}, [
        RestoreError(
            f"{source.path} has the offsets of the sources {', '.join(names)}, but the query's "
            f"sources {now}: give the sources these names with .name(), and set "
            f"{SOURCE_EVOLUTION} to true"
        )
    ]


def _misfits(
    path: str,
    offsets: dict[int, str],
    source_ids: tuple[int, ...] | None,
    source_names: Sequence[str] | None,
) -> list[CkptError]:
    """Return why the offsets cannot be those of the query's sources."""
    before = len(offsets)
    now = before if source_ids is None else len(set(source_ids))
    if now != before:
        return [
            RestoreError(
                f"{path} has the offsets of {before} sources, the query reads "
                f"{now}: give it the sources that it had, in their order"
            )
        ]
    errors: list[CkptError] = []
    named = zip(offsets.values(), source_names or (), strict=False)
    for number, (offset, name) in enumerate(named):
        stored = kind_of_offset(offset)
        if not fits(offset, name):
            errors.append(
                RestoreError(
                    f"{path}: source {number} of the query is {name}, its offset is "
                    f"{'of ' + stored if stored else 'of another source'}: {offset[:120]}. Give "
                    "the query the sources that it had, in their order"
                )
            )
    return errors


def _logs_up_to(path: str, index: int, logs: list[SourceLog], position: int) -> list[SourceLog]:
    """Return the entries of a file source's log that a query needs to continue at `position`."""
    by_name = {log.log_name: log for log in logs}
    try:
        names = entries_up_to(list(by_name), position, f"{path}, sources/{index}")
    except CheckpointAbortedError as exc:
        raise CorruptFileError(
            f"{path}: the log of source {index} is not whole up to entry "
            f"{position}; restore from another checkpoint or savepoint"
        ) from exc
    return [by_name[name] for name in names]


def _is_file(offset: Any) -> bool:
    return isinstance(offset, dict) and set(offset) == {"logOffset"}


def _is_number(offset: Any) -> bool:
    return type(offset) is int


def _is_rate_micro_batch(offset: Any) -> bool:
    return isinstance(offset, dict) and set(offset) == {"offset", "timestamp"}


def _is_kafka(offset: Any) -> bool:
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(partitions, dict) and all(map(_is_number, partitions.values()))
            for partitions in offset.values()
        )
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    _FILE: _is_file,
    "rate-micro-batch": _is_rate_micro_batch,
    "kafka": _is_kafka,
    "rate": _is_number,
}


def kind_of_offset(offset: str) -> str | None:
    """Return which of Spark's sources writes such an offset, ``None`` if the form does not show it.

    A number can be the offset of several sources.
    """
    if offset == NO_OFFSET:
        return None
    decoded = json.loads(offset)
    if _is_file(decoded):
        return "a file source"
    return next((name for name, is_of in _KINDS.items() if is_of(decoded)), None)


def fits(offset: str, name: str) -> bool:
    """Return whether an offset can belong to the source that Spark calls `name`.

    For sources of other libraries it returns true, unless the offset is a file source's.
    """
    if offset == NO_OFFSET:
        return True
    decoded = json.loads(offset)
    kind = _FILE if name.startswith(_FILE) else name
    known = _KINDS.get(kind)
    return not _is_file(decoded) if known is None else known(decoded)
