"""The writer and the query pass on every call to PySpark's own, of either kind of session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pyspark_ckpt as ckpt
from pyspark_ckpt.api.writer import CheckpointedStreamWriter


@pytest.mark.parametrize(
    ("ours", "of_pyspark"),
    [
        (ckpt.CheckpointedQuery, StreamingQuery),
        (ckpt.CheckpointedStreamWriter, DataStreamWriter),
    ],
)
def test_every_public_method_is_passed_on(ours: type, of_pyspark: type) -> None:
    names = {name for name in vars(of_pyspark) if not name.startswith("_")}
    classes = [each for each in ours.__mro__ if each.__module__.startswith("pyspark_ckpt.")]
    assert of_pyspark not in classes
    own = {name for each in (*classes, CheckpointedStreamWriter) for name in vars(each)}
    assert names <= own


def test_both_are_pysparks_for_isinstance() -> None:
    assert issubclass(ckpt.CheckpointedQuery, StreamingQuery)
    assert issubclass(ckpt.CheckpointedStreamWriter, DataStreamWriter)


@pytest.mark.slow
def test_it_is_sparks_own_writer_where_write_stream_was_replaced(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As programs do to move all their queries to this library at once."""
    stream = spark.readStream.format("rate").load()
    monkeypatch.setattr(type(stream), "writeStream", property(ckpt.write_stream))
    assert isinstance(stream.writeStream.format("noop"), ckpt.CheckpointedStreamWriter)
