"""Sent rows: the record batches that come out of the shuffle, and what is done with whole ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.values.arrow import in_type, viewed

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
    try:
        whole = pa.table(large, names=names).combine_chunks().to_batches()
    except pa.ArrowInvalid as exc:
        raise _too_large(table) from exc
    if len(whole) > 1:
        raise _too_large(table)
    return whole[0] if whole else pa.RecordBatch.from_pylist([], table.schema)


def _too_large(table: pa.Table) -> ValueError:
    column = max(table.columns, key=lambda one: one.nbytes)
    return ValueError(
        f"a column of {column.type} has {column.nbytes} bytes in the rows that are handled "
        "together, more than one Arrow array can have; lower spark.ckpt.execution.memory-limit"
    )


def _large(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.nbytes <= _MOST_BYTES:
        return column
    wanted = _large_type(column.type)
    return pa.chunked_array([in_type(chunk, wanted) for chunk in column.chunks], wanted)


def _large_type(kind: pa.DataType) -> pa.DataType:
    """Return a type whose texts, bytes and lists may have more than 2 GB in one array."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(_large_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_large_type(field.type)) for field in kind])
    return kind


def drained(held: SentRows, following: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the held batches, which are no longer held then, and those that follow."""
    while held:
        yield held.pop(0)
    yield from following


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
            size += column.nbytes + _VALUE_BYTES * _inner_values(column)
    return size


def _has_any_length(data_type: pa.DataType) -> bool:
    return not pa.types.is_primitive(data_type) and not pa.types.is_decimal(data_type)


def _inner_values(column: pa.Array) -> int:
    """Return how many values are inside the values of a column."""
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(len(field) + _inner_values(field) for field in column.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = column.flatten()
        return len(items) + _inner_values(items)
    if pa.types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _inner_values(viewed(column, pa.list_(entry)))
    return 0
