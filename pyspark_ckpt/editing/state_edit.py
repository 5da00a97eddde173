"""Make a new savepoint from tables: of an older one with changes, or the first of a query."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.editing.operator_edit import OperatorEdit
from pyspark_ckpt.editing.operator_job import Saving
from pyspark_ckpt.editing.position import Position, position_of
from pyspark_ckpt.editing.typed_frames import ChangeRows, RowsFunction
from pyspark_ckpt.errors import CkptError, PlanError
from pyspark_ckpt.formats.metadata import (
    EpochContents,
    OperatorMetadata,
    Origin,
    SourceLog,
    metadata_of,
)
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind, TimeMode
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, code_fingerprint, processor_name
from pyspark_ckpt.operator.plan.declared import declare_states, parse_schema
from pyspark_ckpt.operator.plan.operator import TIME_MODES
from pyspark_ckpt.operator.plan.parallelism import parallelism_of
from pyspark_ckpt.operator.rows.key_columns import check_key
from pyspark_ckpt.operator.rows.keys import check_max_parallelism, default_max_parallelism
from pyspark_ckpt.restore.offsets import plan_sources
from pyspark_ckpt.restore.operators import OperatorTerms, plan_operators
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_operators import plan_spark_operators
from pyspark_ckpt.snapshot.pin import ReaderPin
from pyspark_ckpt.spark.paths import qualified_path, usable_directory
from pyspark_ckpt.spark.plan import (
    StatefulOperators,
    given_names,
    names_sources,
    operators_of,
    source_ids,
    source_names,
)
from pyspark_ckpt.spark.program import check_frame
from pyspark_ckpt.spark.session import session_in_use
from pyspark_ckpt.stored.unify import UnifiedStates
from pyspark_ckpt.version import __version__


class StateEdit:
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
        self._spark = spark
        self._operators: dict[str, OperatorEdit] = {}
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
            If the source is a checkpoint that its query's retention has removed.
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
        """Return what the savepoint has except operators, and the logs that have no source."""
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
            contents = msgspec.structs.replace(contents, spark_operators=spark_operators)
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

    def put(self, uid: str, state: str, rows: DataFrame) -> StateEdit:
        """Replace a state by the rows of a DataFrame.

        Parameters
        ----------
        uid : str
            The operator.
        state : str
            The state.
        rows : DataFrame
            The state's table: the key columns, the columns of map keys, those of the values. A list
            has ``position``; without it, the values have the order of the rows. A state with a time
            to live may have ``expires_at``; without it, the entries count as written now. Operator
            list state has ``subtask`` instead of key columns, and broadcast state has neither.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator or state, or the rows have other columns.

        Examples
        --------
        >>> rows = spark.createDataFrame([("ada", 5)], "user string, n long")
        >>> edit = ckpt.edit_state(savepoint.path).put("count", "count", rows)
        """
        self._of(uid).put_state(state, rows)
        return self

    def change(
        self,
        uid: str,
        state: str,
        function: Callable[[Any], Any],
        *,
        as_pandas: bool = False,
    ) -> StateEdit:
        """Replace the rows of a state by what a function makes of them.

        Parameters
        ----------
        uid : str
            The operator.
        state : str
            The state.
        function : callable
            Is called on executors with parts of the state's table, and returns the rows that
            replace them. It may leave rows out and add rows. A part may end inside a list or map.
        as_pandas : bool
            Whether the function takes and returns pandas frames rather than Arrow tables.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator or state.

        Examples
        --------
        >>> def double(rows):
        ...     return rows.assign(n=rows.n * 2)
        >>> edit = ckpt.edit_state(savepoint.path)
        >>> doubled = edit.change("count", "count", double, as_pandas=True)
        >>> sorted(tuple(row) for row in doubled.table("count", "count").collect())
        [('ada', 4), ('bob', 2)]
        """
        operator = self._of(uid)
        rows = operator.table(self._spark, state)
        given = RowsFunction(function, as_pandas, f"{operator.where}, state {state!r}")
        operator.put_state(state, rows.mapInArrow(ChangeRows(given, rows.schema), rows.schema))
        return self

    def table(self, uid: str, state: str) -> DataFrame:
        """Return a state as a DataFrame, with the changes so far; ``put`` takes it back.

        Parameters
        ----------
        uid, state : str
            The operator and its state.

        Returns
        -------
        DataFrame
            The state's table, with the entries whose time to live is over.

        Raises
        ------
        PlanError
            If there is no such operator or state.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path)
        >>> many = edit.table("count", "count").where("n > 1")
        >>> edit.put("count", "count", many)
        StateEdit(...)
        """
        return self._of(uid).table(self._spark, state)

    def timers(self, uid: str) -> DataFrame:
        """Return the timers of an operator as a DataFrame, with the changes so far.

        Parameters
        ----------
        uid : str
            The operator.

        Returns
        -------
        DataFrame
            The key columns, and ``fires_at``; ``set_timers`` takes it back.

        Raises
        ------
        PlanError
            If there is no such operator.

        Examples
        --------
        >>> ckpt.edit_state(savepoint.path).timers("count").columns
        ['user', 'fires_at']
        """
        return self._of(uid).timers_table(self._spark)

    def set_timers(self, uid: str, rows: DataFrame) -> StateEdit:
        """Replace all timers of an operator.

        Parameters
        ----------
        uid : str
            The operator.
        rows : DataFrame
            The key columns, and ``fires_at``, a timestamp. A timer that is there twice is one.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, it has no clock, or the rows have other columns.

        Examples
        --------
        >>> none = spark.createDataFrame([], "user string, fires_at timestamp")
        >>> ckpt.edit_state(savepoint.path).set_timers("count", none)
        Traceback (most recent call last):
        ...
        pyspark_ckpt.errors.PlanError: ...
        """
        self._of(uid).put_timers(rows)
        return self

    def raw(self, uid: str) -> DataFrame:
        """Return the raw state of an operator as a DataFrame, with the changes so far.

        Parameters
        ----------
        uid : str
            The operator.

        Returns
        -------
        DataFrame
            A row per stream: ``subtask``, ``stream`` and ``data``; ``set_raw`` takes it back.

        Raises
        ------
        PlanError
            If there is no such operator.

        Examples
        --------
        >>> ckpt.edit_state(savepoint.path).raw("count").columns
        ['subtask', 'stream', 'data']
        """
        return self._of(uid).raw_table(self._spark)

    def set_raw(self, uid: str, rows: DataFrame) -> StateEdit:
        """Replace the raw state of an operator.

        Parameters
        ----------
        uid : str
            The operator.
        rows : DataFrame
            A row per stream: ``subtask``, ``stream``, a number from 0 that is unique in the
            subtask, and ``data``. Without rows, no raw state is left.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, or the rows have other columns.

        Examples
        --------
        >>> none = spark.createDataFrame([], "subtask int, stream int, data binary")
        >>> edit = ckpt.edit_state(savepoint.path).set_raw("count", none)
        """
        self._of(uid).put_raw(rows)
        return self

    def rekey(
        self,
        uid: str,
        function: Callable[[Any], Any],
        keys: T.StructType | str | None = None,
        *,
        as_pandas: bool = False,
    ) -> StateEdit:
        """Give all state and timers of an operator other keys, which a restore refuses.

        Two keys may become one only if they have no value at the same place.

        Parameters
        ----------
        uid : str
            The operator.
        function : callable
            Is called on executors with parts of the key columns, and returns the new key columns of
            each row, in the same order.
        keys : StructType or str, optional
            The new key columns; text is DDL. By default those of before.
        as_pandas : bool
            Whether the function takes and returns pandas frames rather than Arrow tables.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, or a column cannot be a key.

        Examples
        --------
        >>> def shout(keys):
        ...     return keys.assign(user=keys.user.str.upper())
        >>> edit = ckpt.edit_state(savepoint.path).rekey("count", shout, as_pandas=True)
        >>> sorted(tuple(row) for row in edit.table("count", "count").collect())
        [('ADA', 2), ('BOB', 1)]
        """
        operator = self._of(uid)
        schema = operator.key_schema if keys is None else keys
        given = RowsFunction(function, as_pandas, f"{operator.where}, keys")
        operator.rekey(self._spark, given, key_columns(schema, uid))
        return self

    def drop_state(self, uid: str, state: str) -> StateEdit:
        """Remove a state with all its entries.

        Parameters
        ----------
        uid, state : str
            The operator and its state.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator or state.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path).drop_state("count", "count")
        """
        self._of(uid).drop_state(state)
        return self

    def drop_operator(self, uid: str) -> StateEdit:
        """Remove an operator with all its state.

        Parameters
        ----------
        uid : str
            The operator.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path).drop_operator("count")
        """
        self._of(uid)
        del self._operators[uid]
        return self

    def erase(self, uid: str, keys: DataFrame) -> StateEdit:
        """Remove all that belongs to some keys: their state and their timers.

        Operator state, broadcast state and raw state belong to no key, and stay as they are.

        Parameters
        ----------
        uid : str
            The operator.
        keys : DataFrame
            The key columns; few enough for the driver.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, or the rows have other columns.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path)
        >>> erased = edit.erase("count", spark.createDataFrame([("ada",)], "user string"))
        """
        self._of(uid).erase(keys)
        return self

    def _of(self, uid: str) -> OperatorEdit:
        try:
            return self._operators[uid]
        except KeyError:
            known = ", ".join(map(repr, self._operators)) or "none"
            raise PlanError(f"there is no operator {uid!r}; the operators are {known}") from None


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
        If there is no running Spark session, or `query` is not a DataFrame or cannot be
        checkpointed.

    Examples
    --------
    The state of a query that never ran, from its history:

    >>> history = spark.createDataFrame([("ada", 7), ("bob", 2)], "user string, n long")
    >>> edit = ckpt.edit_state(query=counts)
    >>> first = edit.put("count", "count", history).save(f"{directory}/first")
    >>> print(ckpt.location(first.path).plan(counts))
    restore from ..., epoch 0: can start
    ...
    """
    if query is not None:
        check_frame(query, "edit_state", "query", PlanError)
    frames = () if query is None else (query,)
    session = session_in_use("edit_state", PlanError, spark, *frames)
    opened = None if source is None else RestoreSource(qualified_path(session, str(source)))
    return StateEdit(session, opened, query)


def edited_contents(
    source: RestoreSource, uids: tuple[str, ...], parent: Origin | None
) -> EpochContents:
    """Return the contents of a savepoint that is made of another.

    Its state is not that of a query. So it has a new query id, and the source as its origin.
    """
    metadata = source.metadata
    stored = {operator.uid for operator in metadata.operators}
    origin = Origin(
        path=source.path,
        kind=metadata.kind,
        checkpoint_id=metadata.checkpoint_id,
        query_id=metadata.query_id,
        epoch=metadata.epoch,
        operators=tuple(uid for uid in uids if uid in stored),
        sha256=source.sha256,
    )
    return msgspec.structs.replace(
        metadata.contents(), query_id=str(uuid.uuid4()), parent=parent or origin
    )


def first_contents(
    position: Position, spark_version: str, parent: Origin | None
) -> tuple[EpochContents, list[tuple[SourceLog, bytes]]]:
    """Return the contents of a first savepoint, and the logs of its sources with their content."""
    logs = position.read_logs()
    contents = EpochContents(
        epoch=position.epoch,
        query_id=str(uuid.uuid4()),
        query_name=None,
        parent=parent,
        spark_version=spark_version,
        library_version=__version__,
        watermark_ms=position.watermark_ms,
        offsets_entry=position.offsets_entry,
        commits_entry=position.commits_entry,
        source_logs=tuple(log for log, _ in logs),
        operators=(),
        source_ids=position.source_ids,
        source_names=position.source_names,
        location=position.location,
        location_query_id=position.location_query_id,
    )
    return contents, logs


def stored_operator(source: RestoreSource, stored: OperatorMetadata) -> OperatorEdit:
    """Return the edit of a stored operator, without changes at first."""
    unified = UnifiedStates(stored.uid, stored.handles)
    return OperatorEdit(
        where=f"{source.path}, operator {stored.uid!r}",
        operator=OperatorDescriptor.of(stored, unified.states),
        states=list(unified.states),
        stored=stored,
        unified=unified,
        source=source.storage.url,
        watermark_ms=source.metadata.watermark_ms,
    )


def declared_operator(
    spark: SparkSession,
    uid: str,
    processor: StatefulProcessor,
    keys: T.StructType | str,
    time_mode: str,
    parallelism: int | None,
    max_parallelism: int | None,
    has_watermark: bool | None,  # noqa: FBT001  # passed on from keyword arguments
) -> OperatorDescriptor:
    """Return the operator of a processor, as ``StateEdit.add_operator`` is given it."""
    mode = TIME_MODES.get(str(time_mode).lower())
    if mode is None:
        raise PlanError(
            f"operator {uid!r}: time_mode is {time_mode!r}, allowed are None, ProcessingTime "
            "and EventTime"
        )
    watermarked = mode is TimeMode.EVENT_TIME if has_watermark is None else has_watermark
    declared = declare_states(processor, uid, mode, has_watermark=watermarked)
    subtasks = parallelism_of(spark) if parallelism is None else parallelism
    groups = default_max_parallelism(subtasks) if max_parallelism is None else max_parallelism
    return OperatorDescriptor(
        uid=uid,
        parallelism=subtasks,
        max_parallelism=check_max_parallelism(groups, subtasks),
        key_schema=key_columns(keys, uid).json(),
        time_mode=mode,
        states=declared.descriptors,
        processor=processor_name(processor),
        code_sha256=code_fingerprint(processor),
    )


def key_columns(keys: T.StructType | str, uid: str) -> T.StructType:
    """Return key columns as a stream has them, which may be null."""
    schema = keys if isinstance(keys, T.StructType) else parse_schema(keys)
    if not schema.fields:
        raise PlanError(f"operator {uid!r}: give at least one key column")
    for field in schema.fields:
        check_key(field)
    return T.StructType([T.StructField(each.name, each.dataType) for each in schema.fields])
