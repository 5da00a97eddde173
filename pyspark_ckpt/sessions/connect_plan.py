"""The plan of a Spark Connect DataFrame, which the client holds as Python objects.

Nothing here asks the server, and nothing imports the Connect client. Beyond Spark's API this module
relies on the names of the client's plan nodes and on some of their attributes (PySpark 4.0 to 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

OPERATOR = "ApplyInPandasWithState"
_APPEND_OR_UPDATE = frozenset({"append", "update"})
_OF_NODES = "_create_proto_relation"
_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "Join",
        "Limit",
        "Offset",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
    }
)
"""Nodes that can become stateful operators of Spark over a stream."""

_HIDING = frozenset({"SQL", "WithRelations", "CachedRemoteRelation", "CachedRelation"})
"""Nodes whose plan only the server knows."""


def plan_of(df: DataFrame) -> Any:
    """Return the root of a DataFrame's plan."""
    return df._plan


def nodes(plan: Any) -> Iterator[Any]:
    """Return the nodes of a plan, each before its children, left before right."""
    yield plan
    parts = vars(plan)
    for name, child in parts.items():
        is_left_again = name == "_child" and child is parts.get("left")  # as joins have it
        # The class is asked, because a column answers for every name with a column.
        if hasattr(type(child), _OF_NODES) and not is_left_again:
            yield from nodes(child)


def kind_of(node: Any) -> str:
    """Return the name of a node's class."""
    return type(node).__name__


def operator_metadata(node: Any) -> tuple[str, ...]:
    """Return the metadata of the columns that an operator is grouped by, as JSON texts."""
    below = node._child
    metadata = getattr(below, "_metadata", None) or getattr(below, "metadata", None) or ()
    return tuple(text for text in metadata if text)


def streaming_sources(plan: Any) -> list[Any]:
    """Return the nodes that read a stream, in the order of Spark's source offsets."""
    return [node for node in nodes(plan) if getattr(node, "_is_streaming", False)]


def reads_stream(node: Any) -> bool:
    """Return whether a stream is read below a node."""
    return bool(streaming_sources(node))


def stateful_in_spark(plan: Any) -> list[str]:
    """Return the names of nodes that become stateful operators of Spark, or may become them."""
    return [kind_of(node) for node in nodes(plan) if _is_stateful(node)]


def _is_stateful(node: Any) -> bool:
    kind = kind_of(node)
    if kind == "Join":
        return reads_stream(node.left) and reads_stream(node.right)
    if kind == "SetOperation":
        return reads_stream(node) and str(getattr(node, "set_op", "")) != "union"
    return kind in _STATEFUL and reads_stream(node)


def hidden(plan: Any) -> list[Any]:
    """Return the nodes that may hide a stream from the client: SQL, views and named tables."""
    return [
        node
        for node in nodes(plan)
        if kind_of(node) in _HIDING
        or (kind_of(node) == "Read" and not getattr(node, "_is_streaming", False))
    ]


def give_output_mode(df: DataFrame, mode: str) -> None:
    """Give every operator of a plan the query's output mode, which Spark's check asks for."""
    if mode.lower() in _APPEND_OR_UPDATE:
        for node in nodes(plan_of(df)):
            if kind_of(node) == OPERATOR:
                node._output_mode = mode.lower()


def column_name(column: Any) -> str | None:
    """Return the name of a column that is only a name, ``None`` for an expression."""
    expression = getattr(column, "_expr", None)
    name = getattr(expression, "_unparsed_identifier", None)
    return name if isinstance(name, str) else None
