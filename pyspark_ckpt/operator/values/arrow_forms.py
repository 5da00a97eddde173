"""Columns of users in Arrow: from the form in which rows travel, and back to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.operator.values.arrow_values import arrow_array, arrow_type, plain_values
from pyspark_ckpt.operator.values.message_pack import MESSAGE_PACK
from pyspark_ckpt.operator.values.sent_columns import values_of, with_nulls
from pyspark_ckpt.operator.values.transport import (
    Transport,
    all_received,
    travels_as_json,
)
from pyspark_ckpt.operator.values.wire_form import fields_writer

Numbers = np.ndarray[Any, Any]


def shown_column(
    data_type: T.DataType, sent: pa.Array, nulls: Numbers | None, transport: Transport
) -> pa.Array:
    """Return a column as a processor sees it, in the Arrow type of its Spark type.

    Parameters
    ----------
    data_type
        The Spark type of the column.
    sent
        The column as it travels.
    nulls
        Which rows are null, ``None`` if none is.
    transport
        How the column travels.
    """
    column = with_nulls(sent, nulls)
    wanted = arrow_type(data_type)
    if travels_as_json(data_type):
        return values_column(data_type, all_received(transport, values_of(column)))
    if isinstance(data_type, T.DateType | T.TimestampType):
        return column.view(wanted)
    return column if column.type == wanted else column.cast(wanted)


def values_column(data_type: T.DataType, values: Sequence[Any]) -> pa.Array:
    """Return Python values of a Spark type as an Arrow column."""
    write = fields_writer(MESSAGE_PACK, T.StructType([T.StructField("c0", data_type)]))
    plain = values if write is None else [write((value,))[0] for value in values]
    return arrow_array(data_type, plain)


def sent_column(
    data_type: T.DataType,
    column: pa.ChunkedArray,
    make: Callable[[Sequence[Any]], pa.Array],
    make_nested: Callable[[Sequence[Any]], pa.Array],
) -> pa.Array:
    """Return a column that a processor yields as it travels.

    Parameters
    ----------
    data_type
        The Spark type of the column.
    column
        The column.
    make
        Makes a travelling column of Python values; it names a value that does not fit.
    make_nested
        The same for values in plain form, with maps as lists of entries.
    """
    wanted = arrow_type(data_type)
    if column.type != wanted:
        column = cast(column, wanted)
    array = whole(column)
    if isinstance(data_type, T.DateType):
        return array.view(pa.int32())
    if isinstance(data_type, T.TimestampType):
        return array.view(pa.int64())
    if isinstance(data_type, T.TimestampNTZType):
        return make(array.to_pylist())
    if travels_as_json(data_type):
        return make_nested(plain_values(data_type, array, list))
    return array


def cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Return a column in another type; a value that does not fit is an Arrow error."""
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(wanted):
        if (column.type.tz is None) != (wanted.tz is None):
            raise pa.ArrowInvalid(f"{column.type} is no {wanted}")
        return column.cast(wanted)
    if pa.types.is_integer(wanted) and not (
        pa.types.is_integer(column.type) or pa.types.is_null(column.type)
    ):
        raise pa.ArrowInvalid(f"{column.type} is no {wanted}")
    if pa.types.is_dictionary(column.type):
        return pc.dictionary_decode(column).cast(wanted)
    return column.cast(wanted)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array.

    Raises
    ------
    pyarrow.ArrowInvalid
        If it has more bytes of text than one array holds.
    """
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks > 1:
            raise pa.ArrowInvalid("the column has over 2 GB: yield it in several tables")
        return array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array
