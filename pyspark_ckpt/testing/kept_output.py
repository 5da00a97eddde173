"""The output of an epoch in a harness: as Spark gets it, or as yielded if there is no schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept_frame, kept_row
from pyspark_ckpt.operator.rows.mode import Output
from pyspark_ckpt.values.arrow import ColumnStyle, a_list, python_values
from pyspark_ckpt.values.columns import integers_of, with_nulls
from pyspark_ckpt.values.frames import pandas_column
from pyspark_ckpt.values.shown import row_columns
from pyspark_ckpt.values.user import local_timestamp


class KeptOutput:
    """The output of an epoch.

    `after_call` is called after each call of the processor. `checked` is the library's buffer,
    which refuses wrong values, or ``None`` without a schema.
    """

    def __init__(
        self,
        checked: Output | None,
        after_call: Callable[[], None],
        where: str,
        *,
        in_frames: bool,
        time_zone: str,
        schema: T.StructType | None = None,
    ) -> None:
        self._checked = checked
        self._after_call = after_call
        self._where = where
        self._in_frames = in_frames
        self._time_zone = time_zone
        self._schema = schema
        self._kept: list[Any] = []
        self._batches: list[pa.RecordBatch] = []

    @property
    def rows(self) -> int:
        """How many rows are not checked yet."""
        return 0 if self._checked is None else self._checked.rows

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        if isinstance(output, pd.DataFrame):
            raise StateValueError(
                f"{self._where}: the processor returned a DataFrame: yield it, or return a list "
                "of frames"
            )
        if isinstance(output, Row):  # its values would be taken for rows
            raise StateValueError(
                f"{self._where}: the processor returned one Row: yield it, or return a list of Rows"
            )
        # Each is copied before the processor continues: a query has it as it is now, too.
        yielded = [self._as_it_is(item) for item in (() if output is None else output)]
        if self._checked is not None:
            self._checked.extend(yielded)
        else:
            self._kept.extend(yielded)
        self._after_call()

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add all that one call yields: a harness returns an epoch's output as a whole."""
        self.extend(output)
        return None

    def cut(self, rows: int) -> None:
        """Remove the checked rows of a call that raised; its output is not kept."""
        if self._checked is not None:
            self._checked.cut(rows)

    def take(self) -> pa.RecordBatch:
        """Check the rows that are not checked yet; :meth:`result` returns them."""
        if self._checked is None:
            return pa.RecordBatch.from_pydict({})
        self._batches.append(self._checked.take())
        return self._batches[-1]

    def result(self) -> Any:
        """Return all of the epoch's output, as a list of Rows or as one frame."""
        if self._schema is not None:
            if self._in_frames:
                return _spark_frame(self._schema, self._batches, self._time_zone)
            return _spark_rows(self._schema, self._batches)
        if not self._in_frames:
            return self._kept
        return pd.concat(self._kept, ignore_index=True) if self._kept else pd.DataFrame()

    def _as_it_is(self, item: Any) -> Any:
        if not self._in_frames:
            return kept_row(item)
        if not isinstance(item, pd.DataFrame):
            raise StateValueError(
                f"{self._where}: the processor yielded {type(item).__name__}: yield pandas "
                "DataFrames"
            )
        return kept_frame(item)


def _spark_rows(schema: T.StructType, batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Return batches in the sent schema as the Rows that ``collect`` returns."""
    make = Row(*schema.names)
    return [
        make(*values) for batch in batches for values in zip(*_columns(schema, batch), strict=True)
    ]


def _spark_frame(
    schema: T.StructType, batches: Sequence[pa.RecordBatch], time_zone: str
) -> pd.DataFrame:
    """Return batches in the sent schema as a frame like the one that ``toPandas`` returns.

    Only integers in columns with nulls differ: they are exact here, as ``Int64``.
    """
    frames = [
        pd.DataFrame(
            {
                field.name: pandas_column(field.dataType, column, time_zone, exact=True)
                for field, column in zip(schema.fields, batch.columns, strict=True)
            }
        )
        for batch in batches
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=schema.names)


def _columns(schema: T.StructType, batch: pa.RecordBatch) -> list[list[Any]]:
    return [
        python_values(field.dataType, column, _COLLECTED)
        for field, column in zip(schema.fields, batch.columns, strict=True)
    ]


def _leaf(data_type: T.DataType) -> Callable[[pa.Array], list[Any]] | None:
    return _instants if isinstance(data_type, T.TimestampType) else _ROWS.leaves(data_type)


def _instants(column: pa.Array) -> list[Any]:
    return with_nulls(list(map(local_timestamp, integers_of(column).tolist())), column)


def _row(names: list[str]) -> Callable[[tuple[Any, ...]], Any]:
    make = Row(*names)
    return lambda values: make(*values)


_ROWS = row_columns("UTC")
_COLLECTED = ColumnStyle(_leaf, _row, lambda _, entries: dict(entries), a_list)
"""The objects that ``collect`` returns: Rows, dicts and naive local times."""
