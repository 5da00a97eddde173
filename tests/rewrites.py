"""Rewrites of state without Spark: its shuffle and sort are done here."""

from __future__ import annotations

from itertools import groupby

import pyarrow as pa

from pyspark_ckpt.formats.handle import Handle, decode_handle
from pyspark_ckpt.stored.blocks import RANGE, SUBTASK
from pyspark_ckpt.stored.rewrite import StateRewrite, StoredSource


def run(rewrite: StateRewrite) -> list[Handle]:
    """Run a rewrite of stored state, a task after the other; return the new handles."""
    blocks = []
    for source in rewrite.sources:
        assert isinstance(source, StoredSource)
        places = pa.RecordBatch.from_pydict({"id": list(range(len(source.handles)))})
        for batch in rewrite.reader(source)(iter([places])):
            blocks += [batch.slice(row, 1) for row in range(batch.num_rows)]
    by_subtask = sorted(blocks, key=lambda each: (_number(each, SUBTASK), _number(each, RANGE)))
    return [
        decode_handle(row["handle"])
        for _, group in groupby(by_subtask, key=lambda each: _number(each, SUBTASK))
        for batch in rewrite.writer(iter(group))
        for row in batch.to_pylist()
    ]


def _number(batch: pa.RecordBatch, name: str) -> int:
    number: int = batch.column(batch.schema.names.index(name))[0].as_py()
    return number
