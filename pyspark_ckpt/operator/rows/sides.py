"""Rows of a broadcast stream: once for each subtask in the plan, handled before the keyed rows.

Rows of an initial state: given to ``handleInitialState``, key by key, before any other row.

A second kind of rows in an operator's only input: in one union, told apart by a flag.

A row of one side has fillers in the columns of the other, and the flag says which side it is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN, InputColumns
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.time import NEVER_LATE, WATERMARK_DELAY

_SHARED = (KEY_GROUP, TOKEN)


class SideRows:
    """Rows beside the keyed ones.

    Parameters
    ----------
    name
        Short and the side's own; it begins the names of its columns.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}_"
        self._flag = f"__ckpt_is_{name}"

    def union(self, keyed: DataFrame, side: DataFrame) -> DataFrame:
        """Return both as one DataFrame; both have a key group and a token. Driver only."""
        renamed = side.select(
            *_SHARED,
            *[
                F.col(name).alias(self._prefix + name)
                for name in side.columns
                if name not in _SHARED
            ],
        )
        is_side, is_keyed = F.expr("true"), F.expr("false")
        return keyed.select("*", *_fillers(renamed.schema), is_keyed.alias(self._flag)).unionByName(
            renamed.select("*", *_fillers(keyed.schema), is_side.alias(self._flag))
        )

    def split(self, frames: Iterator[pd.DataFrame], side: list[pd.DataFrame]) -> Iterator[Any]:
        """Yield the keyed rows; those of the side are added to `side` on the way."""
        for frame in frames:
            is_side = frame[self._flag].to_numpy(dtype=bool)
            if not is_side.any():
                yield frame
                continue
            side.append(self._own_columns(frame[is_side]))
            if not is_side.all():
                yield frame[~is_side]

    def _own_columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        own = [name for name in frame.columns if name.startswith(self._prefix)]
        names = {name: name.removeprefix(self._prefix) for name in own}
        return frame[[KEY_GROUP, *own]].rename(columns=names).reset_index(drop=True)


def _fillers(schema: T.StructType) -> list[Column]:
    return [_filler(field) for field in schema.fields if field.name not in _SHARED]


def _filler(field: T.StructField) -> Column:
    """Return a value that pandas keeps in the column's own type: null only where it can."""
    data_type = field.dataType
    if isinstance(data_type, T.BooleanType):
        value = F.expr("false")
    elif isinstance(data_type, T.NumericType) and not isinstance(data_type, T.DecimalType):
        value = F.lit(NEVER_LATE if field.metadata.get(WATERMARK_DELAY) is not None else 0)
    else:
        value = F.lit(None)
    return value.cast(data_type).alias(field.name)


_NO_KEY_GROUP = -1


class BroadcastRows:
    """The broadcast side of an operator's input.

    Parameters
    ----------
    columns
        How the broadcast stream's columns travel.
    as_frames
        Whether the processor gets pandas frames rather than Rows.
    """

    def __init__(self, columns: InputColumns, *, as_frames: bool) -> None:
        self._columns = columns
        self._as_frames = as_frames
        self._side = SideRows("broadcast")
        self._frames: list[pd.DataFrame] = []

    def plan(self, keyed: DataFrame, stream: DataFrame, tokens: Sequence[int]) -> DataFrame:
        """Return the keyed rows and, once for each token, the broadcast rows. Driver only."""
        key_group = F.lit(_NO_KEY_GROUP).alias(KEY_GROUP)
        every_token = F.explode(F.array(*[F.lit(token) for token in tokens])).alias(TOKEN)
        return self._side.union(
            keyed, stream.select(key_group, *self._columns.columns(), every_token)
        )

    def keyed_only(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the keyed rows and keep the broadcast rows for :meth:`rows`."""
        return self._side.split(frames, self._frames)

    def rows(self) -> Iterator[Any] | None:
        """Return the epoch's broadcast rows, once all frames were read; ``None`` for none."""
        frames, self._frames = self._frames, []
        if not frames:
            return None
        if self._as_frames:
            return (self._columns.pandas_frame(frame) for frame in frames)
        return (row for frame in frames for row in self._columns.rows(frame))


class InitialRows:
    """The initial state of an operator.

    Parameters
    ----------
    columns
        How its columns travel.
    mode
        How the processor receives its rows.
    """

    def __init__(self, columns: InputColumns, mode: InputMode) -> None:
        self.columns = columns
        self.mode = mode
        self._side = SideRows("initial")
        self._frames: list[pd.DataFrame] = []

    def plan(self, keyed: DataFrame, initial: DataFrame) -> DataFrame:
        """Return the keyed rows and those of the initial state together. Driver only."""
        return self._side.union(keyed, initial)

    def keyed_only(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the keyed rows and keep those of the initial state for :meth:`parts`."""
        return self._side.split(frames, self._frames)

    def parts(self) -> Iterator[list[pd.DataFrame]]:
        """Yield the rows of the initial state, once all frames were read."""
        frames, self._frames = self._frames, []
        if frames:
            yield frames
