"""An operator in Spark's plan: checked arguments, input, function, output, watermark.

Spark works out each stateful operator's watermark from its inputs, and gives none to what follows
``applyInPandasWithState``. It takes the least of the watermarks that the inputs of a union have. So
the output is united with one row of a relation that has the query's watermark, and the row is
dropped again. Its time lies in the far future, so that it never holds the query's watermark back.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.descriptor import (
    DEFAULT_UID,
    MigrationDescriptor,
    OnError,
    OperatorDescriptor,
    code_fingerprint,
    encode_descriptor,
    processor_name,
)
from pyspark_ckpt.operator.handover.packing import PACKED_SCHEMA, packed, unpacked
from pyspark_ckpt.operator.handover.worker import STATE_SCHEMA
from pyspark_ckpt.operator.modes.calls import Calls
from pyspark_ckpt.operator.modes.mode import MODES, Mode
from pyspark_ckpt.operator.modes.views import FrameLimits
from pyspark_ckpt.operator.plan.declared import declare_states, parse_schema
from pyspark_ckpt.operator.plan.hand_over import Decision, decided_hand_over
from pyspark_ckpt.operator.plan.initial_state import InitialState, remember_initial_state
from pyspark_ckpt.operator.plan.streaming_row import has_streaming_row, in_any_mode, streaming_row
from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN, InputColumns
from pyspark_ckpt.operator.rows.keys import subtask_tokens
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.packed import RowPacking
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.operator.rows.sides import BroadcastRows, InitialRows
from pyspark_ckpt.operator.run.function import OperatorFunction
from pyspark_ckpt.operator.run.subtask import LateWatermark, SubtaskFunction
from pyspark_ckpt.operator.run.user_sources import UserSources
from pyspark_ckpt.operator.run.wake_rows import WakeRows
from pyspark_ckpt.operator.run.without_query import BatchFunction
from pyspark_ckpt.operator.time import NEVER_LATE
from pyspark_ckpt.sessions.connect_plan import column_name
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import HandOver, read_settings

TIME_MODES = {mode.value.lower(): mode for mode in TimeMode}

DESCRIPTOR_METADATA = "pyspark_ckpt.operator"
"""Key of the operator's descriptor in the metadata of the token column."""

TIMEOUTS = {
    TimeMode.NONE: GroupStateTimeout.NoTimeout,
    TimeMode.PROCESSING_TIME: GroupStateTimeout.ProcessingTimeTimeout,
    TimeMode.EVENT_TIME: GroupStateTimeout.EventTimeTimeout,
}

_MEMORY_LIMIT = "spark.ckpt.execution.memory-limit"
_COERCION = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"

DERIVED_KEY = "__ckpt_key_"
"""Begins the name of a column that holds the value of a key expression."""

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
MIN = "min"
_TIME = "__ckpt_passed"
_IS_OUTPUT = "__ckpt_is_output"
_TRUE = True
logger = library_logger(__name__)


class OutputMode(str, Enum):
    """The output modes that an operator can have; the values are what Spark takes."""

    APPEND = "append"
    UPDATE = "update"


_OUTPUT_MODES = {mode.value: mode for mode in OutputMode}


@dataclass(frozen=True, slots=True)
class OperatorArguments:
    """The arguments that every way of adding an operator takes, checked."""

    processor: StatefulProcessor
    output_schema: T.StructType
    output_mode: OutputMode
    time_mode: TimeMode
    uid: str
    migrations: Mapping[str, Migration]
    event_time_column: str
    has_default_uid: bool = False
    on_error: OnError = OnError.FAIL

    @classmethod
    def checked(
        cls,
        processor: StatefulProcessor,
        output_struct_type: T.StructType | str,
        output_mode: str,
        time_mode: str,
        uid: str | None,
        migrations: Mapping[str, Migration] | None,
        event_time_column: str = "",
        on_error: str = OnError.FAIL.value,
    ) -> OperatorArguments:
        """Return checked arguments."""
        has_default_uid = uid is None
        uid = DEFAULT_UID if uid is None else uid
        if not isinstance(uid, str) or not uid.strip():
            raise PlanError(f"uid is {uid!r}: give every operator a stable name")
        mode = _OUTPUT_MODES.get(str(output_mode).lower())
        if mode is None:
            raise PlanError(
                f"operator {uid!r}: outputMode is {output_mode!r}, allowed are Append and Update"
            )
        time = TIME_MODES.get(str(time_mode).lower())
        if time is None:
            raise PlanError(
                f"operator {uid!r}: timeMode is {time_mode!r}, allowed are None, ProcessingTime "
                "and EventTime"
            )
        schema = output_struct_type
        if not isinstance(schema, T.StructType):
            schema = parse_schema(schema)
        for name, migration in (migrations or {}).items():
            if not isinstance(migration, Migration):
                raise PlanError(
                    f"operator {uid!r}: the migration of state {name!r} is "
                    f"{type(migration).__name__}: give a pyspark_ckpt.Migration"
                )
        _check_event_time(schema, event_time_column, uid)
        return cls(
            processor,
            schema,
            mode,
            time,
            uid,
            dict(migrations or {}),
            event_time_column,
            has_default_uid,
            _on_error(on_error, uid),
        )


def _on_error(given: str, uid: str) -> OnError:
    try:
        return OnError(str(given).lower())
    except ValueError:
        raise PlanError(
            f"operator {uid!r}: onError is {given!r}, allowed are {' and '.join(OnError)}"
        ) from None


def _check_event_time(schema: T.StructType, column: str, uid: str) -> None:
    if column and not (
        column in schema.names and isinstance(schema[column].dataType, T.TimestampType)
    ):
        raise PlanError(
            f"operator {uid!r}: eventTimeColumnName is {column!r}, which is not a timestamp column "
            f"of its outputStructType {schema.simpleString()}"
        )


def check_quarantines_keys(mode: Mode, where: str) -> None:
    """Check that keys can be quarantined in a mode."""
    if not mode.has_key_calls:
        raise PlanError(
            f"{where}: onError='quarantine' quarantines single keys, and {mode.method} gets "
            "all keys in one call: handle the rows of each key in handleInputRows of a "
            "StatefulProcessor, or use onError='fail'"
        )


def has_late_method(processor: object, method: str) -> bool:
    """Return whether a processor has a method for late rows; ``None`` in its place is none."""
    return callable(getattr(processor, method, None))


def check_late_method(
    processor: StatefulProcessor, mode: Mode, time_mode: TimeMode, where: str
) -> None:
    """Refuse a method for late rows that would never be called, or that cannot be called."""
    name, own = type(processor).__name__, mode.late_method
    for method in sorted({each.late_method for each in MODES.values()} - {own}):
        if has_late_method(processor, method):
            raise PlanError(
                f"{where}: {name} has {method}, and its late rows come to {own}: rename it"
            )
    if not has_late_method(processor, own):
        return
    if time_mode is not TimeMode.EVENT_TIME:
        raise PlanError(
            f"{where}: {name} has {own}, and in timeMode={time_mode.value!r} no row is late: use "
            "timeMode='EventTime', or give the method another name"
        )
    try:
        signature = inspect.signature(getattr(processor, own), follow_wrapped=False)
    except (TypeError, ValueError):  # a callable that does not say
        return
    try:
        signature.bind(None, None, None)
    except TypeError as exc:
        raise PlanError(
            f"{where}: {name}.{own}{signature} cannot be called ({exc}): late rows come to it as "
            f"rows come to {mode.method}, so give it the same parameters, or another name"
        ) from exc


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """A DataFrame partitioned by key; `is_combined` if it has the partial rows of others."""

    df: DataFrame
    columns: InputColumns
    parallelism: int
    max_parallelism: int
    is_combined: bool = False

    def for_operator(self, arguments: OperatorArguments, mode: Mode) -> KeyedInput:
        """Return the input of one operator; late rows come to a processor that asks for them."""
        if arguments.time_mode is not TimeMode.EVENT_TIME or not self.df.isStreaming:
            return self  # no row is late
        if not has_late_method(arguments.processor, mode.late_method):
            return self
        return replace(self, columns=self.columns.with_late_rows())

    def with_tokens(self) -> DataFrame:
        """Return the rows as they travel: columns, key group and token."""
        key_group = F.pmod(F.hash(*self.columns.key_columns()), F.lit(self.max_parallelism))
        subtask = F.floor(F.col(KEY_GROUP) * self.parallelism / self.max_parallelism)
        tokens = F.array(*[F.lit(token) for token in subtask_tokens(self.parallelism)])
        token = F.element_at(tokens, subtask.cast("int") + 1)
        travelling = [key_group.alias(KEY_GROUP), *self.columns.columns()]
        return self.df.select(*travelling).withColumn(TOKEN, token)


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """Everything that goes into one operator; built on the driver."""

    keyed: KeyedInput
    broadcast: DataFrame | None
    initial: KeyedInput | None
    arguments: OperatorArguments
    mode: Mode
    late_watermark_ms: LateWatermark | None = None

    def build(self) -> DataFrame:
        """Return the operator's output."""
        self._check()
        get = self.keyed.df.sparkSession.conf.get
        coerces = str(get(_COERCION, "false")).lower() == "true"
        output = OutputRows(
            self.arguments.output_schema,
            self.arguments.uid,
            coerces_integers=coerces,
            time_zone=self.keyed.columns.time_zone,
        )
        emits_event_time = bool(self.arguments.event_time_column) and self._has_watermark
        carrier = carrier_row(self.keyed.df) if emits_event_time else None
        function = self._function(output, passes_watermark=carrier is not None)
        processed = (
            self._streamed(function, output)
            if self.keyed.df.isStreaming
            else self._run_once(function, output)
        )
        if carrier is not None:
            processed = with_passed_watermark(processed, carrier)
        delay_ms = self.keyed.columns.watermark_delay_ms
        return processed.select(*output.columns(self.arguments.event_time_column, delay_ms))

    def _check(self) -> None:
        arguments = self.arguments
        where = f"operator {arguments.uid!r}"
        if (
            arguments.time_mode is TimeMode.EVENT_TIME
            and self.keyed.df.isStreaming
            and not self._has_watermark
        ):
            raise PlanError(
                f"{where}: timeMode='EventTime' needs a watermark: "
                + (
                    "rows of combineRows have no event time: leave combineRows out, or use another "
                    "timeMode"
                    if self.keyed.is_combined
                    else "call withWatermark on the stream before key_by or groupBy"
                )
            )
        check_late_method(arguments.processor, self.mode, arguments.time_mode, where)
        if self.keyed.columns.is_emitted and has_late_method(
            arguments.processor, self.mode.late_method
        ):
            raise PlanError(
                f"{where}: {type(arguments.processor).__name__} has {self.mode.late_method}, and "
                "behind another operator of this library no row is late: remove the method, or "
                "have the first operator mark late rows in a column"
            )
        if self.broadcast is not None and not hasattr(arguments.processor, "handleBroadcastRows"):
            raise PlanError(
                f"{where}: {type(arguments.processor).__name__} has no "
                "handleBroadcastRows(rows, timerValues), which a broadcast stream needs"
            )

        if arguments.on_error is OnError.QUARANTINE:
            self._check_quarantine(where)

    def _check_quarantine(self, where: str) -> None:
        check_quarantines_keys(self.mode, where)
        if not self.keyed.df.isStreaming:
            raise PlanError(
                f"{where}: onError='quarantine' needs a stream, because a batch DataFrame has no "
                "later epoch that could release a key: leave onError out"
            )

    @property
    def _has_watermark(self) -> bool:
        return self.keyed.columns.event_time_index is not None

    def _function(self, output: OutputRows, *, passes_watermark: bool) -> OperatorFunction:
        arguments = self.arguments
        limits = None
        if self.mode.has_frames:
            limits = FrameLimits.of_session(self.keyed.df.sparkSession.conf.get)
        calls = self.mode.of_operator(self.keyed.columns, output, limits)
        quarantines = arguments.on_error is OnError.QUARANTINE
        declared = declare_states(
            arguments.processor,
            arguments.uid,
            arguments.time_mode,
            has_watermark=self._has_watermark,
        )
        hand_over = Decision(HandOver.ARROW, "a batch DataFrame passes through mapInArrow")
        if self.keyed.df.isStreaming:
            where = f"operator {arguments.uid!r}"
            hand_over = decided_hand_over(self.keyed.df.sparkSession, where)
        descriptor = OperatorDescriptor(
            uid=arguments.uid,
            hand_over=hand_over.way,
            why_hand_over=hand_over.why,
            has_default_uid=arguments.has_default_uid,
            parallelism=self.keyed.parallelism,
            max_parallelism=self.keyed.max_parallelism,
            key_schema=self.keyed.columns.key_schema.json(),
            time_mode=arguments.time_mode,
            states=declared.descriptors,
            processor=processor_name(arguments.processor),
            code_sha256=code_fingerprint(arguments.processor),
            passes_watermark=passes_watermark,
            on_error=arguments.on_error,
            migrations={
                name: MigrationDescriptor.of(migration)
                for name, migration in arguments.migrations.items()
            },
        )
        return OperatorFunction(
            arguments.processor,
            descriptor,
            self.keyed.columns,
            calls,
            declared.schemas,
            arguments.migrations,
            self._broadcast_rows(calls),
            self._initial_rows(calls),
            UserSources.of(
                arguments.processor,
                [each for one in arguments.migrations.values() for each in (one.value, one.key)],
            ),
            self._wake_rows(),
            QuarantinedRows(self.keyed.columns) if quarantines else None,
        )

    def _wake_rows(self) -> WakeRows | None:
        has_initial = self.initial is not None
        quarantines = self.arguments.on_error is OnError.QUARANTINE
        if not has_initial and not quarantines:
            return None
        return WakeRows(self.arguments.uid, has_initial_state=has_initial, releases=quarantines)

    def _streamed(self, function: OperatorFunction, output: OutputRows) -> DataFrame:
        descriptor = function.descriptor
        if self.initial is not None:
            initial = InitialState(self.initial.with_tokens(), function)
            descriptor = remember_initial_state(descriptor, initial)
        metadata = {DESCRIPTOR_METADATA: encode_descriptor(descriptor)}
        rows, sent_schema, packing = self._rows(function), output.sent_schema, None
        if descriptor.hand_over is HandOver.PACKED:
            rows, of_rows = packed(rows)
            packing = (of_rows, RowPacking(sent_schema))
            sent_schema = PACKED_SCHEMA
        late_watermark_ms = None
        if self.keyed.columns.keeps_late_rows:
            late_watermark_ms = self.late_watermark_ms
        subtask = SubtaskFunction(function, output.arrow_schema, packing, late_watermark_ms)
        processed = in_any_mode(
            rows.withMetadata(TOKEN, metadata)
            .groupBy(TOKEN)
            .applyInPandasWithState(
                _named(subtask, descriptor.uid),
                sent_schema,
                STATE_SCHEMA,
                self.arguments.output_mode.value,
                TIMEOUTS[self.arguments.time_mode],
            )
        )
        return processed if packing is None else unpacked(processed, packing[1])

    def _run_once(self, function: OperatorFunction, output: OutputRows) -> DataFrame:
        rows = self._rows(function)
        if self.initial is not None and function.initial is not None:
            rows = function.initial.plan(rows, self.initial.with_tokens())
        limit = self.keyed.df.sparkSession.conf.get(_MEMORY_LIMIT, None)
        settings = read_settings({} if limit is None else {_MEMORY_LIMIT: limit}, {})
        return rows.repartition(self.keyed.parallelism, TOKEN).mapInArrow(
            BatchFunction(function, settings.memory_limit_bytes), output.sent_schema
        )

    def _rows(self, function: OperatorFunction) -> DataFrame:
        rows = self.keyed.with_tokens()
        tokens = subtask_tokens(self.keyed.parallelism)
        if self.keyed.df.isStreaming and function.wake is not None:
            spark = self.keyed.df.sparkSession
            rows = (
                function.wake.plan(rows, streaming_row(spark), tokens)
                if has_streaming_row(spark)
                else function.wake.plan_within(rows, tokens)
            )
        if self.broadcast is None or function.broadcast is None:
            return rows
        return function.broadcast.plan(rows, self.broadcast, tokens)

    def _broadcast_rows(self, calls: Calls) -> BroadcastRows | None:
        if self.broadcast is None:
            return None
        columns = InputColumns(self.broadcast.schema, (), self.keyed.columns.time_zone)
        return BroadcastRows(calls.shown_columns(columns), calls.form)

    def _initial_rows(self, calls: Calls) -> InitialRows | None:
        if self.initial is None:
            return None
        mode = calls.of_initial_state(self.initial.columns)
        return InitialRows(mode.columns, mode)


def _named(function: SubtaskFunction, uid: str) -> Any:
    """Return a plain function, because PySpark asks for one; Spark's plans show the uid."""

    def operator(key: Any, frames: Any, state: Any) -> Any:
        return function(key, frames, state)

    operator.__name__ = uid
    return operator


@dataclass(frozen=True, slots=True)
class GroupingColumns:
    """A DataFrame that has a column for each part of the key.

    `df` has the user's columns first, and then one column for each key expression. `derived` has
    the names that the user sees for the columns of key expressions, as ``groupBy`` gives them.
    """

    df: DataFrame
    names: tuple[str, ...]
    derived: dict[str, str] = field(default_factory=dict)


def grouping_columns(df: DataFrame, columns: tuple[str | Column, ...]) -> GroupingColumns:
    """Return the key columns of a DataFrame."""
    if not columns:
        raise PlanError("key_by needs at least one key column")
    duplicated = {name for name in df.columns if df.columns.count(name) > 1}
    if duplicated:
        raise PlanError(f"columns {sorted(duplicated)} appear more than once: rename them first")
    shown = [_plain_name(df, column) or _derived_name(df, column) for column in columns]
    if len(set(shown)) != len(shown):
        raise PlanError(f"key_by got a column twice: {shown}")
    keyed, names, derived = df, [], {}
    for number, (column, name) in enumerate(zip(columns, shown, strict=True)):
        if _plain_name(df, column) is not None:
            names.append(name)
            continue
        names.append(f"{DERIVED_KEY}{number}")
        derived[names[-1]] = name
        value = F.col(column) if isinstance(column, str) else column
        # A window of event time would bring its watermark along, and be a second event time.
        keyed = keyed.select("*", value.alias(names[-1], metadata={}))
    return GroupingColumns(keyed, tuple(names), derived)


def _plain_name(df: DataFrame, column: str | Column) -> str | None:
    """Return the name of a column of the DataFrame as it is, ``None`` for anything else."""
    if isinstance(column, str) and column in df.columns:
        return column
    if not session_of(df).has_jvm:
        name = column_name(column)
        return name if name in df.columns else None
    try:
        selected = df.select(column)
    except AnalysisException:
        return None  # `_derived_name` raises an error with the reason
    if len(selected.columns) != 1:
        return None
    wanted = _analyzed(selected).output().head().exprId()
    own = _analyzed(df).output()
    # By its id: the selected one has the name as the user wrote it, in capitals or not.
    return next(
        (name for place, name in enumerate(df.columns) if own.apply(place).exprId().equals(wanted)),
        None,
    )


def _analyzed(df: DataFrame) -> Any:
    return df._jdf.queryExecution().analyzed()  # noqa: SLF001


def _derived_name(df: DataFrame, column: str | Column) -> str:
    """Return the name that ``groupBy`` gives to a key expression."""
    text = column if isinstance(column, str) else str(column)
    try:
        *names, _ = df.groupBy(column).count().columns
    except AnalysisException as exc:
        reason = str(exc).splitlines()[0]
        raise PlanError(
            f"key column {text!r} cannot be computed from the stream, which has {df.columns}: "
            f"{reason}"
        ) from exc
    if len(names) != 1:
        raise PlanError(f"key column {text!r} is {len(names)} columns: name each of them")
    return str(names[0])


def carrier_row(df: DataFrame) -> DataFrame | None:
    """Return the row that carries the watermark past an operator over a stream.

    ``None`` where Spark cannot have one: with the policy ``max``, by which a time in the far future
    would be the query's watermark; or in a version of Spark whose relations are others.
    """
    spark = df.sparkSession
    if not df.isStreaming or str(spark.conf.get(POLICY, MIN)).lower() != MIN:
        return None
    try:
        return streaming_row(spark)
    except NotBuiltYetError as exc:
        logger.warning("no operator in event time can follow this library's operator: %s", exc)
        return None


def with_passed_watermark(output: DataFrame, row: DataFrame) -> DataFrame:
    """Return an operator's output with the query's watermark, which `row` carries."""
    time = F.timestamp_micros(F.lit(NEVER_LATE)).alias(_TIME)
    timed = row.select(time).withWatermark(_TIME, "0 seconds")
    # Spark must not see what the row holds, or it would drop it early: with this filter, or with
    # one of the user's that no null passes. The number of a partition it cannot know.
    number = F.spark_partition_id()
    first = number % 1 + 1
    empty = [
        F.element_at(F.array(F.lit(None).cast(field.dataType)), first).alias(field.name)
        for field in output.schema
    ]
    carrier = timed.select(*empty, (number < 0).alias(_IS_OUTPUT))
    both = output.select("*", F.lit(_TRUE).alias(_IS_OUTPUT)).union(carrier)
    return both.where(F.col(_IS_OUTPUT)).select(*output.columns)
