"""The Spark jobs that write an edit's operators, and the savepoint that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.editing.encoding import (
    EncodeKeys,
    EncodeOperatorState,
    EncodeRaw,
    EncodeState,
    EncodeTimers,
    StoredValues,
)
from pyspark_ckpt.editing.given_columns import quoted
from pyspark_ckpt.editing.operator_edit import OperatorEdit
from pyspark_ckpt.editing.typed_frames import TableColumns, Times, timer_columns
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, StateValueError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import EpochContents, OperatorMetadata, SourceLog
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.operator.rows.input import KEY_GROUP
from pyspark_ckpt.operator.rows.key_columns import canonical_column
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import FREE, FREE_PLACE
from pyspark_ckpt.savepoint.job import SavepointJob, shown_progress
from pyspark_ckpt.savepoint.savepoint import NewSavepoint
from pyspark_ckpt.spark.jobs import JOB_ERRORS, SparkJobs, collected, error_text
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stored.redistribution import (
    ENTRIES_SCHEMA,
    STORED_KEY,
    VALUE,
    Kept,
    Redistribution,
)
from pyspark_ckpt.stored.rewrite import RowsSource, Source, StateRewrite, StoredSource
from pyspark_ckpt.stored.writing import Destination, Twice
from pyspark_ckpt.values.types import in_python

_TWICE = Twice(StateValueError, "give one row for each key, map key or position", is_one_timer=True)
_NEVER_BUSY_MS = float("inf")
"""No query waits for the slots."""


@dataclass(frozen=True, slots=True)
class Target:
    """The savepoint that the operator's files belong to."""

    url: str
    token: str
    query_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class OperatorJob:
    """The job of one operator."""

    spark: SparkSession
    edit: OperatorEdit

    def written(self, target: Target, times: Times) -> list[Handle]:
        """Write the operator's state; return the handles of its subtasks, whose files are durable.

        It raises ``CkptError`` if a row does not fit its state or a stored file is corrupt. If the
        job fails for another reason, the error of Spark or Py4J passes through.
        """
        states = self.edit.states
        lists = (each for each in self.edit.put if kind_of(states[each]).entries is Entries.CHUNKS)
        rewrite = StateRewrite(
            self._sources(times),
            tuple(self._first_handles(target)),
            Destination(target.url, _TWICE, target.token, frozenset(lists)),
            every_subtask=True,
        )
        return rewrite.run(self.spark, f"writing operator {self.edit.operator.uid}")

    def _first_handles(self, target: Target) -> Iterator[Handle]:
        """Yield the handle of each subtask, which has no files yet.

        Broadcast state that is kept stays with the subtasks that have it. If the others had it too,
        without entries, nobody could tell which is the copy that counts; nor without the epochs,
        because that of the newest subtask counts.
        """
        operator, stored = self.edit.operator, self.edit.stored
        handles = {} if stored is None else {each.subtask: each for each in stored.handles}
        copied = {name for each in handles.values() for name in _names(each)} & self._kept_copies()
        # A subtask that had no epoch is not newer than any other.
        no_epoch = min((each.epoch for each in handles.values()), default=target.epoch)
        for subtask in range(operator.parallelism):
            before = handles.get(subtask)
            lacking = copied if before is None else copied - _names(before)
            epoch = no_epoch if before is None else before.epoch
            first = operator.first_handle(target.query_id, subtask, epoch)
            states = (FREE_PLACE if each.name in lacking else each for each in self.edit.states)
            yield msgspec.structs.replace(first, states=tuple(states))

    def _kept_copies(self) -> set[str]:
        """Return the names of the broadcast states whose stored entries are kept."""
        return {
            state.name
            for state_id, state in enumerate(self.edit.states)
            if state.kind != FREE
            and state_id not in self.edit.put
            and self.edit.movement(state_id) is Movement.COPIED
        }

    def _sources(self, times: Times) -> list[Source]:
        """Return the entries that are put, and those that are kept as they are stored."""
        edit = self.edit
        sources: list[Source] = [
            self._encoded(state_id, rows, times) for state_id, rows in edit.put.items()
        ]
        if edit.timers is not None:
            columns = timer_columns(edit.key_schema)
            rows = self._with_key_groups(edit.timers, columns)
            sources.append(RowsSource(rows, EncodeTimers(edit.place)))
        if edit.raw is not None:
            sources.append(RowsSource(edit.raw, EncodeRaw(edit.operator.parallelism)))
        if edit.stored is not None and edit.stored.handles:
            sources.append(self._kept_entries(edit.stored.handles))
        return sources

    def _kept_entries(self, stored: Sequence[Handle]) -> StoredSource:
        """Return the entries that are kept as they are stored."""
        edit = self.edit
        assert edit.unified is not None  # the operator is stored
        kept = Kept(
            states=frozenset(range(len(edit.unified.states))) - edit.dropped - edit.put.keys(),
            timers=edit.timers is None,
            raw=edit.raw is None,
            erased=frozenset(self.erased_keys()),
            keyed=edit.keyed,
        )
        operator = edit.operator
        redistribution = Redistribution(
            edit.unified, operator.parallelism, operator.max_parallelism, kept=kept
        )
        return StoredSource(stored, edit.source, redistribution)

    def erased_keys(self) -> dict[bytes, bytes]:
        """Return the keys that are removed: as keys, after their key groups, and as values."""
        found: dict[bytes, bytes] = {}
        columns = TableColumns(keys=tuple(self.edit.key_schema.fields))
        for keys in self.edit.erased:
            rows = self._with_key_groups(keys, columns)
            encoded = rows.mapInArrow(EncodeKeys(self.edit.place), ENTRIES_SCHEMA)
            erased = collected(
                encoded.select(STORED_KEY, VALUE),
                f"keys to erase of operator {self.edit.operator.uid}",
            )
            found.update((bytes(key), bytes(value)) for key, value in erased)
        return found

    def _encoded(self, state_id: int, rows: DataFrame, times: Times) -> RowsSource:
        state = self.edit.states[state_id]
        columns = self.edit.columns(state_id).of_rows(rows.columns)
        has_times = columns.expires_at is not None
        stored_values = StoredValues(state_id, state, times.of(state), has_times=has_times)
        if self.edit.movement(state_id) is not Movement.WITH_KEY:
            return self._of_subtasks(rows, columns, stored_values)
        encode = EncodeState(self.edit.place, stored_values)
        return RowsSource(self._with_key_groups(rows, columns), encode)

    def _of_subtasks(
        self, rows: DataFrame, columns: TableColumns, values: StoredValues
    ) -> RowsSource:
        """Return encoded rows of a state that belongs to subtasks, or is the same in all."""
        parallelism = self.edit.operator.parallelism
        named = [quoted(name) for name, _ in columns.all_of()]
        if columns.subtask is None:
            every = F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1)))
            named.insert(0, every.alias("__ckpt_subtask"))
        return RowsSource(rows.select(*named), EncodeOperatorState(parallelism, values))

    def _with_key_groups(self, rows: DataFrame, columns: TableColumns) -> DataFrame:
        """Return the columns of rows, after a column with the key group of each row."""
        # In the type of the column, whose parts may all be null.
        types = [in_python(each.dataType) for each in columns.keys]
        named_keys = zip(columns.keys, types, strict=True)
        keys = [canonical_column(quoted(each.name), kind) for each, kind in named_keys]
        group = F.pmod(F.hash(*keys), F.lit(self.edit.operator.max_parallelism))
        named = [quoted(name) for name, _ in columns.all_of()]
        return rows.select(group.alias(KEY_GROUP), *named)


def _names(handle: Handle) -> set[str]:
    """Return the names of the states that a subtask has."""
    return {state.name for state in handle.states if state.sweeps is None}


@dataclass(frozen=True, slots=True)
class Saving:
    """The work of writing a savepoint.

    `ids` has the id of each operator by uid. The files of `contents` and of stored operators lie in
    `source`, which is ``None`` if there are none. `failed_read` returns the error of an operator's
    job that failed because its rows could not be read, ``None`` if it does not know the cause.
    """

    spark: SparkSession
    contents: EpochContents
    operators: tuple[OperatorEdit, ...]
    ids: Mapping[str, int]
    source: Storage | None
    logs: list[tuple[SourceLog, bytes]]
    failed_read: Callable[[str, Exception], CkptError | None] = lambda uid, error: None  # noqa: ARG005

    def save(
        self, directory: str, check: Callable[[tuple[OperatorMetadata, ...]], None]
    ) -> Savepoint:
        """Write the savepoint; `check` raises if it may not be completed.

        If it fails, nothing remains in the directory.
        """
        new = NewSavepoint(self.contents.query_id, directory)
        try:
            return new.complete(self.contents, lambda new: self._written(new, check), self.source)
        except BaseException:
            new.discard()
            raise

    def _written(
        self, new: NewSavepoint, check: Callable[[tuple[OperatorMetadata, ...]], None]
    ) -> tuple[OperatorMetadata, ...]:
        for log, data in self.logs:
            new.target.write(log.file.path, [data])
        what = f"savepoint {new.path}"
        jobs = SparkJobs(self.spark, what)
        copied = self._copied(new, what, jobs)
        written = self._rewritten(new, what, jobs)
        by_uid = {each.uid: each for each in (*copied, *written)}
        operators = tuple(by_uid[each.operator.uid] for each in self.operators)
        check(operators)
        return operators

    def _copied(self, new: NewSavepoint, what: str, jobs: SparkJobs) -> Iterable[OperatorMetadata]:
        """Copy the operators that do not change."""
        kept = [each for each in self.operators if not each.is_touched]
        if not kept:
            return
        assert self.source is not None  # only stored operators do not change
        stored = [each.stored for each in kept if each.stored is not None]
        copies = [
            new.copy_of(handle, self.source, SavepointFormat.CANONICAL)
            for operator in stored
            for handle in operator.handles
        ]
        job = SavepointJob(self.spark, what, jobs, lambda: _NEVER_BUSY_MS)
        handles = iter(job(copies) if copies else ())
        for operator in stored:
            found = tuple(next(handles) for _ in operator.handles)
            yield msgspec.structs.replace(
                operator, operator_id=self.ids[operator.uid], handles=found
            )

    def _rewritten(
        self, new: NewSavepoint, what: str, jobs: SparkJobs
    ) -> Iterable[OperatorMetadata]:
        """Write the operators that change."""
        changed = [each for each in self.operators if each.is_touched]
        contents = self.contents
        target = Target(new.target.url, new.token, contents.query_id, contents.epoch)
        times = Times(now_ms(), contents.watermark_ms)
        total = sum(each.operator.parallelism for each in changed)
        with shown_progress(what, total, jobs.tasks) as progress, jobs.running():
            for each in changed:
                try:
                    handles = OperatorJob(self.spark, each).written(target, times)
                except CkptError:  # some are PySpark's errors too
                    raise
                except JOB_ERRORS as exc:
                    uid = each.operator.uid
                    raise self.failed_read(uid, exc) or CheckpointAbortedError(
                        f"{what}: writing operator {uid!r} on the executors failed: "
                        f"{error_text(exc)}"
                    ) from exc
                progress.advance(each.operator.parallelism)
                yield each.metadata(self.ids[each.operator.uid], tuple(handles))
