"""The rows and frames of a test, in the form that the library's input modes take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.operator.rows.input import KEY_GROUP
from pyspark_ckpt.operator.rows.key_columns import Codes, codes_of_objects
from pyspark_ckpt.operator.rows.mode import InputMode, Part
from pyspark_ckpt.operator.rows.sent_rows import Places
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.values.codec import key_encoder
from pyspark_ckpt.testing.given_keys import GivenKey, GivenKeys, Key
from pyspark_ckpt.testing.kept_output import KeptOutput

_KEY = "__ckpt_key"
_ROW = "__ckpt_row"

EventTime = Callable[[Any], int | None]
"""A test's ``eventTimeExtractor``: from a row to its event time in milliseconds."""


class GivenColumns:
    """Replaces the InputColumns of a query; columns and their types stay as given."""

    event_time_index = None

    def __init__(self, keys: GivenKeys, key_names: Sequence[str] = ()) -> None:
        self._keys = keys
        self.key_names = tuple(key_names)

    @property
    def decode_key(self) -> Callable[[bytes], Key]:
        """The function that turns a stored key into the key that the processor sees."""
        return self._keys.decode

    def joined(self, frames: list[pd.DataFrame]) -> pd.DataFrame:
        """Return several frames as one."""
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)

    def taken(self, frame: pd.DataFrame, places: Places) -> pd.DataFrame:
        """Return the rows at some places."""
        return frame.take(places)

    def size_bytes(self, frame: pd.DataFrame) -> int:  # noqa: ARG002
        """Return 0, because no row is sent to Spark."""
        return 0

    def key_codes(self, frame: pd.DataFrame) -> Codes:
        """Return a number for each row; rows with equal keys have equal numbers."""
        return codes_of_objects(self.sent_keys(frame))

    def row_slices(self, frame: pd.DataFrame) -> Callable[[int, int], Iterator[Row]]:
        """Return a function of two positions that returns the rows between them.

        The frame was made by :func:`frame_of_rows`.
        """
        rows = frame[_ROW].tolist()
        return lambda start, stop: iter(rows[start:stop])

    def sent_keys(self, frame: pd.DataFrame) -> list[Key]:
        """Return the key of each row in its shuffle form."""
        return frame[_KEY].tolist()

    def encoded_keys(self, frame: pd.DataFrame) -> pa.BinaryArray:
        """Return the key of each row as it is stored."""
        return pa.array(map(key_encoder(), self.sent_keys(frame)), pa.binary())

    def key_groups(self, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
        """Return the key group of each row."""
        return frame[KEY_GROUP].to_numpy()

    def with_exact_frames(self) -> GivenColumns:
        """Return these columns: frames of a test stay as given."""
        return self

    def pandas_frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return rows with the columns of the test."""
        return frame.drop(columns=[_KEY, KEY_GROUP]).reset_index(drop=True)

    def pandas_keys(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the key columns of rows."""
        return frame[list(self.key_names)].reset_index(drop=True)

    def user_keys(self, sent_keys: Sequence[Key]) -> Sequence[Key]:
        """Return keys as the processor sees them."""
        return [self._keys.of_columns(key).key for key in sent_keys]


def frame_of_rows(given: Sequence[tuple[GivenKey, Sequence[Row]]]) -> pd.DataFrame:
    """Return the rows of several keys as one frame, for :class:`GivenColumns`."""
    pairs = [(key, row) for key, rows in given for row in rows]
    rows = np.empty(len(pairs), dtype=object)
    for place, (_, row) in enumerate(pairs):  # a list of tuples would become a matrix
        rows[place] = row
    return _with_keys(pd.DataFrame({_ROW: rows}), [key for key, _ in pairs])


def is_frame_of_rows(frame: pd.DataFrame) -> bool:
    """Return whether a frame was made by :func:`frame_of_rows`."""
    return _ROW in frame.columns


def frame_of_frames(given: Sequence[tuple[GivenKey, pd.DataFrame]]) -> pd.DataFrame:
    """Return the frames of several keys as one frame, for :class:`GivenColumns`."""
    frames = [_with_keys(frame, [key] * len(frame)) for key, frame in given]
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def frame_with_key_columns(
    keys: GivenKeys, frame: pd.DataFrame, names: Sequence[str]
) -> pd.DataFrame:
    """Return a frame with key columns as a frame with keys, for :class:`GivenColumns`."""
    columns = [frame[name].tolist() for name in names]
    return _with_keys(frame, [keys.of_columns(key) for key in zip(*columns, strict=True)])


def _with_keys(frame: pd.DataFrame, keys: Sequence[GivenKey]) -> pd.DataFrame:
    sent = np.empty(len(keys), dtype=object)
    for place, key in enumerate(keys):
        sent[place] = key.sent
    groups = np.fromiter((key.key_group for key in keys), dtype=np.int64, count=len(keys))
    return frame.assign(**{_KEY: sent, KEY_GROUP: groups})


class GivenInput:
    """One of the library's input modes, with output that is kept for the test."""

    def __init__(
        self,
        mode: InputMode,
        output: KeptOutput,
        event_time: EventTime | None,
        without_rows: Sequence[tuple[GivenKey, Any]] = (),
    ) -> None:
        self.method, self.form = mode.method, mode.form
        self.calls_once_per_part = mode.calls_once_per_part
        self.columns = mode.columns
        self._mode = mode
        self._output = output
        self._event_time = event_time
        self._without_rows = without_rows

    def part(self, frames: list[pd.DataFrame]) -> Part:
        """Return a part of an epoch's rows by key; without frames, the keys that have no rows."""
        if not frames:
            return PartWithoutRows(self._without_rows)
        part = self._mode.part(frames)
        return part if self._event_time is None else GivenPart(part, self._event_time)

    def new_output(self) -> KeptOutput:
        """Return the empty buffer for the epoch's output."""
        return self._output


class GivenPart:
    """A part with event times from the test's ``eventTimeExtractor``."""

    def __init__(self, part: Any, event_time: EventTime) -> None:
        self.stored = part.stored
        self.keys = part.keys
        self.process = part.process
        self.initial_states = part.initial_states
        self.sent_rows = part.sent_rows
        self._rows = part.rows
        self._event_time = event_time

    def newest_event_time_ms(self, position: int) -> int | None:
        """Return the newest event time of a key's rows, ``None`` if they have none."""
        times = map(self._event_time, each_row(self._rows(position)))
        return max((time for time in times if time is not None), default=None)


class PartWithoutRows:
    """Keys without rows in a test; the processor is called for them, as by PySpark's tester."""

    def __init__(self, given: Sequence[tuple[GivenKey, Any]]) -> None:
        ordered = sorted(given, key=lambda one: (one[0].key_group, one[0].encoded))
        self.stored = [(encode_key_group(key.key_group), key.encoded) for key, _ in ordered]
        self.keys = [key.key for key, _ in ordered]
        self._rows = [rows for _, rows in ordered]

    def process(
        self, processor: StatefulProcessor, position: int, timer_values: TimerValues
    ) -> Iterable[Any] | None:
        """Call the processor for the key at a position."""
        rows = self.initial_states(position)
        return processor.handleInputRows(self.keys[position], rows, timer_values)

    def sent_rows(self, position: int) -> pd.DataFrame:  # noqa: ARG002
        """Return no rows."""
        return pd.DataFrame()

    def initial_states(self, position: int) -> Iterator[Any]:
        """Return an iterator over the one empty frame, or over no row."""
        rows = self._rows[position]
        return iter([rows] if isinstance(rows, pd.DataFrame) else ())

    def newest_event_time_ms(self, position: int) -> int | None:  # noqa: ARG002
        """Return ``None``: there are no rows."""
        return None


def each_row(rows: Iterable[Row] | pd.DataFrame) -> Iterator[Any]:
    """Return an iterator over rows as an ``eventTimeExtractor`` takes them."""
    if isinstance(rows, pd.DataFrame):
        return (row for _, row in rows.iterrows())
    return iter(rows)
