"""The writer and the query pass on every call to PySpark's own, of either kind of session."""

from __future__ import annotations

import inspect

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pyspark_ckpt as ckpt
from pyspark_ckpt.api.sink_writer import SinkWriter


@pytest.mark.parametrize(
    ("ours", "of_pyspark"),
    [
        (ckpt.CheckpointedQuery, StreamingQuery),
        (ckpt.CheckpointedStreamWriter, DataStreamWriter),
    ],
)
def test_every_public_method_is_passed_on(ours: type, of_pyspark: type) -> None:
    names = {name for name in vars(of_pyspark) if not name.startswith("_")}
    own = {name for each in (ours, SinkWriter) for name in vars(each)}
    assert names <= own


def test_both_are_pysparks_for_isinstance() -> None:
    assert issubclass(ckpt.CheckpointedQuery, StreamingQuery)
    assert issubclass(ckpt.CheckpointedStreamWriter, DataStreamWriter)
    assert "_jsq" not in inspect.signature(ckpt.CheckpointedQuery).parameters
