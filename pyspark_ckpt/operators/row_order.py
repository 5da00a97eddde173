"""The order of rows by a column: nulls are the least, NaN is the greatest number, as in Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.combine.combination import ranked
from pyspark_ckpt.operator.table.keys import KEY_POSITION
from pyspark_ckpt.values.given import whole
from pyspark_ckpt.values.types import Order, leaf_of

_HAS, _VALUE = "has value", "value"


def in_order(rows: pa.Table, by: T.StructField, *, descending: bool = False) -> pa.Table:
    """Return rows by key, and within a key by a column; equal ones stay as they were."""
    values = whole(rows.column(by.name))
    if leaf_of(by.dataType).order is Order.RANKED:
        _, values = ranked(values)
    way = "descending" if descending else "ascending"
    # Not by an option for nulls: PyArrow 25 has another one than the versions before.
    columns = {KEY_POSITION: rows.column(KEY_POSITION), _HAS: values.is_valid(), _VALUE: values}
    order = [(KEY_POSITION, "ascending"), (_HAS, way), (_VALUE, way)]
    return rows.take(pc.sort_indices(pa.table(columns), sort_keys=order))
