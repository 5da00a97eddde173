"""What a query's failure in Spark is as an error of this library."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import FencedError
from pyspark_ckpt.query.stopping.failure import library_error
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import LocalStorage
from tests.faults.epochs import OPERATORS

USED = "Multiple streaming queries are concurrently using {}. Use separate locations."
DETECTED = (
    "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected "
    "for 7."
)


@pytest.fixture
def files(tmp_path: Path) -> QueryFiles:
    storage = LocalStorage(tmp_path / "location")
    storage.write("metadata", [b'{"id":"q"}'])
    return QueryFiles(
        checkpoint_location=storage.url,
        spark_log=SparkLog(storage),
        storage=storage.child("pyspark_ckpt"),
        query_id="q",
        query_name=None,
        backend_type="heap",
        operators=OPERATORS,
        source_ids=(0,),
    )


@pytest.mark.parametrize("kind", ["file:{}/offsets", "{}/sources/0", DETECTED])
def test_a_query_that_another_driver_has_overtaken_is_fenced(files: QueryFiles, kind: str) -> None:
    said = kind if kind is DETECTED else USED.format(kind.format(files.checkpoint_location))
    error = library_error(StreamingQueryException(said), files)
    assert isinstance(error, FencedError)
    assert isinstance(error, StreamingQueryException)
    assert f"another driver runs it at {files.checkpoint_location}" in str(error)


@pytest.mark.parametrize("path", ["/out/_spark_metadata", "{}-2/offsets"])
def test_the_log_of_a_sink_or_of_another_location_is_none_of_a_driver(
    files: QueryFiles, path: str
) -> None:
    failure = StreamingQueryException(USED.format(path.format(files.checkpoint_location)))
    assert not isinstance(library_error(failure, files), FencedError)
