"""The columns of a keyed stream, as a ready-made operator reads and emits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pyspark_ckpt.api.stream import KeyedStream
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.table.keys import KEY_POSITION, Numbers
from pyspark_ckpt.values.types import is_grouped


@dataclass(frozen=True, slots=True)
class StreamColumns:
    """The columns of a stream: those of the key, and the others.

    `keys` are in the order of the key, `others` in that of the stream. `shown` is what an operator
    emits: key expressions, which the stream does not have, and then the stream's columns.
    """

    keys: tuple[T.StructField, ...]
    others: tuple[T.StructField, ...]
    shown: tuple[T.StructField, ...]
    event_time: T.StructField | None = None

    @classmethod
    def of(cls, keyed: KeyedStream, where: str) -> StreamColumns:
        """Return the columns of a keyed stream."""
        if not isinstance(keyed, KeyedStream):
            raise PlanError(f"{where}: {type(keyed).__name__} is no keyed stream: give key_by(...)")
        columns: InputColumns = keyed._keyed.columns  # noqa: SLF001  # what key_by was given
        keys = tuple(map(_plain, columns.key_schema.fields))
        rows = [_plain(each) for each in columns.schema if each.name not in columns.derived_keys]
        names = {field.name for field in keys}
        expressions = [field for field in keys if field.name not in {each.name for each in rows}]
        return cls(
            keys,
            tuple(field for field in rows if field.name not in names),
            (*expressions, *rows),
            None if columns.event_time_index is None else columns.schema[columns.event_time_index],
        )

    def ordered(self, by: str, where: str) -> T.StructField:
        """Return a column whose values have an order; one of the key has none within a key."""
        for field in self.others:
            if field.name == by and is_grouped(field.dataType):
                return field
        raise PlanError(
            f"{where}: rows cannot be ordered by {by!r}: give a column with an order, other than "
            f"the key, of {T.StructType([*self.others]).simpleString()}"
        )

    def emitted(self, more: list[T.StructField], where: str) -> T.StructType:
        """Return the schema of an operator's output, with columns that the operator adds."""
        names = [field.name for field in (*self.shown, *more)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise PlanError(f"{where}: the output would have {repeated} twice: give another name")
        return T.StructType([*self.shown, *more])

    def output(self, keys: pa.Table, rows: pa.Table, more: pa.Table | None = None) -> pa.Table:
        """Return rows with the columns of their keys, and with columns that the operator adds.

        `rows` have :data:`KEY_POSITION`, and all columns but those of the key.
        """
        places = rows.column(KEY_POSITION)
        own = {field.name for field in self.keys}
        columns = {
            field.name: (
                keys.column(field.name).take(places)
                if field.name in own
                else rows.column(field.name)
            )
            for field in self.shown
        }
        if more is not None:
            columns |= {name: more.column(name) for name in more.column_names}
        return pa.table(columns)


def _plain(field: T.StructField) -> T.StructField:
    return T.StructField(field.name, field.dataType)


def bounds_of_keys(rows: pa.Table) -> Numbers:
    """Return where the rows of each key begin, and their number; they are in the order of keys."""
    positions = rows.column(KEY_POSITION).to_numpy()
    begins = np.flatnonzero(np.diff(positions, prepend=-1))
    return np.append(begins, len(positions))
