"""Sent rows: the record batches that come out of the shuffle, and what is done with whole ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

Places = np.ndarray[Any, Any]

SentRows = list[pa.RecordBatch]

_ROW_BYTES = 150
_VALUE_BYTES = 40
"""Bytes that a row and each of its values take as Python objects (measured)."""

_MOST_BYTES = 2**31 - 1
"""How many bytes of text Arrow holds in one array, unless its type is a large one."""


def joined(batches: SentRows) -> pa.RecordBatch:
    """Return the rows of one or more batches as one batch."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    large = [_large(column) for column in table.columns]
    names = table.schema.names
    whole = pa.table(large, names=names).combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], table.schema)


def _large(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.nbytes <= _MOST_BYTES:
        return column
    if pa.types.is_string(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary(column.type) else column


def taken(batch: pa.RecordBatch, places: Places) -> pa.RecordBatch:
    """Return the rows at some places, in the order of the places."""
    return batch.take(pa.array(places))


def renamed(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the rows with other column names."""
    return pa.RecordBatch.from_arrays(batch.columns, names=list(names))


def bytes_as_objects(batch: pa.RecordBatch) -> int:
    """Estimate the memory that rows take once their values are Python objects."""
    size: int = batch.num_rows * (_ROW_BYTES + _VALUE_BYTES * batch.num_columns)
    for column in batch.columns:
        if _has_any_length(column.type):
            size += column.nbytes
    return size


def _has_any_length(data_type: pa.DataType) -> bool:
    return not pa.types.is_primitive(data_type) and not pa.types.is_decimal(data_type)
