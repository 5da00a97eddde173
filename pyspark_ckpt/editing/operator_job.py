"""The Spark jobs that write an edit's operators, and the savepoint that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.editing.entries.blocks import (
    BLOCKS_SCHEMA,
    RANGE,
    SUBTASK,
    InBlocks,
    empty_blocks,
)
from pyspark_ckpt.editing.entries.encoding import (
    ENTRIES_SCHEMA,
    STORED_KEY,
    VALUE,
    EncodeKeys,
    EncodeOperatorState,
    EncodeRaw,
    EncodeState,
    EncodeTimers,
    StoredValues,
)
from pyspark_ckpt.editing.entries.stored_entries import KeptEntries, ReadEntries
from pyspark_ckpt.editing.entries.writing import HANDLES_SCHEMA, WriteEntries
from pyspark_ckpt.editing.given_columns import quoted
from pyspark_ckpt.editing.operator_edit import OperatorEdit
from pyspark_ckpt.editing.typed_frames import TableColumns, Times, timer_columns
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.formats.metadata import EpochContents, OperatorMetadata, SourceLog
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN
from pyspark_ckpt.operator.rows.key_columns import canonical_column
from pyspark_ckpt.operator.rows.keys import subtask_tokens
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import FREE, FREE_PLACE
from pyspark_ckpt.savepoint.job import SavepointJob, shown_progress
from pyspark_ckpt.savepoint.savepoint import NewSavepoint
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.spark.jobs import JOB_ERRORS, SparkJobs, collected, error_text
from pyspark_ckpt.spark.own_session import SMALL_BATCHES, of_own_session
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.values.types import in_python

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
        operator, states = self.edit.operator, self.edit.states
        write = WriteEntries(
            first=tuple(self._first_handles(target)),
            lists=frozenset(
                each for each in self.edit.put if kind_of(states[each]).entries is Entries.CHUNKS
            ),
            target=target.url,
            token=target.token,
        )
        blocks = reduce(DataFrame.union, self._frames(times))
        if not is_connect(self.spark):  # there a session cannot run another session's frames
            blocks = of_own_session(blocks, SMALL_BATCHES)
        tokens = F.array(*[F.lit(token) for token in subtask_tokens(operator.parallelism)])
        rows = collected(
            blocks.withColumn(TOKEN, F.element_at(tokens, F.col(SUBTASK) + 1))
            .repartition(operator.parallelism, TOKEN)
            .drop(TOKEN)
            .sortWithinPartitions(RANGE)
            .mapInArrow(write, HANDLES_SCHEMA),
            f"writing operator {operator.uid}",
        )
        return sorted((decode_handle(bytes(row[0])) for row in rows), key=attrgetter("subtask"))

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

    def _frames(self, times: Times) -> list[DataFrame]:
        """Return the entries of the operator, in several frames."""
        edit = self.edit
        every = self.spark.range(edit.operator.parallelism)
        # Each subtask gets a handle, which alone says what states there are if none has entries.
        frames = [every.select(*empty_blocks(F.col("id")))]
        frames += [self._encoded(state_id, rows, times) for state_id, rows in edit.put.items()]
        if edit.timers is not None:
            columns = timer_columns(edit.key_schema)
            encode_timers = self._in_blocks(EncodeTimers(edit.place))
            frames.append(self._mapped(edit.timers, columns, encode_timers, BLOCKS_SCHEMA))
        if edit.raw is not None:
            encode_raw = self._in_blocks(EncodeRaw(edit.operator.parallelism))
            frames.append(edit.raw.mapInArrow(encode_raw, BLOCKS_SCHEMA))
        if edit.stored is not None and edit.stored.handles:
            frames.append(self._kept_entries(edit.stored.handles))
        return frames

    def _kept_entries(self, stored: Sequence[Handle]) -> DataFrame:
        """Return the entries that are kept as they are stored."""
        edit = self.edit
        assert edit.unified is not None  # the operator is stored
        kept = KeptEntries(
            unified=edit.unified,
            states=frozenset(range(len(edit.unified.states))) - edit.dropped - edit.put.keys(),
            timers=edit.timers is None,
            raw=edit.raw is None,
            erased=frozenset(self.erased_keys()),
            keyed=edit.keyed,
        )
        handles = tuple(map(encode_handle, stored))
        places = self.spark.range(len(handles), numPartitions=len(handles))
        read = ReadEntries(handles, edit.source, kept)
        return places.mapInArrow(self._in_blocks(read), BLOCKS_SCHEMA)

    def erased_keys(self) -> dict[bytes, bytes]:
        """Return the keys that are removed: as keys, after their key groups, and as values."""
        found: dict[bytes, bytes] = {}
        columns = TableColumns(keys=tuple(self.edit.key_schema.fields))
        for keys in self.edit.erased:
            encoded = self._mapped(keys, columns, EncodeKeys(self.edit.place), ENTRIES_SCHEMA)
            rows = collected(
                encoded.select(STORED_KEY, VALUE),
                f"keys to erase of operator {self.edit.operator.uid}",
            )
            found.update((bytes(key), bytes(value)) for key, value in rows)
        return found

    def _encoded(self, state_id: int, rows: DataFrame, times: Times) -> DataFrame:
        state = self.edit.states[state_id]
        columns = self.edit.columns(state_id).of_rows(rows.columns)
        has_times = columns.expires_at is not None
        stored_values = StoredValues(state_id, state, times.of(state), has_times=has_times)
        if self.edit.movement(state_id) is not Movement.WITH_KEY:
            return self._of_subtasks(rows, columns, stored_values)
        encode = self._in_blocks(EncodeState(self.edit.place, stored_values))
        return self._mapped(rows, columns, encode, BLOCKS_SCHEMA)

    def _of_subtasks(
        self, rows: DataFrame, columns: TableColumns, values: StoredValues
    ) -> DataFrame:
        """Return encoded rows of a state that belongs to subtasks, or is the same in all."""
        parallelism = self.edit.operator.parallelism
        named = [quoted(name) for name, _ in columns.all_of()]
        if columns.subtask is None:
            every = F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1)))
            named.insert(0, every.alias("__ckpt_subtask"))
        encode = self._in_blocks(EncodeOperatorState(parallelism, values))
        return rows.select(*named).mapInArrow(encode, BLOCKS_SCHEMA)

    def _in_blocks(self, encode: Any) -> InBlocks:
        return InBlocks(encode, self.edit.operator.parallelism, self.edit.operator.max_parallelism)

    def _mapped(
        self, rows: DataFrame, columns: TableColumns, encode: Any, schema: T.StructType
    ) -> DataFrame:
        """Return encoded rows; the first column that `encode` gets is the key group."""
        # In the type of the column, whose parts may all be null.
        types = [in_python(each.dataType) for each in columns.keys]
        named_keys = zip(columns.keys, types, strict=True)
        keys = [canonical_column(quoted(each.name), kind) for each, kind in named_keys]
        group = F.pmod(F.hash(*keys), F.lit(self.edit.operator.max_parallelism))
        named = [quoted(name) for name, _ in columns.all_of()]
        return rows.select(group.alias(KEY_GROUP), *named).mapInArrow(encode, schema)


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
