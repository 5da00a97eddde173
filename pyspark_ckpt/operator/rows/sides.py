"""The rows beside the keyed ones: an operator has one input, so all rows come in one union.

A flag column for each side marks the rows of that side. A row of one side has fillers in the
columns of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pyspark_ckpt.operator.rows.input import KEY_GROUP, TOKEN, InputColumns
from pyspark_ckpt.operator.rows.mode import InputMode
from pyspark_ckpt.operator.rows.parts import Frames, InputParts
from pyspark_ckpt.operator.time import NEVER_LATE, WATERMARK_DELAY

NO_KEY_GROUP = -1
"""The key group of rows that belong to no key."""

_SHARED = (KEY_GROUP, TOKEN)


@dataclass(frozen=True, slots=True)
class SideRows:
    """The rows of one side.

    Parameters
    ----------
    name
        A short name that no other side has. The names of the side's columns begin with it.
    """

    name: str

    @property
    def _prefix(self) -> str:
        return f"{self.name}_"

    @property
    def _flag(self) -> str:
        return f"__ckpt_is_{self.name}"

    def union(self, keyed: DataFrame, side: DataFrame) -> DataFrame:
        """Return both as one DataFrame. Driver only.

        Parameters
        ----------
        keyed, side
            The rows; both have a key group and a token.
        """
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

    def divided(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """Return the other rows of a frame, and the side's rows in the side's own columns.

        The second is ``None`` if the frame has no row of the side.
        """
        is_side = frame[self._flag].to_numpy(dtype=bool)
        if not is_side.any():
            return frame, None
        return frame[~is_side], self._own_columns(frame[is_side])

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


def read_divided(
    frames: Iterable[pd.DataFrame], sides: Sequence[SideRows], parts: InputParts
) -> tuple[Iterator[Frames], dict[str, Frames]]:
    """Read all of an epoch's input.

    Parameters
    ----------
    frames
        The input as Spark hands it over.
    sides
        The sides that the plan put into it.
    parts
        Divides the keyed rows into parts that fit into memory.

    Returns
    -------
    tuple
        The keyed rows in parts, and the rows of each side by the side's name.
    """
    found: dict[str, Frames] = {side.name: [] for side in sides}

    def keyed() -> Iterator[pd.DataFrame]:
        for frame in frames:
            rest = frame
            for side in sides:
                rest, own = side.divided(rest)
                if own is not None:
                    found[side.name].append(own)
            if len(rest):
                yield rest

    return parts.read(keyed()), found


@dataclass(frozen=True, slots=True)
class EpochInput:
    """The rows of an epoch after all of its input was read.

    Parameters
    ----------
    parts
        The keyed rows, in parts that fit into memory. The consumer empties the lists.
    broadcast
        The broadcast rows as the processor gets them; ``None`` if the epoch has none.
    initial
        The rows of the initial state as they were sent.
    """

    parts: Iterable[Frames] = ()
    broadcast: Iterator[Any] | None = None
    initial: Frames | None = None


class BroadcastRows:
    """The broadcast side of an operator's input: each row goes to every subtask.

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
        self.side = SideRows("broadcast")

    def plan(self, keyed: DataFrame, stream: DataFrame, tokens: Sequence[int]) -> DataFrame:
        """Return the keyed rows and, once for each token, the broadcast rows. Driver only."""
        key_group = F.lit(NO_KEY_GROUP).alias(KEY_GROUP)
        every_token = F.explode(F.array(*[F.lit(token) for token in tokens])).alias(TOKEN)
        return self.side.union(
            keyed, stream.select(key_group, *self._columns.columns(), every_token)
        )

    def received(self, frames: Frames) -> Iterator[Any] | None:
        """Return sent rows as the processor gets them, ``None`` if there are none."""
        if not frames:
            return None
        if self._as_frames:
            return (self._columns.pandas_frame(frame) for frame in frames)
        return (row for frame in frames for row in self._columns.rows(frame))


class InitialRows:
    """The initial state of an operator: given to ``handleInitialState`` before any other row.

    Parameters
    ----------
    columns
        How the columns of the initial state travel.
    mode
        How the processor receives the rows.
    """

    def __init__(self, columns: InputColumns, mode: InputMode) -> None:
        self.columns = columns
        self.mode = mode
        self.side = SideRows("initial")

    def plan(self, keyed: DataFrame, initial: DataFrame) -> DataFrame:
        """Return the keyed rows and those of the initial state together. Driver only."""
        return self.side.union(keyed, initial)
