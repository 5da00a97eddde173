"""What a state holds for one key of a running query, decoded as the state's table has it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.live.newest_handles import CommittedEpoch
from pyspark_ckpt.operator.state.kinds import Entries, kind_of
from pyspark_ckpt.operator.table.catalog import evolved
from pyspark_ckpt.snapshot.columns import StateValues, python_rows
from pyspark_ckpt.snapshot.tables import Table, state_table
from pyspark_ckpt.stored.binary_column import BinaryColumn
from pyspark_ckpt.stored.replica import Replica
from pyspark_ckpt.values.types import find_leaf


class KeyValues:
    """Reads one state of one subtask, a key at a time.

    `handle` is a handle of the subtask at any epoch. `state_id` is the id of the state in the
    subtask.
    """

    def __init__(
        self,
        key_schema: T.StructType,
        state: StateDescriptor,
        handle: Handle,
        state_id: int,
        what: str,
    ) -> None:
        self.stored, self.state_id = handle.states[state_id], state_id
        newest = evolved(self.stored, state, what)
        self._table: Table = state_table(key_schema, newest, state_id, handle.subtask, what)
        self._columns = self._table.schema.names[len(key_schema.fields) :]
        self._ttl = newest.ttl
        self._is_one = kind_of(newest).entries is Entries.ONE
        values = StateValues(newest, what)
        rows = [find_leaf(each.dataType) for each in values.schema.fields]
        # Their decoded values are what an Arrow table returns for them.
        is_same = all(row is not None and row.is_stored_as_taken for row in rows)
        # Ten microseconds instead of five hundred, which a table takes for any number of rows.
        self._plain = values if self._is_one and is_same and not newest.is_stamped else None

    def get(
        self, replica: Replica, handle: Handle, stored_key: bytes, committed: CommittedEpoch
    ) -> Any:
        """Return what the state holds for a key at an epoch, ``None`` if it holds nothing.

        `stored_key` includes the key group and the state id. `handle` must be the subtask's handle
        at the epoch of `committed`.
        """
        if not self._is_one:
            # No other key begins with a whole key, because MessagePack says where a value ends.
            found = replica.entries(handle, stored_key)
            return self._rows(found.keys, found.values, committed) or None
        value = replica.value(handle, stored_key)
        if value is None:
            return None
        if self._plain is not None:
            (row,) = self._plain.plain(BinaryColumn.of(pa.array([value], pa.binary())))
            return dict(zip(self._columns, row, strict=True))
        rows = self._rows([stored_key], [value], committed)
        return rows[0] if rows else None

    def _rows(self, keys: Any, values: Any, committed: CommittedEpoch) -> list[dict[str, Any]]:
        if not keys:
            return []
        entries = ArrowEntries(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
        time_ms = None if self._ttl is None else committed.time_ms(self._ttl.time)
        schema = self._table.schema
        rows = pa.Table.from_batches(self._table.batches([entries], time_ms), schema)
        return python_rows(rows.select(self._columns))
