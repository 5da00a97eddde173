"""What Spark's state store holds for an operator of ours: one encoded handle per subtask.

Read with Spark's own data source for state. A few partitions are read by the driver itself: making
a Spark job for them takes three times as long, most of it planning, and competes with the epoch
that runs meanwhile (measured, design 15).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

FEW_PARTITIONS = 8
"""So many are read on the driver, one after the other."""

_FORMAT = "statestore"


def encoded_handles(
    spark: SparkSession, checkpoint_location: str, epoch: int, operator_id: int
) -> list[bytes]:
    """Return the handles of an operator at an epoch, in any order.

    Called on the driver. With more than :data:`FEW_PARTITIONS` it runs a Spark job.

    Raises
    ------
    PySparkException
        If Spark cannot read its state.
    """
    options = {"batchId": str(epoch), "operatorId": str(operator_id)}
    with _active(spark):
        table = _table(spark, {**options, "path": checkpoint_location})
        batch = table.newScanBuilder(_ci_map(spark, {})).build().toBatch()
        partitions = batch.planInputPartitions()
        if len(partitions) <= FEW_PARTITIONS:
            factory = batch.createReaderFactory()
            place = _Place(table.schema())
            return [
                handle
                for partition in partitions
                for handle in _read(factory.createReader(partition), place)
            ]
    rows = spark.read.format(_FORMAT).options(**options).load(checkpoint_location)
    return [bytes(row[0]) for row in rows.select("value.groupState.handle").collect()]


class _Place:
    """Where a row of the source has the handle."""

    def __init__(self, schema: Any) -> None:
        value = schema.apply("value").dataType()
        self.value = schema.fieldIndex("value"), value.length()
        group_state = value.apply("groupState").dataType()
        self.group_state = value.fieldIndex("groupState"), group_state.length()
        self.handle = group_state.fieldIndex("handle")


def _read(reader: Any, place: _Place) -> list[bytes]:
    handles = []
    try:
        while reader.next():
            group_state = reader.get().getStruct(*place.value).getStruct(*place.group_state)
            handles.append(bytes(group_state.getBinary(place.handle)))
    finally:
        reader.close()
    return handles


def _table(spark: SparkSession, options: dict[str, str]) -> Any:
    java: Any = spark._jvm
    source = java.org.apache.spark.sql.execution.datasources.v2.state.StateDataSource()
    wanted = _ci_map(spark, options)
    return source.getTable(
        source.inferSchema(wanted), source.inferPartitioning(wanted), wanted.asCaseSensitiveMap()
    )


def _ci_map(spark: SparkSession, options: dict[str, str]) -> Any:
    java: Any = spark._jvm
    return java.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Have the source use this session, where it would take the thread's active one."""
    java: Any = spark._jvm
    sessions = java.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
