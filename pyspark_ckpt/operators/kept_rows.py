"""The rows that an operator keeps of each key: a value state with a list of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.operator.table.keys import KEY_POSITION
from pyspark_ckpt.values.arrow import arrow_type
from pyspark_ckpt.values.given import whole

_ROWS = "rows"


class KeptRows:
    """Rows of some columns, in their order; made in ``init`` of a processor.

    `ttl` is as for ``getValueState``: how long after the last change a key is kept.
    """

    def __init__(
        self, handle: Any, name: str, fields: list[T.StructField], ttl: Any = None
    ) -> None:
        self._type = arrow_type(T.StructType(fields))
        schema = T.StructType([T.StructField(_ROWS, T.ArrayType(T.StructType(fields)))])
        self._state = handle.getValueState(name, schema, ttl)
        self.names = [*(field.name for field in fields), KEY_POSITION]
        """The columns of the rows, and the position of their key."""

    def of(self, keys: pa.Table) -> pa.Table:
        """Return the rows of some keys, by key, with the position of their key."""
        lists = whole(self._state.getMany(keys).column(_ROWS)).cast(pa.list_(self._type))
        counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        positions = np.repeat(keys.column(KEY_POSITION).to_numpy(), counts)
        rows = pa.Table.from_struct_array(lists.flatten())
        return rows.append_column(KEY_POSITION, pa.array(positions))

    def put(self, keys: pa.Table, rows: pa.Table) -> None:
        """Keep these rows, which are by key, and no others of some keys; they have no other key."""
        wanted = keys.column(KEY_POSITION).to_numpy()
        positions = rows.column(KEY_POSITION).to_numpy()
        starts = np.searchsorted(positions, wanted, "left")
        counts = np.searchsorted(positions, wanted, "right") - starts
        assert counts.sum() == len(rows)
        has_rows = pa.array(counts > 0)
        if has_rows.true_count != len(keys):
            self._state.clearMany(keys.filter(pc.invert(has_rows)))
        offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
        columns = [whole(rows.column(field.name)).cast(field.type) for field in self._type]
        structs = pa.StructArray.from_arrays(columns, fields=list(self._type))
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
        self._state.updateMany(keys.filter(has_rows), pa.table({_ROWS: lists}))
