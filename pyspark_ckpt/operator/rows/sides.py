"""The rows in addition to the keyed ones: an operator has one input, so all rows come in one union.

A flag column for each side marks the rows of that side. A row of one side has fillers in the
columns of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN, InputColumns
from pyspark_ckpt.operator.rows.mode import InputMode, RowForm
from pyspark_ckpt.operator.rows.parts import InputParts
from pyspark_ckpt.operator.rows.sent_rows import SentRows, renamed

NO_KEY_GROUP = -1
"""The key group of rows that belong to no key."""

_SHARED = (KEY_GROUP, TOKEN)
_FLAG = "__ckpt_is_"


@dataclass(frozen=True, slots=True)
class SideRows:
    """The rows of one side.

    `name` is unique among the sides, and the names of the side's columns begin with it. `columns`
    are those of the user's rows, if it has such.
    """

    name: str
    columns: InputColumns | None = None

    @property
    def _prefix(self) -> str:
        return f"{self.name}_"

    @property
    def flag(self) -> str:
        """The name of the column that marks the side's rows."""
        return f"{_FLAG}{self.name}"

    def own_name(self, name: str) -> str:
        """Return the name that a column of the union has among the side's own columns."""
        return name.removeprefix(self._prefix)

    def union(self, keyed: DataFrame, side: DataFrame) -> DataFrame:
        """Return both as one DataFrame. Driver only."""
        renamed = side.select(
            *_SHARED,
            *[
                F.col(name).alias(self._prefix + name)
                for name in side.columns
                if name not in _SHARED
            ],
        )
        is_side, is_keyed = F.expr("true"), F.expr("false")
        return keyed.select("*", *_fillers(renamed.schema), is_keyed.alias(self.flag)).unionByName(
            renamed.select("*", *_fillers(keyed.schema), is_side.alias(self.flag))
        )

    def divided(self, sent: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Return the other rows of a batch as they are, and the side's rows in its own columns.

        The second is ``None`` if the batch has no row of the side.
        """
        # A row that came in with another side has no flag of this one.
        is_side = sent.column(self.flag).fill_null(False)  # noqa: FBT003  # of Arrow
        if not is_side.true_count:
            return sent, None
        return sent.filter(pc.invert(is_side)), self._own_columns(sent.filter(is_side))

    def _own_columns(self, sent: pa.RecordBatch) -> pa.RecordBatch:
        own = [name for name in sent.schema.names if name.startswith(self._prefix)]
        names = [KEY_GROUP, *map(self.own_name, own)]
        rows = renamed(sent.select([KEY_GROUP, *own]), names)
        return rows if self.columns is None else self.columns.arriving(rows)


def _fillers(schema: T.StructType) -> list[Column]:
    return [_filler(field) for field in schema.fields if field.name not in _SHARED]


def _filler(field: T.StructField) -> Column:
    is_flag = field.name.startswith(_FLAG)
    value = F.expr("false") if is_flag else F.lit(None).cast(field.dataType)
    return value.alias(field.name)


def read_divided(
    batches: Iterable[pa.RecordBatch],
    columns: InputColumns,
    sides: Sequence[SideRows],
    parts: InputParts,
) -> tuple[Iterator[SentRows], dict[str, SentRows]]:
    """Read all of an epoch's input, the rows in the library's Arrow types."""
    found: dict[str, SentRows] = {side.name: [] for side in sides}

    def keyed() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rest = batch
            for side in sides:
                rest, own = side.divided(rest)
                if own is not None:
                    found[side.name].append(own)
            if len(rest):
                yield columns.arriving(rest)

    return parts.read(keyed()), found


@dataclass(frozen=True, slots=True)
class EpochInput:
    """The rows of an epoch after all of its input was read.

    The consumer empties the lists of `parts`. `broadcast` is ``None`` if the epoch has no broadcast
    rows.
    """

    parts: Iterable[SentRows] = ()
    broadcast: Iterator[Any] | None = None
    initial: SentRows | None = None


class BroadcastRows:
    """The broadcast side of an operator's input: each row goes to every subtask."""

    def __init__(self, columns: InputColumns, form: RowForm) -> None:
        self.columns = columns
        self._form = form
        self.side = SideRows("broadcast", columns)

    def plan(self, keyed: DataFrame, stream: DataFrame, tokens: Sequence[int]) -> DataFrame:
        """Return the keyed rows and, once for each token, the broadcast rows. Driver only."""
        key_group = F.lit(NO_KEY_GROUP).alias(KEY_GROUP)
        every_token = F.explode(F.array(*[F.lit(token) for token in tokens])).alias(TOKEN)
        return self.side.union(
            keyed, stream.select(key_group, *self.columns.columns(), every_token)
        )

    def received(self, batches: SentRows) -> Iterator[Any] | None:
        """Return rows of the side as the processor gets them, ``None`` if there are none."""
        if not batches:
            return None
        if self._form is RowForm.ARROW:
            return map(self.columns.arrow_rows, batches)
        if self._form is RowForm.PANDAS:
            return (self.columns.pandas_frame(batch) for batch in batches)
        return (row for batch in batches for row in self.columns.rows(batch))


class InitialRows:
    """The initial state of an operator: given to ``handleInitialState`` before any other row."""

    def __init__(self, columns: InputColumns, mode: InputMode) -> None:
        self.columns = columns
        self.mode = mode
        self.side = SideRows("initial", columns)

    def plan(self, keyed: DataFrame, initial: DataFrame) -> DataFrame:
        """Return the keyed rows and those of the initial state together. Driver only."""
        return self.side.union(keyed, initial)
