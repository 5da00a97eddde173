"""What the plan of a DataFrame tells about its stateful operators. Driver only, classic session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import NotBuiltYetError, PlanError
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, decode_descriptor
from pyspark_ckpt.operator_plan import DESCRIPTOR_METADATA

_OPERATOR = "FlatMapGroupsInPandasWithState"
_OTHER_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
    }
)


_SOURCES = frozenset({"StreamingRelation", "StreamingRelationV2"})


def operators_of(df: DataFrame) -> list[OperatorDescriptor]:
    """Return the operators of a query, checked to be what this version can checkpoint.

    They come in the order of Spark's operator ids: from the sink towards the sources, left before
    right.

    Raises
    ------
    PlanError
        If there is none, or two have one uid.
    NotBuiltYetError
        If there are Spark's own stateful operators beside ours.
    """
    ours: list[OperatorDescriptor] = []
    others: list[str] = []
    for node in _nodes(df._jdf.queryExecution().analyzed()):
        name = node.getClass().getSimpleName()
        descriptor = _descriptor(node) if name == _OPERATOR else None
        if descriptor is not None:
            ours.append(descriptor)
        elif node.isStreaming() and (name in _OTHER_STATEFUL or _is_stream_join(node, name)):
            others.append(name)
    _check(ours, others)
    return ours


def source_ids(df: DataFrame) -> tuple[int, ...]:
    """Return the id of the source at each place where a query reads one.

    In the order of Spark's source offsets. A DataFrame that the query uses twice is one source,
    with one log, and has its offset at two places.
    """
    distinct: list[Any] = []
    ids = []
    for node in _nodes(df._jdf.queryExecution().analyzed()):
        if node.getClass().getSimpleName() not in _SOURCES:
            continue
        known = [number for number, other in enumerate(distinct) if node.equals(other)]
        if not known:
            distinct.append(node)
        ids.append(known[0] if known else len(distinct) - 1)
    return tuple(ids)


def is_active(spark: SparkSession, query_id: str) -> bool:
    """Tell whether a query runs in this application, whichever session started it."""
    jvm: Any = spark._jvm
    active = spark._jsparkSession.sharedState().activeStreamingQueries()
    return bool(active.containsKey(jvm.java.util.UUID.fromString(query_id)))


def _check(ours: list[OperatorDescriptor], others: list[str]) -> None:
    if not ours:
        raise PlanError(
            "the query has no operator of this library: build it with "
            "key_by(df, ...).transformWithState(..., uid=...), or start it with df.writeStream"
        )
    uids = [operator.uid for operator in ours]
    for uid in uids:
        if uids.count(uid) > 1:
            raise PlanError(f"two operators have the uid {uid!r}: give each its own")
    if others:
        raise NotBuiltYetError(
            f"Spark's own stateful operators beside operator {uids[0]!r} ({', '.join(others)}) "
            "are not built yet; compute them in a query of their own"
        )


def _descriptor(node: Any) -> OperatorDescriptor | None:
    attributes = node.groupingAttributes()
    if attributes.isEmpty():
        return None
    metadata = json.loads(attributes.head().metadata().json())
    text = metadata.get(DESCRIPTOR_METADATA)
    return None if text is None else decode_descriptor(text)


def _is_stream_join(node: Any, name: str) -> bool:
    return name == "Join" and node.left().isStreaming() and node.right().isStreaming()


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children().iterator()
    while children.hasNext():
        yield from _nodes(children.next())
