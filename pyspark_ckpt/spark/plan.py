"""The stateful operators and sources of a query, read from its plan, classic or Connect.

Driver only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.descriptor import DEFAULT_UID, OperatorDescriptor, decode_descriptor
from pyspark_ckpt.operator.plan.operator import DESCRIPTOR_METADATA
from pyspark_ckpt.operator.plan.streaming_row import OUR_NODE, streaming_relation
from pyspark_ckpt.sessions import connect, connect_plan
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.log import SOURCE_EVOLUTION

_TRANSFORM_WITH_STATE = "TransformWithStateInPySpark"

_SPARK_NAMES = {
    "Aggregate": "stateStoreSave",
    "Deduplicate": "dedupe",
    "DeduplicateWithinWatermark": "dedupeWithinWatermark",
    "Distinct": "stateStoreSave",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    OUR_NODE: "applyInPandasWithState",
    "GlobalLimit": "globalLimit",
    "Join": "symmetricHashJoin",
    "TransformWithState": "transformWithStateExec",
}
"""The name in Spark's state metadata of the operator that a node of a logical plan becomes."""

_SESSION_AGGREGATE = "sessionWindowStateStoreSaveExec"

_SESSION_WINDOW = "spark.sessionWindow"
"""Key in the metadata of a grouping column that is a session window."""

_DELAYING = frozenset({"symmetricHashJoin", "flatMapGroupsWithState", "applyInPandasWithState"})
_BEFORE_OURS = frozenset({"dedupe", "dedupeWithinWatermark"})
_FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_GIVEN_BY_USER = "UserProvided"
_SOURCES = frozenset({"StreamingRelation", "StreamingRelationV2"})
_ADVICE = "compute it in a separate query, or start the query on a classic session"
FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text", "xml", "avro"})


def operators_of(df: DataFrame) -> StatefulOperators:
    """Return the stateful operators of a query, if this version can checkpoint them.

    Spark's ids count from the sink towards the sources, left before right, in its physical plan.
    The optimized plan has the same order. Before Spark continues at a location, it compares the ids
    and names there with its own.
    """
    if not session_of(df).has_jvm:
        operators = StatefulOperators.of(connect_operators(df))
        _check_uids(operators.descriptors)
        return operators
    analyzed = df._jdf.queryExecution().analyzed()
    operators = StatefulOperators.of(_stateful(analyzed))
    _check_uids(operators.descriptors)
    if operators.spark_operators:
        optimizer = df.sparkSession._jsparkSession.sessionState().optimizer()
        operators = StatefulOperators.of(
            _stateful(optimizer.execute(analyzed)),
            follows_aggregation=any(
                _is_aggregation(node) for ours in _ours(analyzed) for node in _nodes(ours.child())
            ),
        )
        _check_spark_operators(df.sparkSession, operators)
    return operators


def has_operators(df: DataFrame) -> bool:
    """Return whether a query has an operator of this library, as far as its client knows."""
    if not session_of(df).has_jvm:
        return any(
            DESCRIPTOR_METADATA in each
            for node in connect_plan.nodes(connect_plan.plan_of(df))
            if connect_plan.kind_of(node) == connect_plan.OPERATOR
            for each in map(json.loads, connect_plan.operator_metadata(node))
        )
    analyzed = df._jdf.queryExecution().analyzed()
    return any(_descriptor(node) is not None for node in _ours(analyzed))


def check_after_aggregations(df: DataFrame, output_mode: str) -> None:
    """Check a query with an operator of this library after an aggregation, as Spark would.

    Spark's check refuses an aggregation before ``applyInPandasWithState``, and allows one before
    its own ``transformWithState``, so it is given the parts of the plan between the operators of
    this library.
    """
    spark = df.sparkSession
    if output_mode.lower() != "append":
        raise PlanError(
            f"the query has outputMode {output_mode}, and an operator of this library after an "
            "aggregation: in that mode an aggregation emits results that may still change. Use "
            "outputMode append, as with Spark's own transformWithState, or compute the aggregation "
            "in a separate query"
        )
    java: Any = spark._jvm
    checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    append = java.org.apache.spark.sql.streaming.OutputMode.Append()
    analyzed = df._jdf.queryExecution().analyzed()
    try:
        parts = [_without_ours(spark, analyzed)]
        parts += [_without_ours(spark, node.child()) for node in _ours(analyzed)]
        for part in parts:
            if part.isStreaming():
                checker.checkForStreaming(part, append)
    except AnalysisException as exc:
        reason = str(exc).split("\n")[0].rstrip(";. ")
        raise PlanError(f"Spark refuses a part of the query: {reason}") from None
    except (Py4JError, TypeError) as exc:
        raise NotBuiltYetError(
            f"PySpark {spark.version} has other plans than PySpark 4.0 to 4.3 ({exc}): compute the "
            "aggregation before the operator in a separate query"
        ) from exc


def _without_ours(spark: SparkSession, node: Any) -> Any:
    """Return a plan with an empty stream in place of each operator of this library."""
    java: Any = spark._jvm
    if node.getClass().getSimpleName() == OUR_NODE:
        return streaming_relation(spark, node.output(), java.PythonUtils.toSeq([]))
    children = node.children().iterator()
    changed = []
    while children.hasNext():
        changed.append(_without_ours(spark, children.next()))
    return node.withNewChildren(java.PythonUtils.toSeq(changed)) if changed else node


def _ours(plan: Any) -> Iterator[Any]:
    return (node for node in _nodes(plan) if node.getClass().getSimpleName() == OUR_NODE)


def _is_aggregation(node: Any) -> bool:
    return node.getClass().getSimpleName() == "Aggregate" and bool(node.isStreaming())


def source_ids(df: DataFrame) -> tuple[int, ...]:
    """Return the id of the source at each place where a query reads a source.

    The places are in the order of Spark's source offsets. A DataFrame that the query uses twice is
    one source with one log; its offset is at two places.
    """
    if not session_of(df).has_jvm:
        return connect_source_ids(df)
    return _sources(df)[0]


def source_names(df: DataFrame) -> tuple[str, ...]:
    """Return Spark's names of the sources that a query reads, by their ids: ``kafka``, ``rate``.

    A file source has the name ``FileSource[<path>]``.
    """
    if not session_of(df).has_jvm:
        return connect_source_names(df)
    return tuple(str(node.sourceName()) for node in _sources(df)[1])


def given_names(df: DataFrame) -> tuple[str, ...]:
    """Return the names that the user gave the sources, by their ids; empty if one has no name."""
    if not session_of(df).has_jvm:
        return connect_given_names(df)
    found = tuple(map(_given_name, _sources(df)[1]))
    return tuple(name for name in found if name is not None) if None not in found else ()


def names_sources(spark: SparkSession) -> bool:
    """Return whether Spark identifies the sources of a new query by their names."""
    return str(spark.conf.get(SOURCE_EVOLUTION, "false")).lower() == "true"


def _given_name(source: Any) -> str | None:
    try:
        name = source.sourceIdentifyingName()
    except Py4JJavaError:
        raise
    except Py4JError:  # before Spark 4.3; Py4J shows a missing method only when it is called
        return None
    return str(name.name()) if name.getClass().getSimpleName() == _GIVEN_BY_USER else None


def _sources(df: DataFrame) -> tuple[tuple[int, ...], list[Any]]:
    """Return the id of the source at each place, and the sources in the order of their ids."""
    distinct: list[Any] = []
    ids = []
    for node in _nodes(df._jdf.queryExecution().analyzed()):
        if node.getClass().getSimpleName() not in _SOURCES:
            continue
        known = [number for number, other in enumerate(distinct) if node.equals(other)]
        if not known:
            distinct.append(node)
        ids.append(known[0] if known else len(distinct) - 1)
    return tuple(ids), distinct


def _stateful(plan: Any) -> Iterator[OperatorDescriptor | SparkOperator]:
    for node in _nodes(plan):
        if not node.isStreaming():
            continue
        name = node.getClass().getSimpleName()
        descriptor = _descriptor(node) if name == OUR_NODE else None
        name_in_spark = _spark_name(node, name)
        if descriptor is not None:
            yield descriptor
        elif name_in_spark is not None:
            yield SparkOperator(name_in_spark)


def _spark_name(node: Any, name: str) -> str | None:
    """Return the name of a node's operator in Spark's metadata, ``None`` if it has no state."""
    if name == _TRANSFORM_WITH_STATE:
        is_pandas = node.userFacingDataType().toString().lower() == "pandas"
        return f"transformWithStateIn{'Pandas' if is_pandas else 'PySpark'}Exec"
    if name == "Aggregate" and _has_session_window(node):
        return _SESSION_AGGREGATE
    if name == "Join" and not (node.left().isStreaming() and node.right().isStreaming()):
        return None
    return _SPARK_NAMES.get(name)


def _has_session_window(aggregate: Any) -> bool:
    expressions = aggregate.groupingExpressions().iterator()
    while expressions.hasNext():
        expression = expressions.next()
        if expression.getClass().getSimpleName() in ("AttributeReference", "Alias") and (
            expression.metadata().contains(_SESSION_WINDOW)
        ):
            return True
    return False


def _check_uids(ours: tuple[OperatorDescriptor, ...]) -> None:
    if not ours:
        raise PlanError(
            "the query has no operator of this library: build it with "
            "key_by(df, ...).transformWithState(...), or call pyspark_ckpt.enable(spark) before a "
            "program that has df.groupBy(...).transformWithState(...); else start it with "
            "df.writeStream"
        )
    unnamed = [operator for operator in ours if operator.has_default_uid]
    if unnamed and len(ours) > 1:
        processors = ", ".join(operator.processor for operator in unnamed)
        raise PlanError(
            f"the query has {len(ours)} operators, and no uid for {processors}: give each operator "
            f"a uid. If the query had only one operator before, without a uid, give that operator "
            f"uid={DEFAULT_UID!r} to keep its state"
        )
    uids = [operator.uid for operator in ours]
    for uid in uids:
        if uids.count(uid) > 1:
            raise PlanError(f"two operators have the uid {uid!r}: give each operator its own uid")


def _check_spark_operators(spark: SparkSession, operators: StatefulOperators) -> None:
    names = ", ".join(operator.name for operator in operators.spark_operators.values())
    where = f"Spark's own stateful operators ({names}) next to {operators.descriptors[0].uid!r}"
    if spark.conf.get(_FORMAT_VERSION, "1") != "1":
        raise NotBuiltYetError(
            f"{where} with {_FORMAT_VERSION} above 1 are not supported yet: unset it, or compute "
            "them in a separate query"
        )
    if operators.each_has_its_watermark:
        _check_passed_watermarks(where, operators)
    if not operators.have_one_watermark:
        return
    # With one watermark for all, rows that an operator emits can be late for the next operator.
    last = max(operators.ours)
    before = [each for number, each in operators.spark_operators.items() if number > last]
    after = len(before) < len(operators.spark_operators)
    emits_late = (
        len(operators.ours) > 1 or operators.descriptors[0].time_mode == TimeMode.EVENT_TIME
    )
    if (after and emits_late) or any(each.name not in _BEFORE_OURS for each in before):
        raise NotBuiltYetError(
            f"{where} are not supported yet in this order, in which all operators share one "
            "watermark. Give each operator of this library that another one follows an "
            "eventTimeColumnName, so that it passes its watermark on. Without it, only "
            "dropDuplicates may come before several operators of this library, or before one that "
            "other operators of Spark follow, and none may follow several operators, or one with "
            "timeMode='EventTime'. Or compute Spark's operators in a separate query"
        )


def _check_passed_watermarks(where: str, operators: StatefulOperators) -> None:
    """Refuse operators of Spark that pass on another watermark than the query's."""
    last = max(operators.ours)
    for number, operator in operators.spark_operators.items():
        if number > last and operator.name in _DELAYING:
            raise NotBuiltYetError(
                f"{where} are not supported yet in this order: {operator.name} delays the "
                "watermark or has none, but the operators that follow it would use the query's: "
                "compute it in a separate query"
            )


def _descriptor(node: Any) -> OperatorDescriptor | None:
    attributes = node.groupingAttributes()
    if attributes.isEmpty():
        return None
    metadata = json.loads(attributes.head().metadata().json())
    text = metadata.get(DESCRIPTOR_METADATA)
    return None if text is None else decode_descriptor(text)


def _nodes(node: Any) -> Iterator[Any]:
    """Yield the nodes of a plan, each before its children, from left to right."""
    waiting = [node]  # a plan may be deeper than Python's stack
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children().iterator()
        found = []
        while children.hasNext():
            found.append(children.next())
        waiting += reversed(found)


@dataclass(frozen=True, slots=True)
class SparkOperator:
    """One of Spark's own stateful operators, by its name in Spark's state metadata."""

    name: str


@dataclass(frozen=True, slots=True)
class StatefulOperators:
    """All stateful operators of a query; the position in `in_order` is Spark's id."""

    in_order: tuple[OperatorDescriptor | SparkOperator, ...]
    follows_aggregation: bool = False
    """Whether an operator of this library follows an aggregation of Spark.

    Spark allows that for its own ``transformWithState`` only, and has to be told not to check.
    """

    @classmethod
    def of(
        cls,
        operators: Iterable[OperatorDescriptor | SparkOperator],
        *,
        follows_aggregation: bool = False,
    ) -> StatefulOperators:
        """Return the operators of a query from an iterable in the order of their ids."""
        return cls(tuple(operators), follows_aggregation)

    @classmethod
    def of_metadata(
        cls,
        metadata: CheckpointMetadata,
        states_of: Callable[[OperatorMetadata], tuple[StateDescriptor, ...]] = lambda _: (),
    ) -> StatefulOperators:
        """Return the operators that a checkpoint has, in the order of their ids."""
        by_id: dict[int, OperatorDescriptor | SparkOperator] = {
            each.operator_id: OperatorDescriptor.of(each, states_of(each))
            for each in metadata.operators
        }
        by_id |= {each.operator_id: SparkOperator(each.name) for each in metadata.spark_operators}
        return cls.of(operator for _, operator in sorted(by_id.items()))

    @property
    def ours(self) -> dict[int, OperatorDescriptor]:
        """The operators of this library, by id."""
        return {
            operator_id: operator
            for operator_id, operator in enumerate(self.in_order)
            if isinstance(operator, OperatorDescriptor)
        }

    @property
    def parallelisms(self) -> dict[int, int | None]:
        """How many partitions each operator has, by id; ``None`` for Spark's own."""
        return {
            operator_id: operator.parallelism if isinstance(operator, OperatorDescriptor) else None
            for operator_id, operator in enumerate(self.in_order)
        }

    @property
    def spark_operators(self) -> dict[int, SparkOperator]:
        """Spark's own operators, by id."""
        return {
            operator_id: operator
            for operator_id, operator in enumerate(self.in_order)
            if isinstance(operator, SparkOperator)
        }

    @property
    def have_one_watermark(self) -> bool:
        """Whether all operators share one watermark.

        Spark gives no watermark to an operator that follows one of this library.
        """
        return self._has_followed and not self.each_has_its_watermark

    @property
    def each_has_its_watermark(self) -> bool:
        """Whether operators follow, and Spark computes a watermark for each operator.

        Then every operator of this library passes its watermark to the operator that follows it.
        Operators of this library alone share one watermark, unless they follow an aggregation:
        it emits rows that are late for the query's watermark.
        """
        followed = [operator for number, operator in self.ours.items() if number > 0]
        needed = self._spark_follows or (self.follows_aggregation and len(self.ours) > 1)
        return needed and all(operator.passes_watermark for operator in followed)

    @property
    def _has_followed(self) -> bool:
        return len(self.ours) > 1 or self._spark_follows

    @property
    def _spark_follows(self) -> bool:
        """Whether one of Spark's own operators follows an operator of this library."""
        return min(self.spark_operators, default=len(self.in_order)) < max(self.ours, default=0)

    @property
    def descriptors(self) -> tuple[OperatorDescriptor, ...]:
        """The operators of this library, in the order of their ids."""
        return tuple(self.ours.values())


def connect_operators(df: DataFrame) -> tuple[OperatorDescriptor, ...]:
    """Return the operators of this library in a query, in the order of Spark's ids."""
    plan = connect_plan.plan_of(df)
    for node in connect_plan.hidden(plan):
        if connect.is_stream(df, node):
            raise NotBuiltYetError(
                "over Spark Connect the client does not know the plan of a stream that is read by "
                "its name or by SQL: build the query with DataFrames from spark.readStream on"
            )
    stateful = connect_plan.stateful_in_spark(plan)
    if stateful:
        raise NotBuiltYetError(
            f"Spark's own stateful operators ({', '.join(sorted(set(stateful)))}) next to "
            f"operators of this library are not supported over Spark Connect yet: {_ADVICE}"
        )
    return tuple(_descriptors(df))


def _descriptors(df: DataFrame) -> Iterator[OperatorDescriptor]:
    for node in connect_plan.nodes(connect_plan.plan_of(df)):
        if connect_plan.kind_of(node) != connect_plan.OPERATOR:
            continue
        metadata = map(json.loads, connect_plan.operator_metadata(node))
        texts = [each[DESCRIPTOR_METADATA] for each in metadata if DESCRIPTOR_METADATA in each]
        if not texts:
            raise NotBuiltYetError(
                "Spark's own stateful operator (applyInPandasWithState) next to operators of "
                f"this library is not supported over Spark Connect yet: {_ADVICE}"
            )
        yield decode_descriptor(texts[0])


def connect_source_ids(df: DataFrame) -> tuple[int, ...]:
    """Return the id of the source at each place where a query reads a source.

    ``NotBuiltYetError`` is raised if the query uses one streaming DataFrame at two places, because
    it depends on the server's cache of plans whether Spark then has one source or two.
    """
    sources = connect_plan.streaming_sources(connect_plan.plan_of(df))
    if len({id(each) for each in sources}) < len(sources):
        raise NotBuiltYetError(
            "the query uses one streaming DataFrame at two places, which is not supported over "
            "Spark Connect yet: make each of them with spark.readStream"
        )
    return tuple(range(len(sources)))


def connect_source_names(df: DataFrame) -> tuple[str, ...]:
    """Return Spark's names of the sources that a query reads, by their ids.

    A source's class on the server may have another name than its format; then the name is the
    format's, which restores take for a source of another library.
    """
    return tuple(map(_name_of, connect_plan.streaming_sources(connect_plan.plan_of(df))))


def _name_of(source: object) -> str:
    """Return a source's format; a file source has the name ``FileSource[<path>]``."""
    name = str(getattr(source, "_format", None) or "")
    paths = getattr(source, "_paths", None) or ()
    options = getattr(source, "_options", None) or {}
    path = paths[0] if paths else options.get("path")
    return f"FileSource[{path}]" if name.lower() in FILE_FORMATS and path else name


def connect_given_names(df: DataFrame) -> tuple[str, ...]:
    """Return the names that the user gave the sources, by their ids; empty if one has no name."""
    sources = connect_plan.streaming_sources(connect_plan.plan_of(df))
    found = [getattr(source, "_source_name", None) for source in sources]
    return tuple(str(name) for name in found) if all(found) else ()
