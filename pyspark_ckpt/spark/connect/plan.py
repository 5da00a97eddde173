"""The operators and sources of a Spark Connect query, read from the plan that the client holds."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyspark.sql import DataFrame

from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, decode_descriptor
from pyspark_ckpt.operator.plan.operator import DESCRIPTOR_METADATA
from pyspark_ckpt.sessions import connect, connect_plan

_ADVICE = "compute it in a separate query, or start the query on a classic session"


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
            f"Spark's own stateful operators ({', '.join(sorted(set(stateful)))}) beside operators "
            f"of this library are not supported over Spark Connect yet: {_ADVICE}"
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
                "Spark's own stateful operator (applyInPandasWithState) beside operators of this "
                f"library is not supported over Spark Connect yet: {_ADVICE}"
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
    return f"FileSource[{path}]" if name.lower() in _FILE_FORMATS and path else name


_FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text", "xml", "avro"})


def connect_given_names(df: DataFrame) -> tuple[str, ...]:
    """Return the names that the user gave the sources, by their ids; empty if one has no name."""
    sources = connect_plan.streaming_sources(connect_plan.plan_of(df))
    found = [getattr(source, "_source_name", None) for source in sources]
    return tuple(str(name) for name in found) if all(found) else ()
