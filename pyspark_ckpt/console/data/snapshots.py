"""One checkpoint or savepoint: its subtasks, its files and who else needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from statistics import median

import msgspec

from pyspark_ckpt.checkpoint.cleaning import garbage_of
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.counters import COUNTERS
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.layout import SHARED, TASK_OWNED, state_file
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.history.log import sizes_of_subtask
from pyspark_ckpt.operator.table.catalog import schema_text
from pyspark_ckpt.storage.base import JSON_ERRORS
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.reader_pins import pinned_files

FILES_SHOWN = 50

OTHERS_READ = 20
"""Other checkpoints that a page reads to say who else needs a file."""

_COUNTED = {field: counter for field, counter in COUNTERS.items() if counter.in_console}
_HEADS = {field: field.replace("_", " ") for field in _COUNTED}

COLUMNS = ("size", "new", "files", "segments", *_HEADS.values())

COLUMN_MEANINGS = {
    "size": "bytes in the files of the subtask's handle: the list of files that hold its state",
    "new": "bytes in files that the checkpoint before did not have",
    "files": "files of the handle",
    "segments": "files of changes since the last base snapshot; a restore applies them in order",
    **{_HEADS[field]: f"in its last epoch: {each.help}" for field, each in _COUNTED.items()},
}
"""What the numbers of a subtask mean."""

_PROCESS = COLUMNS.index(_HEADS["process_ms"])

SKEWED = 1.5
"""From this skew on, subtasks count as skewed: few keys already spread them by less."""

KEPT_FILES_NAME = "_files.json"
"""What a bundle has next to a query's checkpoints, because it has no data files."""

CHECKPOINTS_READ = 100

FILES_MEASURED = 200
"""Unneeded files whose sizes and ages are looked up, one by one."""


@dataclass(frozen=True, slots=True)
class SubtaskRow:
    """One subtask: a number per column of :data:`COLUMNS`."""

    subtask: int
    epoch: int
    numbers: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """The spread of a column over the subtasks. `skew` is the maximum by the mean."""

    minimum: float
    median: float
    maximum: float
    skew: float
    worst: int


@dataclass(frozen=True, slots=True)
class StateRow:
    """A state as the newest subtask has it."""

    name: str
    kind: str
    schema: str
    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """One operator's subtasks."""

    operator: OperatorMetadata
    key_schema: str
    states: tuple[StateRow, ...]
    rows: tuple[SubtaskRow, ...]
    summaries: tuple[ColumnSummary | None, ...]

    @property
    def skew(self) -> float | None:
        """How many times the largest subtask's state is the mean; ``None`` without state."""
        summary = self.summaries[0]
        return None if summary is None else summary.skew

    @property
    def is_skewed(self) -> bool:
        """Whether one subtask has much more state than the others."""
        return self.skew is not None and self.skew >= SKEWED

    @property
    def idle(self) -> list[int]:
        """The subtasks that never had a row, so they have no state."""
        known = {row.subtask for row in self.rows}
        return [number for number in range(self.operator.parallelism) if number not in known]

    @property
    def slowest(self) -> ColumnSummary | None:
        """The spread of the times of the subtasks that had rows in the newest epoch of all.

        It is ``None`` if a subtask was alone in it, because there is nothing to compare.
        """
        newest = max((row.epoch for row in self.rows), default=0)
        rows = [row for row in self.rows if row.epoch == newest]
        if len(rows) == 1:
            return None
        return summary_of_column(rows, [row.numbers[_PROCESS] for row in rows])

    def heat(self, row: SubtaskRow, column: int) -> int:
        """Return how a cell is coloured, from 0 for the minimum of its column to 9."""
        value, summary = row.numbers[column], self.summaries[column]
        if value is None or summary is None or summary.maximum == summary.minimum:
            return 0
        return int(9 * (value - summary.minimum) / (summary.maximum - summary.minimum))


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file, and the other retained checkpoints that need it."""

    path: str
    size_bytes: int
    also_needed_by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """A checkpoint or savepoint.

    `files` are the largest of its `file_count` files. `own_bytes` are in files that no other
    retained checkpoint needs. `compared` are the checkpoints that were compared, and
    `is_compared_with_all` says whether these are all. `newest` is the query's newest checkpoint,
    ``None`` for a savepoint.
    """

    metadata: CheckpointMetadata
    operators: tuple[OperatorTable, ...]
    files: tuple[FileRow, ...]
    file_count: int
    own_bytes: int
    shared_bytes: int
    compared: tuple[int, ...]
    is_compared_with_all: bool
    newest: int | None = None


def checkpoint_page(place: QueryPlace, number: int) -> SnapshotPage | CkptError | None:
    """Return a retained checkpoint, ``None`` if none has that id, or why it is unreadable."""
    with retained_checkpoints(place.checkpoints) as found:
        if number not in found.used_ids or not found.is_complete(number):
            return None
        metadata = found.read(number)
        if isinstance(metadata, CkptError):
            return metadata
        newest = found.newest(OTHERS_READ + 1)
        near = [other for other in newest if other != number]
        before = found.newest(1, number)
        others = {other: found.read(other) for other in {*near[:OTHERS_READ], *before}}
        total = len(found.used_ids) - 1
    readable = {n: each for n, each in others.items() if isinstance(each, CheckpointMetadata)}
    previous = readable.get(before[0]) if before else None
    page = _page(metadata, previous, readable, is_whole=len(readable) >= total)
    return replace(page, newest=newest[0] if newest else None)


def savepoint_page(metadata: CheckpointMetadata) -> SnapshotPage:
    """Return a savepoint, which shares no file."""
    return _page(metadata, None, {}, is_whole=True)


def _page(
    metadata: CheckpointMetadata,
    previous: CheckpointMetadata | None,
    others: dict[int, CheckpointMetadata],
    *,
    is_whole: bool,
) -> SnapshotPage:
    before = {} if previous is None else {(h.uid, h.subtask): h for h in previous.handles()}
    needed = {n: {file.path for file in each.files()} for n, each in others.items()}
    sizes = {file.path: file.size_bytes for file in metadata.files()}
    users = {path: tuple(n for n in sorted(needed) if path in needed[n]) for path in sizes}
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))
    return SnapshotPage(
        metadata=metadata,
        operators=tuple(
            operator_table(operator, before, has_before=previous is not None)
            for operator in metadata.operators
        ),
        files=tuple(FileRow(path, sizes[path], users[path]) for path in largest[:FILES_SHOWN]),
        file_count=len(sizes),
        own_bytes=sum(sizes[path] for path in sizes if not users[path]),
        shared_bytes=sum(sizes[path] for path in sizes if users[path]),
        compared=tuple(sorted(others)),
        is_compared_with_all=is_whole,
    )


def operator_table(
    operator: OperatorMetadata, before: dict[tuple[str, int], Handle], *, has_before: bool
) -> OperatorTable:
    """Return an operator's subtasks.

    `before` has the handles of the checkpoint before, by uid and subtask. Without such a
    checkpoint, new bytes are unknown.
    """
    handles = sorted(operator.handles, key=lambda handle: handle.subtask)
    rows = tuple(
        _row(handle, before.get((handle.uid, handle.subtask)), has_before=has_before)
        for handle in handles
    )
    # A subtask that never had a row has no handle; it counts as 0, else one subtask with all
    # rows would look balanced.
    idle = max(operator.parallelism - len(rows), 0)
    columns = [[row.numbers[place] for row in rows] for place in range(len(COLUMNS))]
    return OperatorTable(
        operator=operator,
        key_schema=schema_text(operator.key_schema),
        states=tuple(map(_state, _states(handles))),
        rows=rows,
        summaries=tuple(summary_of_column(rows, column, idle) for column in columns),
    )


def most_skewed(metadata: CheckpointMetadata) -> OperatorTable | None:
    """Return the operator with the worst skew, ``None`` if no operator has state."""
    tables = [operator_table(each, {}, has_before=False) for each in metadata.operators]
    return max(
        (table for table in tables if table.skew is not None),
        key=lambda table: table.skew or 0.0,
        default=None,
    )


def summary_of_column(
    rows: Sequence[SubtaskRow], column: Sequence[int | None], idle: int = 0
) -> ColumnSummary | None:
    """Return the spread of a column, ``None`` if no subtask has a number in it.

    `rows` and `column` have only the subtasks with state. The `idle` subtasks without state count
    as 0.
    """
    known = [
        (value, row.subtask) for row, value in zip(rows, column, strict=True) if value is not None
    ]
    if not known:
        return None
    values = [*(value for value, _ in known), *([0] * idle)]
    mean = sum(values) / len(values)
    largest, worst = max(known)
    return ColumnSummary(
        min(values), median(values), largest, largest / mean if mean else 1.0, worst
    )


def _states(handles: Sequence[Handle]) -> list[StateDescriptor]:
    """Return the states in use, each as the newest subtask has it."""
    found: dict[str, StateDescriptor] = {}
    for handle in sorted(handles, key=lambda each: each.epoch):
        found.update({state.name: state for state in handle.states if state.sweeps is None})
    return list(found.values())


def _state(state: StateDescriptor) -> StateRow:
    ttl_ms = None if state.ttl is None else state.ttl.duration_ms
    schema = schema_text(state.value_schema)
    if state.map_key_schema is not None:
        schema = f"{schema_text(state.map_key_schema)} to {schema}"
    return StateRow(state.name, state.kind, schema, ttl_ms)


def _row(handle: Handle, before: Handle | None, *, has_before: bool) -> SubtaskRow:
    sizes = sizes_of_subtask(handle, before)
    counted = handle.counted(handle.epoch)
    return SubtaskRow(
        subtask=handle.subtask,
        epoch=handle.epoch,
        numbers=(
            sizes.size_bytes,
            sizes.new_bytes if has_before else None,
            sizes.files,
            len(handle.segments),
            *(counted[field] for field in _COUNTED),
        ),
    )


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """A file that nothing needs.

    `changed_at_ms` is known on this machine only, `epoch` if the file's name has one.
    """

    path: str
    size_bytes: int | None
    changed_at_ms: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """The data files of a query.

    `unneeded` are files that no retained checkpoint, reader or later epoch needs; the next
    checkpoint deletes them. `measured` are the first of them, and `unneeded_bytes` is the size of
    these. `problem` says why the files could not be judged.
    """

    files: int
    needed: int
    recent: int
    unneeded: tuple[str, ...]
    unneeded_bytes: int
    problem: str | None = None
    measured: tuple[MeasuredFile, ...] = ()


def kept_files(
    place: QueryPlace, *, most_checkpoints: int = CHECKPOINTS_READ, measures: bool = True
) -> KeptFiles:
    """Return which data files of a query are needed.

    If more than `most_checkpoints` checkpoints are retained, the files are not judged. Without
    `measures`, sizes and ages of unneeded files are not looked up.
    """
    storage = place.checkpoints
    needed: set[str] = set()
    with retained_checkpoints(storage) as found:
        numbers = found.newest(most_checkpoints + 1)
        names = {f"{top}/{name}" for top in (SHARED, TASK_OWNED) for name in storage.list(top)}
        if not numbers or len(numbers) > most_checkpoints:
            why = "there is no checkpoint yet" if not numbers else "too many checkpoints to read"
            return KeptFiles(len(names), 0, 0, (), 0, why)
        newest = None
        for number in numbers:
            metadata = found.read(number)
            if isinstance(metadata, CkptError):
                return KeptFiles(len(names), 0, 0, (), 0, str(metadata))
            newest = newest or metadata
            needed.update(reference.path for reference in metadata.files())
    assert newest is not None  # there is a checkpoint
    needed |= pinned_files(storage, now_ms())
    unneeded = sorted(garbage_of(storage, newest, needed))
    measured = [_measure(storage, path) for path in unneeded[:FILES_MEASURED] if measures]
    return KeptFiles(
        files=len(names),
        needed=len(names & needed),
        recent=len(names - needed - set(unneeded)),
        unneeded=tuple(unneeded),
        unneeded_bytes=sum(each.size_bytes or 0 for each in measured),
        measured=tuple(measured),
    )


def _measure(storage: Storage, path: str) -> MeasuredFile:
    """Return what a store says of a file without opening it."""
    file = state_file(PurePosixPath(path).name)
    local = storage.local_path(path)
    try:
        changed_at_ms = None if local is None else local.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:  # it was just deleted
        changed_at_ms = None
    return MeasuredFile(
        path, storage.size_bytes(path), changed_at_ms, None if file is None else file.epoch
    )


def encode_kept_files(place: QueryPlace) -> bytes:
    """Return which data files of a query are needed now, for a bundle."""
    try:
        found = kept_files(place)
    except (OSError, CkptError) as exc:
        found = _unknown_files(str(exc))
    return msgspec.json.encode(found)


def bundled_kept_files(place: QueryPlace) -> KeptFiles:
    """Return which data files of a query were needed when its bundle was made."""
    try:
        return msgspec.json.decode(place.checkpoints.read(KEPT_FILES_NAME), type=KeptFiles)
    except FileNotFoundError:
        return _unknown_files("the bundle does not say it")
    except JSON_ERRORS as exc:
        return _unknown_files(
            f"the bundle is damaged ({exc}): make it again with `pyspark-ckpt bundle`"
        )


def _unknown_files(problem: str) -> KeptFiles:
    return KeptFiles(0, 0, 0, (), 0, problem)
