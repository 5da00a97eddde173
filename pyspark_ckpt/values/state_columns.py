"""The values of a state for many keys as pandas columns, and back without any loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.values.arrow import arrow_array, arrow_type
from pyspark_ckpt.values.codec import required_decoder
from pyspark_ckpt.values.encoded import Form, encoded_tuples, repeated, stored_columns
from pyspark_ckpt.values.given import cast, whole
from pyspark_ckpt.values.types import Kind, LeafType, find_leaf, kind_of


class ValueColumns:
    """The schema of a state as columns."""

    def __init__(self, schema: T.StructType, what: str) -> None:
        self._schema = schema
        self.what = what

    def frame(self, values: Sequence[tuple[Any, ...] | None], index: pd.Index[Any]) -> pd.DataFrame:
        """Return tuples as columns; ``None`` becomes a row of nulls."""
        missing = (None,) * len(self._schema.fields)
        columns = zip(*[missing if value is None else value for value in values], strict=True)
        empty: list[Sequence[Any]] = [()] * len(self._schema.fields)
        return pd.DataFrame(
            {
                field.name: _series(field.dataType, column, index)
                for field, column in zip(
                    self._schema.fields, columns if values else empty, strict=True
                )
            },
            index=index,
        )

    def table(self, values: Sequence[tuple[Any, ...] | None]) -> pa.Table:
        """Return tuples in plain form as columns in Arrow; ``None`` becomes a row of nulls."""
        missing = (None,) * len(self._schema.fields)
        columns = zip(*[missing if value is None else value for value in values], strict=True)
        empty: list[Sequence[Any]] = [()] * len(self._schema.fields)
        return pa.Table.from_arrays(
            [
                arrow_array(field.dataType, column)
                for field, column in zip(
                    self._schema.fields, columns if values else empty, strict=True
                )
            ],
            names=self._schema.names,
        )

    def stored_frame(
        self, stored: Sequence[bytes | None], prefix: bytes, index: pd.Index[Any]
    ) -> pd.DataFrame | None:
        """Return encoded tuples as :meth:`frame` does; ``None`` if the codec has to read them."""
        if not all(_is_made_as_a_whole(field.dataType) for field in self._schema.fields):
            return None
        columns = stored_columns(stored, self._schema, prefix)
        if columns is None:
            return None
        series = {
            field.name: _series_of(field.dataType, column, index)
            for field, column in zip(self._schema.fields, columns, strict=True)
        }
        return pd.DataFrame(series, index=index)

    def stored_table(self, stored: Sequence[bytes | None], prefix: bytes) -> pa.Table | None:
        """Return encoded tuples as :meth:`table` does; ``None`` if the codec has to read them."""
        columns = stored_columns(stored, self._schema, prefix)
        return None if columns is None else pa.Table.from_arrays(columns, names=self._schema.names)

    def encoded(
        self, frame: pd.DataFrame | pa.Table | pa.RecordBatch, length: int, prefix: bytes
    ) -> list[bytes] | None:
        """Return columns as encoded tuples after a prefix; ``None`` if that needs each value.

        Most columns are encoded as a whole. A column of another type, or with a value that does not
        fit, goes value by value through the state's codec, which names the value.
        """
        if isinstance(frame, pa.RecordBatch):
            frame = pa.Table.from_batches([frame])
        self._check(frame, length)
        if isinstance(frame, pa.Table):
            columns = [self._of_table(field, frame) for field in self._schema.fields]
        else:
            columns = [
                arrow_column(field.dataType, frame[field.name]) for field in self._schema.fields
            ]
        known = [column for column in columns if column is not None]
        if not known or len(known) < len(columns):
            return None
        try:
            tuples = self._tuples(known, repeated(prefix, length))
        except StateValueError as exc:
            raise StateValueError(f"{self.what}: {exc}") from exc
        return list(tuples.to_numpy(zero_copy_only=False).tolist())

    def _tuples(self, columns: list[pa.Array], head: pa.Array) -> pa.BinaryArray:
        if (found := null_where_none_may_be(columns, self._schema)) is not None:
            name, row = found
            raise StateValueError(
                f"row {row} has a null in column {name!r} where its schema declares not null; give "
                "a value"
            )
        return encoded_tuples(columns, self._schema, Form.VALUE, head)

    def rows(self, frame: pd.DataFrame, length: int) -> Iterator[tuple[Any, ...]]:
        """Return columns as tuples; every kind of null that pandas has becomes ``None``.

        NaN in a plain float column stays NaN.
        """
        self._check(frame, length)
        columns = [_values(field, frame[field.name]) for field in self._schema.fields]
        return zip(*columns, strict=True)

    def _of_table(self, field: T.StructField, table: pa.Table) -> pa.Array:
        """Return a column of an Arrow table in the type of the state."""
        column = table.column(field.name)
        try:
            return whole(cast(column, arrow_type(field.dataType)))
        except pa.ArrowException as exc:
            raise StateValueError(
                f"{self.what}: column {field.name!r} is {column.type}, its type in the schema is "
                f"{field.dataType.simpleString()} ({exc}); cast it"
            ) from exc

    def _check(self, frame: pd.DataFrame | pa.Table, length: int) -> None:
        if not isinstance(frame, pd.DataFrame | pa.Table):
            raise StateValueError(
                f"{self.what}: updateMany got {type(frame).__name__}: give a pandas DataFrame, or "
                "an Arrow table or record batch"
            )
        names = frame.column_names if isinstance(frame, pa.Table) else list(frame.columns)
        missing = [name for name in self._schema.names if name not in names]
        if missing or len(frame) != length:
            raise StateValueError(
                f"{self.what}: updateMany got {len(frame)} rows with the columns "
                f"{names}, wanted are {length} rows with {self._schema.names}"
            )


def null_where_none_may_be(
    columns: Sequence[pa.Array], schema: T.StructType
) -> tuple[str, int] | None:
    """Return the column and row of a null that a schema declares as not null, if there is one."""
    for column, field in zip(columns, schema.fields, strict=True):
        if not field.nullable and column.null_count:
            return field.name, pc.index(column.is_null(), True).as_py()
        if not pa.types.is_nested(column.type):
            continue
        inside = T.StructType([T.StructField(field.name, field.dataType)])
        if (required := required_decoder(inside)) is None:
            continue
        row = 0
        try:
            for row, data in enumerate(encoded_tuples([column], inside, Form.VALUE).to_pylist()):  # noqa: B007  # the last one
                required.decode(data)
        except msgspec.ValidationError:
            return field.name, row
    return None


def _is_made_as_a_whole(data_type: T.DataType) -> bool:
    """Return whether values in a frame are made of an Arrow column as a whole."""
    row = find_leaf(data_type)
    return row is not None and (row.pandas is not None or row.plain in (str, bytes))


def _series(data_type: T.DataType, column: Sequence[Any], index: pd.Index[Any]) -> pd.Series[Any]:
    row = find_leaf(data_type)
    if row is None or row.pandas is None:
        return pd.Series(list(column), index=index, dtype=object)
    filled = column
    mask = np.zeros(len(column), dtype=bool)
    if None in column:
        mask = np.fromiter((value is None for value in column), dtype=bool, count=len(column))
        filled = [0 if value is None else value for value in column]
    return _nullable(row, filled, mask, index)


def _series_of(data_type: T.DataType, column: pa.Array, index: pd.Index[Any]) -> pd.Series[Any]:
    row = find_leaf(data_type)
    if row is None or row.pandas is None:
        return pd.Series(column.to_numpy(zero_copy_only=False), index=index, dtype=object)
    mask = np.array(column.is_null())
    filled = column.fill_null(False if row.kind is Kind.BOOLEAN else 0)
    return _nullable(row, filled, mask, index)


def _nullable(
    row: LeafType, filled: Any, mask: np.ndarray[Any, Any], index: pd.Index[Any]
) -> pd.Series[Any]:
    dtype: Any = pd.api.types.pandas_dtype(row.pandas)
    array = dtype.construct_array_type()(np.array(filled, dtype=dtype.numpy_dtype), mask)
    return pd.Series(array, index=index)


def _values(field: T.StructField, series: pd.Series[Any]) -> list[Any]:
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iub":
        return series.tolist()
    if kind_of(field.dataType) is Kind.INTEGER and series.dtype.kind == "f":
        return _whole_numbers(series)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "f":
        return series.tolist()
    values = series.tolist()
    if kind_of(field.dataType) is Kind.FRACTION:
        return [None if value is None or value is pd.NA else value for value in values]
    nulls = series.isna().tolist()
    return [None if is_null else value for value, is_null in zip(values, nulls, strict=True)]


def _whole_numbers(series: pd.Series[Any]) -> list[Any]:
    """Return integers that pandas turned into floats; their NaN means null."""
    nulls = series.isna().tolist()
    return [
        None if is_null else int(value) if float(value).is_integer() else value
        for value, is_null in zip(series.tolist(), nulls, strict=True)
    ]


_NUMBERS = {Kind.INTEGER: "iu", Kind.FRACTION: "f", Kind.BOOLEAN: "b"}
"""The kinds of pandas columns that are encoded as a whole."""


def arrow_column(data_type: T.DataType, series: pd.Series[Any]) -> pa.Array | None:
    """Return a column as Arrow has it, ``None`` if its values must be looked at one by one."""
    row = find_leaf(data_type)
    if row is None or not row.is_stored_as_taken:
        return None
    wanted = row.arrow(data_type)
    try:
        if row.pandas is not None:
            return _numbers(series, wanted, _NUMBERS[row.kind])
        if row.plain in (str, bytes) and series.dtype == object:
            values = series.to_numpy()
            if set(map(type, values)) <= {row.plain, type(None)}:
                return pa.array(values, wanted, from_pandas=False)
    except (pa.ArrowException, UnicodeError):
        pass  # the codec names the value that does not fit
    return None


def _numbers(series: pd.Series[Any], arrow_type: pa.DataType, kinds: str) -> pa.Array | None:
    dtype: Any = series.dtype
    if getattr(dtype, "kind", "O") not in kinds or (kinds == "f" and dtype.itemsize != 8):
        return None
    if isinstance(dtype, np.dtype):
        return pa.array(series.to_numpy(), from_pandas=False).cast(arrow_type)
    masked = pd.arrays.BooleanArray, pd.arrays.IntegerArray, pd.arrays.FloatingArray
    return pa.array(series.array).cast(arrow_type) if isinstance(series.array, masked) else None
