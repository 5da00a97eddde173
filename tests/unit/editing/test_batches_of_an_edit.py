"""How much a task of an edit holds at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.spark.own_session import SMALL_BATCHES
from pyspark_ckpt.stored import rewrite

_WRITE_BASES = rewrite.WriteBases
(_KEY,) = SMALL_BATCHES


class Texts(StatefulProcessor):
    """Keeps a text per key."""

    def init(self, handle: Any) -> None:
        self.text = handle.getValueState("text", "text string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        """Close nothing."""


@pytest.mark.slow
def test_a_task_of_an_edit_gets_batches_of_limited_size(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand large entries at once would be too much."""
    if spark.version < "4.1":
        pytest.skip("this version has no such setting")
    sizes = tmp_path / "sizes"

    class Noting:
        def __init__(self, *parameters: Any) -> None:
            self._write = _WRITE_BASES(*parameters)

        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self._write(self._noted(batches))

        def _noted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                with sizes.open("a") as file:
                    file.write(f"{batch.nbytes}\n")
                yield batch

    monkeypatch.setattr(rewrite, "WriteBases", Noting)
    monkeypatch.setitem(SMALL_BATCHES, _KEY, str(1 << 20))
    before = spark.conf.get(_KEY)
    rows = spark.range(200).selectExpr("concat('k', id) key", "repeat('x', 100000) text")
    edit = ckpt.edit_state(spark=spark).add_operator("op", Texts(), "key string", parallelism=1)
    saved = edit.put("op", "text", rows).save(str(tmp_path / "savepoints"))
    found = [int(line) for line in sizes.read_text().split()]
    assert sum(found) >= 20_000_000
    assert max(found) <= (1 << 20) + 110_000
    assert spark.conf.get(_KEY) == before
    with ckpt.location(saved.path).state() as snapshot:
        assert sum(batch.num_rows for batch in snapshot.state("op", "text").to_arrow()) == 200
