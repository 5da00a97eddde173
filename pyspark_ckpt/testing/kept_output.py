"""The output of an epoch in a harness: as Spark gets it, or as yielded if there is no schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes.kept_values import kept_array, kept_frame, kept_row
from pyspark_ckpt.operator.modes.output import (
    ArrowOutput,
    OutputBuffer,
    PandasOutput,
    RowsOutput,
)
from pyspark_ckpt.operator.rows.mode import Output, RowForm
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.values.arrow import ColumnStyle, a_list, arrow_type, python_values
from pyspark_ckpt.values.columns import integers_of, with_nulls
from pyspark_ckpt.values.frames import pandas_column
from pyspark_ckpt.values.shown import row_columns, shown_column
from pyspark_ckpt.values.user import local_timestamp


class KeptOutput:
    """The output of an epoch; `after_call` is called after each call of the processor.

    `buffer` is the library's, or :class:`YieldedItems` if the test gives no schema.
    """

    def __init__(
        self, buffer: Output, after_call: Callable[[], None], form: RowForm, time_zone: str
    ) -> None:
        self._buffer = buffer
        self._after_call = after_call
        self._form = form
        self._time_zone = time_zone
        self._taken: list[Any] = []

    @property
    def rows(self) -> int:
        """How many rows are not taken yet."""
        return self._buffer.rows

    def extend(self, output: Iterable[Any] | None) -> None:
        """Add what one call of the processor yields."""
        self._buffer.extend(output)
        self._after_call()

    def fill(self, output: Iterable[Any] | None) -> Iterator[Any] | None:
        """Add all that one call yields: a harness returns an epoch's output as a whole."""
        self.extend(output)
        return None

    def cut(self, rows: int) -> None:
        """Remove the rows after the first `rows`, which a call yielded before it raised."""
        self._buffer.cut(rows)

    def take(self) -> Any:
        """Return the rows that are not taken yet, which :meth:`result` returns again."""
        self._taken.append(self._buffer.take())
        return self._taken[-1]

    def result(self, schema: T.StructType | None) -> Any:
        """Return all of the epoch's output: a list of Rows, one frame or one table."""
        if schema is None:
            items = list(chain.from_iterable(self._taken))
            if self._form is RowForm.ROWS:
                return items
            if self._form is RowForm.ARROW:
                return pa.concat_tables(items, promote_options="default") if items else pa.table({})
            return pd.concat(items, ignore_index=True) if items else pd.DataFrame()
        if self._form is RowForm.ROWS:
            return _spark_rows(schema, self._taken)
        if self._form is RowForm.ARROW:
            return _spark_table(schema, self._taken)
        return _spark_frame(schema, self._taken, self._time_zone)


class YieldedItems(OutputBuffer):
    """Rows, frames or tables as they were yielded, without a schema."""

    def __init__(self, output_rows: OutputRows, form: RowForm) -> None:
        super().__init__(output_rows)
        self._kind, self._copy = _YIELDED[form]
        self.item, self.words = self._kind.item, self._kind.words  # type: ignore[misc]
        self._items: list[Any] = []

    def _draw(self, items: Iterator[Any], full: int) -> bool:  # noqa: ARG002
        # Each is copied before the processor continues: a query has it as it is now, too.
        for item in items:
            if self._kind is not RowsOutput and not isinstance(item, self.item):
                raise StateValueError(
                    f"{self._schema.where}: the processor yielded {type(item).__name__}: "
                    f"yield {self._kind.yields}"
                )
            self._items.append(self._copy(item))
            self.rows = len(self._items)
        return False

    def cut(self, rows: int) -> None:
        """Remove the items after the first `rows`, which a call yielded before it raised."""
        del self._items[rows:]
        self.rows = rows

    def take(self) -> Any:
        """Return the items, and empty the buffer."""
        items, self._items, self.rows = self._items, [], 0
        return items


def _kept_table(table: pa.Table | pa.RecordBatch) -> pa.Table:
    columns = [
        pa.chunked_array([kept_array(chunk) for chunk in column.chunks], column.type)
        for column in (pa.table(table) if isinstance(table, pa.RecordBatch) else table).columns
    ]
    return pa.Table.from_arrays(columns, names=table.schema.names)


_YIELDED: Mapping[RowForm, tuple[Any, Callable[[Any], Any]]] = {
    RowForm.ROWS: (RowsOutput, kept_row),
    RowForm.PANDAS: (PandasOutput, kept_frame),
    RowForm.ARROW: (ArrowOutput, _kept_table),
}
"""What each form of rows is yielded as, and how it is copied."""


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


def _spark_table(schema: T.StructType, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches in the sent schema as a table like the one that ``toArrow`` returns."""
    wanted = [(field.name, arrow_type(field.dataType)) for field in schema.fields]
    tables = [
        pa.Table.from_arrays(
            [
                shown_column(field.dataType, column)
                for field, column in zip(schema.fields, batch.columns, strict=True)
            ],
            names=schema.names,
        )
        for batch in batches
    ]
    return pa.concat_tables(tables) if tables else pa.schema(wanted).empty_table()


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
