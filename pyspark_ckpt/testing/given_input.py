"""The rows, keys and schemas of a test, in the forms that the library takes."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.modes.calls import Calls, DueTimers, ShowTimers
from pyspark_ckpt.operator.modes.views import PandasView
from pyspark_ckpt.operator.rows.input import KEY_GROUP
from pyspark_ckpt.operator.rows.key_columns import Codes, codes_of_objects
from pyspark_ckpt.operator.rows.mode import Part
from pyspark_ckpt.operator.rows.sent_rows import Places
from pyspark_ckpt.operator.state.handle import as_state_schema
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.testing.kept_output import KeptOutput
from pyspark_ckpt.values.codec import key_encoder

_KEY = "__ckpt_key"
_ROW = "__ckpt_row"

EventTime = Callable[[Any], int | None]
"""A test's ``eventTimeExtractor``: from a row to its event time in milliseconds."""

Key = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAN = float("nan")

_ATOMIC: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "tinyint": T.ByteType(), "byte": T.ByteType(),
    "smallint": T.ShortType(), "short": T.ShortType(),
    "int": T.IntegerType(), "integer": T.IntegerType(),
    "bigint": T.LongType(), "long": T.LongType(),
    "float": T.FloatType(), "real": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(), "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
}  # fmt: skip

_DECIMAL = ("decimal", "dec", "numeric")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|([<>(),:]))")
_END = ""


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

    def given_rows(self, frame: pd.DataFrame) -> Iterator[Any]:
        """Return an iterator over rows as an ``eventTimeExtractor`` takes them."""
        if is_frame_of_rows(frame):
            return self.row_slices(frame)(0, len(frame))
        return each_row(self.pandas_frame(frame))

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

    def stored_keys(self, stored: Sequence[bytes]) -> pd.DataFrame:
        """Return the key columns of stored keys; without names of the test, ``key1`` and so on."""
        columns = list(zip(*map(self._keys.decode, stored), strict=True))
        names = self.key_names or [f"key{number}" for number in range(1, len(columns) + 1)]
        return pd.DataFrame(dict(zip(names, columns, strict=True)))

    def keys_of(self, frame: pd.DataFrame) -> list[Key]:
        """Return the keys of rows as the processor sees them."""
        return [self._keys.of_columns(key).key for key in self.sent_keys(frame)]


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
        mode: Calls,
        output: KeptOutput,
        event_time: EventTime | None,
        without_rows: Sequence[tuple[GivenKey, Any]] = (),
    ) -> None:
        self.method, self.form = mode.method, mode.form
        self.calls_once_per_part = mode.calls_once_per_part
        self.columns: Any = mode.columns
        self._mode = mode
        self._output = output
        self._event_time = event_time
        self._without_rows = without_rows

    def part(self, frames: list[pd.DataFrame]) -> Part:
        """Return a part of an epoch's rows by key; without frames, the keys that have no rows."""
        if not frames:
            return PartWithoutRows(self._without_rows)
        part = self._mode.part(frames)
        if self._event_time is None:
            return part
        return GivenPart(part, self.columns, self._event_time)

    def timers_shown(self, processor: StatefulProcessor) -> ShowTimers | None:
        """Return what makes the arguments of ``handleExpiredTimers``, if the processor has it."""
        return None if self._mode.timers_shown(processor) is None else self._show_timers

    def _show_timers(self, timers: DueTimers) -> tuple[pd.DataFrame, pd.DataFrame]:
        keys = timers.keys.shown = self.columns.stored_keys(timers.keys.encoded)
        times = PandasView().due_timers(timers.positions, timers.times_ms)
        return keys.copy(deep=False), times

    def new_output(self) -> KeptOutput:
        """Return the empty buffer for the epoch's output."""
        return self._output


class GivenPart:
    """A part with event times from the test's ``eventTimeExtractor``."""

    def __init__(self, part: Any, columns: GivenColumns, event_time: EventTime) -> None:
        self.stored = part.stored
        self.keys = getattr(part, "keys", ())  # a part of all keys has none
        self.process = part.process
        self.sent_rows = part.sent_rows
        self._columns = columns
        self._event_time = event_time

    def newest_event_time_ms(self, position: int) -> int | None:
        """Return the newest event time of a key's rows, ``None`` if they have none."""
        times = map(self._event_time, self._columns.given_rows(self.sent_rows(position)))
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
        rows = self.rows(position)
        return processor.handleInputRows(self.keys[position], rows, timer_values)

    def sent_rows(self, position: int) -> pd.DataFrame:  # noqa: ARG002
        """Return no rows."""
        return pd.DataFrame()

    def rows(self, position: int) -> Iterator[Any]:
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


@dataclass(frozen=True, slots=True)
class GivenKey:
    """One key in all its forms."""

    key: Key
    """What the processor sees."""
    sent: Key
    """The form that it has in the shuffle of a query."""
    encoded: bytes
    key_group: int


class GivenKeys:
    """All keys that a harness was given.

    A date and a number can have the same stored key. In a query, the types of the key columns say
    which one it is. A harness has no such types, so it remembers the keys themselves.

    The group of a key differs from its group in a query, which uses Spark's hash. With one key
    column, any value is a whole key, also a tuple.
    """

    def __init__(self, max_parallelism: int, columns: int = 1) -> None:
        self.columns = columns
        self._max_parallelism = max_parallelism
        self._known: dict[bytes, Key] = {}
        self._encode = key_encoder()

    @property
    def known(self) -> Mapping[bytes, Key]:
        """The keys by their stored form."""
        return dict(self._known)

    def remember(self, known: Mapping[bytes, Key]) -> None:
        """Add the keys of another harness."""
        self._known.update(known)

    def given(self, key: Any) -> GivenKey:
        """Return a key from its value, or from the tuple of values of several key columns."""
        if self.columns == 1:
            return self.of_columns((key,))
        if not isinstance(key, tuple) or len(key) != self.columns:
            raise PlanError(
                f"key {key!r} is not a tuple of {self.columns} values: give one value for each "
                f"of the harness's {self.columns} key columns"
            )
        return self.of_columns(tuple(key))

    def of_columns(self, parts: Key) -> GivenKey:
        """Return a key from the values of its columns; see :meth:`given`."""
        key = parts[0] if len(parts) == 1 else parts
        sent = tuple(_sent(part) for part in parts)
        try:
            encoded = self._encode(sent)
            hash(sent)
        except (TypeError, OverflowError) as exc:
            raise PlanError(
                f"{key!r} cannot be a key ({exc}): give a value of an atomic type, or with "
                "keyColumns=2 or more a tuple of such values"
            ) from exc
        known = self._known.setdefault(encoded, parts)
        return GivenKey(known, sent, encoded, zlib.crc32(encoded) % self._max_parallelism)

    def decode(self, encoded: bytes) -> Key:
        """Return the key that the processor sees, from its stored form."""
        return self._known[encoded]


def _sent(value: Any) -> Any:
    if isinstance(value, tuple):  # a struct
        return tuple(map(_sent, value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(" ")
        age = value - _EPOCH
        return (age.days * 86_400 + age.seconds) * 1_000_000 + age.microseconds
    return (value - _EPOCH.date()).days if isinstance(value, date) else value


class ParsedSchemas(dict[str, T.StructType]):
    """Schemas of states by their text, parsed at first use; a single type is allowed."""

    def __missing__(self, text: str) -> T.StructType:
        schema = self[text] = as_state_schema(_Parser(text).type_or_schema())
        return schema


def parse_schema(text: str) -> T.StructType:
    """Parse a list of fields, as Spark does."""
    return _Parser(text).schema()


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0

    def schema(self) -> T.StructType:
        if [token.lower() for token in self._tokens[:2]] == ["struct", "<"]:
            schema: Any = self._type()
        else:
            schema = T.StructType(self._fields(_END))
        if self._peek() != _END:
            raise self._error(f"unexpected {self._peek()!r} at the end")
        return schema  # type: ignore[no-any-return]

    def type_or_schema(self) -> T.DataType:
        if self._tokens[1:] and self._tokens[1] not in ("<", "("):
            return self.schema()
        data_type = self._type()
        if self._peek() != _END:
            raise self._error(f"unexpected {self._peek()!r} at the end")
        return data_type

    def _split(self) -> list[str]:
        tokens, position = [], 0
        text = self._text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"unexpected {text[position:]!r}")
            tokens.append(match[0].strip())
            position = match.end()
        return tokens

    def _fields(self, end: str) -> list[T.StructField]:
        fields = [] if self._peek() == end and end != _END else [self._field()]
        while self._peek() == ",":
            self._take(",")
            fields.append(self._field())
        return fields

    def _field(self) -> T.StructField:
        name = self._word()
        if self._peek() == ":":
            self._take(":")
        data_type = self._type()
        nullable, metadata = True, {}
        if self._peek().lower() == "not":
            self._take("not")
            self._take("null")
            nullable = False
        if self._peek().lower() == "comment":
            self._take("comment")
            metadata["comment"] = re.sub(r"\\(.)", r"\1", self._any()[1:-1])
        return T.StructField(name, data_type, nullable, metadata)

    def _type(self) -> T.DataType:
        word = self._word().lower()
        if word in _ATOMIC:
            return _ATOMIC[word]
        if word in _DECIMAL:
            return T.DecimalType(*self._numbers()) if self._peek() == "(" else T.DecimalType()
        if word not in ("array", "map", "struct"):
            raise self._error(f"unknown type {word!r}")
        self._take("<")
        nested: T.DataType
        if word == "array":
            nested = T.ArrayType(self._type())
        elif word == "map":
            key = self._type()
            self._take(",")
            nested = T.MapType(key, self._type())
        else:
            nested = T.StructType(self._fields(">"))
        self._take(">")
        return nested

    def _numbers(self) -> list[int]:
        self._take("(")
        numbers = [self._number()]
        if self._peek() == ",":
            self._take(",")
            numbers.append(self._number())
        self._take(")")
        return numbers

    def _number(self) -> int:
        token = self._any()
        if not token.isdecimal():
            raise self._error(f"{token!r} is not a number")
        return int(token)

    def _word(self) -> str:
        token = self._any()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._error(f"{token!r} is not a name")
        return token

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else _END

    def _any(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _take(self, wanted: str) -> None:
        token = self._any()
        if token.lower() != wanted:
            raise self._error(f"expected {wanted!r} instead of {token!r}")

    def _error(self, why: str) -> PlanError:
        return PlanError(f"schema {self._text!r} cannot be parsed: {why}; give a StructType")
