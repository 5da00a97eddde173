"""Make a new savepoint from tables: of an older one with changes, or the first of a query."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.editing.contents import edited_contents, first_contents
from pyspark_ckpt.editing.operator_edit import OperatorEdit
from pyspark_ckpt.editing.operator_edits import OperatorEdits
from pyspark_ckpt.editing.operators import declared_operator, stored_operator
from pyspark_ckpt.editing.position import Position, position_of
from pyspark_ckpt.editing.saving import Saving
from pyspark_ckpt.errors import CkptError, PlanError
from pyspark_ckpt.formats.metadata import (
    EpochContents,
    OperatorMetadata,
    Origin,
    SourceLog,
    metadata_of,
)
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.restore.offsets import plan_sources
from pyspark_ckpt.restore.operators import OperatorTerms, plan_operators
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_operators import plan_spark_operators
from pyspark_ckpt.snapshot.pin import ReaderPin
from pyspark_ckpt.spark.operators import StatefulOperators
from pyspark_ckpt.spark.paths import qualified_path, usable_directory
from pyspark_ckpt.spark.plan import (
    given_names,
    names_sources,
    operators_of,
    source_ids,
    source_names,
)
from pyspark_ckpt.spark.program import check_frame
from pyspark_ckpt.spark.session_in_use import session_in_use


class StateEdit(OperatorEdits):
    """Changes that become a new savepoint; made by :func:`edit_state`.

    Nothing is read or written before :meth:`save`, except the metadata of the source. The source
    is never changed.

    Parameters
    ----------
    spark : SparkSession
        The session whose executors do the work.
    source : RestoreSource, optional
        The checkpoint or savepoint that is edited.
    query : DataFrame, optional
        The query that will be restored from the savepoint.

    Examples
    --------
    >>> edit = ckpt.edit_state(savepoint.path)
    >>> edit.put("count", "count", spark.createDataFrame([("ada", 5)], "user string, n long"))
    StateEdit(...)
    >>> edited = edit.save(f"{directory}/edited")
    >>> edited.epoch == savepoint.epoch
    True
    """

    def __init__(
        self,
        spark: SparkSession,
        source: RestoreSource | None = None,
        query: DataFrame | None = None,
    ) -> None:
        super().__init__(spark)
        self._source = source
        self._query = query
        self._wanted = None if query is None else operators_of(query)
        self._position: Position | None = None
        self._parent: Origin | None = None
        self._failed_read: Callable[[str, Exception], CkptError | None] = lambda *_: None
        if source is not None:
            for stored in source.metadata.operators:
                self._operators[stored.uid] = stored_operator(source, stored)
        if self._wanted is not None:
            for operator in self._wanted.descriptors:
                self._declare(operator)

    def add_operator(
        self,
        uid: str,
        processor: StatefulProcessor,
        keys: T.StructType | str,
        *,
        time_mode: str = "None",
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        has_watermark: bool | None = None,
    ) -> StateEdit:
        """Add an operator, without state at first.

        Parameters
        ----------
        uid : str
            The operator's uid.
        processor : StatefulProcessor
            The processor, whose ``init`` declares the states.
        keys : StructType or str
            The key columns in the order of ``key_by``; text is DDL.
        time_mode : str
            As in ``transformWithState``.
        parallelism, max_parallelism : int, optional
            The number of subtasks and of key groups; by default those that ``key_by`` would give.
        has_watermark : bool, optional
            Whether the stream has a watermark; by default if `time_mode` is ``EventTime``.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If an argument is not allowed, or there is an operator of the uid.
        ProcessorError
            If ``init`` raises.

        Examples
        --------
        >>> edit = ckpt.edit_state().add_operator("count", Count(), "user string")
        """
        if uid in self._operators:
            raise PlanError(f"operator {uid!r} is there already: change it, or use another uid")
        descriptor = declared_operator(
            self._spark,
            uid,
            processor,
            keys,
            time_mode,
            parallelism,
            max_parallelism,
            has_watermark,
        )
        self._declare(descriptor)
        return self

    def position(
        self,
        offsets: Sequence[str | Mapping[str, Any] | None] | None = None,
        watermark_ms: int = 0,
        epoch: int = 0,
    ) -> StateEdit:
        """Set where the sources of a restored query continue; only without a source to edit.

        Parameters
        ----------
        offsets : sequence of str or Mapping, optional
            For each source its offset, as Spark writes it: ``{"events": {"0": 42}}`` for Kafka.
            ``None`` for a source that starts as its options say; by default all sources do.
        watermark_ms : int
            The watermark that the state has seen, in milliseconds since 1970.
        epoch : int
            The number of the last epoch; the restored query starts with the next.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If a value is not allowed, or an older savepoint is edited, which has its own position.

        Examples
        --------
        >>> edit = ckpt.edit_state().position(offsets=[{"events": {"0": 42}}])
        """
        if self._source is not None:
            raise PlanError(
                f"{self._source.path} has source offsets, which an edit keeps: call position only "
                "without a source"
            )
        places = () if self._query is None else source_ids(self._query)
        names = () if self._query is None else given_names(self._query)
        self._position = position_of(offsets, watermark_ms, epoch, places, names)
        return self

    def save(self, directory: str) -> Savepoint:
        """Write the savepoint; it is complete and durable on return.

        Parameters
        ----------
        directory : str
            The parent of the new ``savepoint-...`` directory.

        Returns
        -------
        Savepoint
            A canonical savepoint, self-contained.

        Raises
        ------
        PlanError
            If there is no operator.
        ConfigurationError
            If the directory is in the memory of one process, or cannot create files exclusively.
        StateValueError
            If a row does not fit its state, or a key has two rows.
        RestoreError, IncompatibleStateError
            If the query that was given could not be restored from it.
        CheckpointNotFoundError
            If the source is a checkpoint that its query's retention removed meanwhile.
        CorruptFileError
            If a file of the source is missing or changed.
        CheckpointAbortedError
            If a Spark job failed; nothing remains of the savepoint.

        Examples
        --------
        >>> edited = ckpt.edit_state(savepoint.path).save(f"{directory}/edited")
        >>> edited.path == savepoint.path
        False
        """
        if not self._operators:
            raise PlanError("the savepoint would have no operator: add one with add_operator")
        contents, logs = self._contents()
        target = usable_directory(self._spark, str(directory))
        self._check_sources_and_spark_operators(contents, target)
        contents, ids = self._ids(contents)
        saving = Saving(
            self._spark,
            contents,
            tuple(self._operators.values()),
            ids,
            None if self._source is None else self._source.storage,
            logs,
            self._failed_read,
        )
        if self._source is None:
            return saving.save(target, self._check)
        with closing(ReaderPin(self._source)), self._source.reading():
            return saving.save(target, self._check)

    def __repr__(self) -> str:
        changed = [uid for uid, operator in self._operators.items() if operator.is_touched]
        path = "no source" if self._source is None else self._source.path
        return f"StateEdit({path}, changes {', '.join(changed) or 'nothing'})"

    def _contents(self) -> tuple[EpochContents, list[tuple[SourceLog, bytes]]]:
        """Return what the savepoint has besides operators, and the logs that have no source."""
        if self._source is not None:
            return edited_contents(self._source, tuple(self._operators), self._parent), []
        if self._position is None:
            self.position()
        assert self._position is not None
        return first_contents(self._position, self._spark.version, self._parent)

    def _check_sources_and_spark_operators(self, contents: EpochContents, target: str) -> None:
        """Check that the query that was given could be restored from all but its operators.

        Nothing is written yet. What is edited has the same sources and operators of Spark.
        """
        if self._wanted is None or self._query is None:
            return
        source = self._source
        if source is None:
            first = metadata_of(
                contents,
                CheckpointKind.SAVEPOINT,
                checkpoint_id=None,
                triggered_at_ms=0,
                completed_at_ms=0,
            )
            source = RestoreSource.of_metadata(target, encode_metadata(first))
        planned = plan_spark_operators(source, self._wanted, allow_non_restored_state=False)
        names = given_names(self._query) if names_sources(self._spark) else ()
        sources = plan_sources(source, source_ids(self._query), source_names(self._query), names)
        for part in (*planned.operators, sources):
            if part.errors:
                raise part.errors[0]

    def _ids(self, contents: EpochContents) -> tuple[EpochContents, dict[str, int]]:
        """Return the ids of the operators by uid, and the contents with those of Spark's own.

        They are the ids of the query that was given. Without one, stored operators keep theirs. A
        restore finds operators by their uids, and Spark's own by their names and order.
        """
        wanted = StatefulOperators.of(()) if self._wanted is None else self._wanted
        spark_operators = tuple(sorted(contents.spark_operators, key=lambda each: each.operator_id))
        if self._wanted is not None:  # it was checked that it has the same
            left = {
                each.name: [n for n, op in wanted.spark_operators.items() if op.name == each.name]
                for each in spark_operators
            }
            spark_operators = tuple(
                msgspec.structs.replace(each, operator_id=left[each.name].pop(0))
                for each in spark_operators
            )
        ids = {operator.uid: number for number, operator in wanted.ours.items()}
        taken = {*ids.values(), *(each.operator_id for each in spark_operators)}
        for uid, operator in self._operators.items():  # the stored ones first
            if uid in ids:
                continue
            own = None if operator.stored is None else operator.stored.operator_id
            if own is None or own in taken:
                own = next(number for number in itertools.count() if number not in taken)
            ids[uid] = own
            taken.add(own)
        if spark_operators:
            contents = msgspec.structs.replace(contents, stored_spark_operators=spark_operators)
        return contents, ids

    def _check(self, operators: tuple[OperatorMetadata, ...]) -> None:
        """Check that the query that was given could be restored from the operators."""
        if self._wanted is None:
            return
        terms = OperatorTerms("the edited savepoint", {}, None, allow_non_restored_state=False)
        for planned in plan_operators(operators, self._wanted, terms):
            if planned.errors:
                raise planned.errors[0]

    def _declare(self, operator: OperatorDescriptor) -> None:
        """Add an operator of the query, or the states that a stored operator does not have yet."""
        found = self._operators.get(operator.uid)
        if found is None:
            self._operators[operator.uid] = OperatorEdit(
                where=f"operator {operator.uid!r}",
                operator=operator,
                states=list(operator.states),
            )
            return
        names = {state.name for state in found.states}
        for state in operator.states:
            if state.name not in names:
                found.add_state(state)


def edit_state(
    source: str | None = None,
    *,
    query: DataFrame | None = None,
    spark: SparkSession | None = None,
) -> StateEdit:
    """Begin a new savepoint: an older one with changes, or the first of a query that never ran.

    Call it on the driver. Nothing is written before :meth:`StateEdit.save`, and `source` is only
    read.

    Parameters
    ----------
    source : str, optional
        A ``savepoint-...`` or ``chk-...`` directory; by default the savepoint starts empty.
    query : DataFrame, optional
        The query as a DataFrame. Its operators are those of the savepoint, or are added to those of
        `source`, whose ids become those of the query. Before the savepoint is complete, it is
        checked that the query can be restored from it: its operators, also Spark's own, and its
        sources.
    spark : SparkSession, optional
        The session whose executors do the work; by default that of `query`, the active one, or
        PySpark's default one.

    Returns
    -------
    StateEdit
        Its methods collect changes, and ``save`` writes the savepoint.

    Raises
    ------
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If `source` holds no checkpoint or savepoint, or it is damaged.
    PlanError
        If there is no running Spark session, `query` is no DataFrame, or it cannot be checkpointed.

    Examples
    --------
    The state of a query that never ran, from its history:

    >>> history = spark.createDataFrame([("ada", 7), ("bob", 2)], "user string, n long")
    >>> edit = ckpt.edit_state(query=counts)
    >>> first = edit.put("count", "count", history).save(f"{directory}/first")
    >>> print(ckpt.plan_restore(first.path, counts))
    restore from ..., epoch 0: can start
    ...
    """
    if query is not None:
        check_frame(query, "edit_state", "query", PlanError)
    frames = () if query is None else (query,)
    session = session_in_use("edit_state", PlanError, spark, *frames)
    opened = None if source is None else RestoreSource(qualified_path(session, str(source)))
    return StateEdit(session, opened, query)
