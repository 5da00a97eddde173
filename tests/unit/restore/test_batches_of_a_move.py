"""How much a task of a move holds at once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.spark.own_session import SMALL_BATCHES, own_session


@pytest.mark.slow
def test_spark_cuts_batches_by_their_bytes(spark: SparkSession) -> None:
    """Ten thousand large entries at once would be too much."""
    if spark.version < "4.1":
        pytest.skip("this version has no such setting")
    (key,) = SMALL_BATCHES
    session = own_session(spark, {key: str(1 << 20)})

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"size_bytes": [batch.nbytes]})

    rows = session.range(200, numPartitions=1).selectExpr("repeat('x', 100000) as value")
    found = [row.size_bytes for row in rows.mapInArrow(sizes, "size_bytes long").collect()]
    assert sum(found) >= 20_000_000
    assert max(found) <= (1 << 20) + 110_000
