"""The quarantined keys of a subtask: two states of its table, moved and saved as all states.

``__quarantine`` says of each quarantined key since when and why it is quarantined.
``__quarantine_rows`` is the list of its rows, in the order of their arrival, each with its epoch.
Where late rows reach the operator, each row says whether it was late in that epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, QuarantineError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.descriptor import QuarantineLimits
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.operator.schema.report import LIBRARY_PREFIX, ROWS_STATE
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.kinds import StateKind
from pyspark_ckpt.operator.state.list import ListState
from pyspark_ckpt.operator.state.value import ValueState
from pyspark_ckpt.operator.table.catalog import codec_of, struct_type
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.values.codec import TupleCodec

KEYS_STATE = LIBRARY_PREFIX

EPOCH_COLUMN = "quarantined_in_epoch"
LATE_COLUMN = "quarantined_late"

_ERROR = "error"

_KEYS_SCHEMA = T.StructType(
    [
        T.StructField("since_epoch", T.LongType()),
        T.StructField("step", T.StringType()),
        T.StructField(_ERROR, T.StringType()),
        T.StructField("rows", T.LongType()),
        T.StructField("size_bytes", T.LongType()),
    ]
)


class QuarantinedKey(msgspec.Struct, array_like=True, frozen=True):
    """Why a key is quarantined, and how much is kept of it."""

    since_epoch: int
    step: str
    error: str
    rows: int = 0
    size_bytes: int = 0


def comparable(quarantined: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a quarantined key without the lines of code in its error.

    They are others where an equal program is in another file, or further down in it.
    """
    columns = dict(quarantined)
    if _ERROR in columns:
        columns[_ERROR] = columns[_ERROR].partition("\n")[0]
    return columns


@dataclass(frozen=True, slots=True)
class RowsOfEpoch:
    """Rows of a quarantined key that came in one epoch, as they were sent: all late, or none."""

    epoch: int
    sent: Any
    is_late: bool = False


class QuarantinedKeys:
    """The quarantined keys of one subtask in one epoch.

    `states` is the processor's handle after ``init``. `keeping` is ``None`` if the operator has no
    quarantine; then a quarantined key raises QuarantineError. `found` has the quarantined keys by
    their stored form.
    """

    def __init__(
        self,
        states: ProcessorHandle,
        keeping: QuarantinedRows | None,
        key_groups: Iterable[int],
        limits: QuarantineLimits,
        epoch: int,
        where: str,
    ) -> None:
        self._states = states
        self._table = states.table
        self._keeping = keeping
        self._limits = limits
        self._epoch = epoch
        self._where = where
        self._keys: ValueState | None = None
        self._rows: ListState | None = None
        self._row_schema = None if keeping is None else _row_schema(keeping)
        self._says_late = keeping is not None and keeping.keeps_late_rows
        self.found: dict[StoredKey, QuarantinedKey] = self._read_keys(key_groups)
        self._check_continues()

    @property
    def rows(self) -> int:
        """The number of rows that are kept."""
        return sum(each.rows for each in self.found.values())

    def has_current(self) -> bool:
        """Return whether the key being worked on is quarantined."""
        return bool(self.found) and self._current in self.found

    def quarantine(self, step: str, error: str) -> None:
        """Quarantine the key being worked on, which keeps its state and timers."""
        if len(self.found) >= self._limits.keys:
            raise QuarantineError(
                f"{self._where}: {len(self.found)} keys are quarantined, and another key's "
                f"processor raised in {step}: {error}; correct the processor, or raise "
                "spark.ckpt.quarantine.max-keys"
            )
        self._put(QuarantinedKey(self._epoch, step, error))

    def note_error(self, step: str, error: str) -> None:
        """Note why the key being worked on stays quarantined."""
        key = self.found[self._current]
        self._put(msgspec.structs.replace(key, step=step, error=error))

    def keep(self, sent: Any, *, is_late: bool = False) -> None:
        """Keep rows of the key being worked on, which is quarantined, after those that are kept."""
        assert self._keeping is not None
        came = (self._epoch, is_late) if self._says_late else (self._epoch,)
        rows = [(*came, *values) for values in self._keeping.values(sent)]
        _, state = self._open_states()
        codec = self._row_codec
        key = self.found[self._current]
        key = msgspec.structs.replace(
            key,
            rows=key.rows + len(rows),
            size_bytes=key.size_bytes + sum(len(codec.encode(row)) for row in rows),
        )
        limits = self._limits
        if key.rows > limits.rows_per_key or key.size_bytes > limits.bytes_per_key:
            raise QuarantineError(
                f"{self._where}: a key that is quarantined since epoch {key.since_epoch} has "
                f"{key.rows} rows of {key.size_bytes} bytes; it was quarantined because {key.step} "
                f"raised {key.error}, and so many are not kept: correct the processor and release "
                "the key"
            )
        state.appendList(rows)
        self._put(key)

    def kept(self) -> list[RowsOfEpoch]:
        """Return the rows of the key being worked on, by the epoch in which they came."""
        assert self._keeping is not None
        key_group = int.from_bytes(self._current[0], "big")
        _, state = self._open_states()
        came = 2 if self._says_late else 1
        return [
            RowsOfEpoch(
                epoch, self._keeping.sent([row[came:] for row in rows], key_group), any(is_late)
            )
            for (epoch, *is_late), rows in groupby(state.get(), key=lambda row: row[:came])
        ]

    def remove(self) -> None:
        """Remove the key being worked on from the quarantined keys, with its rows."""
        keys, rows = self._open_states()
        keys.clear()
        rows.clear()
        del self.found[self._current]

    def end(self) -> None:
        """Delete the two states if no key is quarantined: their rows' columns may change."""
        if self.found:
            return
        for name in (KEYS_STATE, ROWS_STATE):
            state_id = self._states.catalog.find(name)
            if state_id is not None:
                self._states.catalog.delete(state_id)

    @property
    def _current(self) -> StoredKey:
        current = self._table.current
        assert current.key_group is not None  # a key is being worked on
        return current.key_group, current.key

    def _put(self, key: QuarantinedKey) -> None:
        keys, _ = self._open_states()
        keys.update(msgspec.structs.astuple(key))
        self.found[self._current] = key

    def _read_keys(self, key_groups: Iterable[int]) -> dict[StoredKey, QuarantinedKey]:
        state_id = self._states.catalog.find(KEYS_STATE)
        if state_id is None:
            return {}
        found: dict[StoredKey, QuarantinedKey] = {}
        decode = codec_of(self._states.catalog.descriptor(state_id), self._where).decode
        for number in key_groups:
            group = encode_key_group(number)
            prefix = group + bytes([state_id])
            for key, value in self._table.scan(prefix):
                found[group, key[len(prefix) :]] = QuarantinedKey(*decode(value))
        return found

    def _check_continues(self) -> None:
        """Refuse a program that would handle later rows of a quarantined key before those kept."""
        if not self.found:
            return
        if self._row_schema is None:
            raise QuarantineError(
                f"{self._where}: {len(self.found)} keys are quarantined, and the operator was "
                "built without onError='quarantine': give it back, start the query and "
                "release the keys"
            )
        rows_id = self._states.catalog.find(ROWS_STATE)
        assert rows_id is not None  # both are made together
        stored = self._states.catalog.descriptor(rows_id).value_schema
        if stored != self._row_schema.json():
            if _without_late(struct_type(stored)) == _without_late(self._row_schema):
                had = "had" if not self._says_late else "had not"
                raise IncompatibleStateError(
                    f"{self._where}: {len(self.found)} keys are quarantined by a processor that "
                    f"{had} a method for late rows: release the keys before the processor gets or "
                    "loses such a method"
                )
            raise IncompatibleStateError(
                f"{self._where}: {len(self.found)} keys are quarantined, whose rows have the "
                f"schema {stored}; now rows have {self._row_schema.json()}: release the keys "
                "before the columns of the input change"
            )

    @cached_property
    def _row_codec(self) -> TupleCodec:
        assert self._row_schema is not None  # the operator has a quarantine
        return TupleCodec(self._row_schema, self._where, style=None)

    def _open_states(self) -> tuple[ValueState, ListState]:
        """Return the two states, made if they are new."""
        if self._keys is None or self._rows is None:
            assert self._row_schema is not None
            keys = self._id_of(KEYS_STATE, StateKind.VALUE, _KEYS_SCHEMA)
            rows = self._id_of(ROWS_STATE, StateKind.LIST, self._row_schema)
            keys_codec = TupleCodec(_KEYS_SCHEMA, self._where)
            self._keys = ValueState(self._table, keys, keys_codec)
            self._rows = ListState(
                self._table, rows, TupleCodec(self._row_schema, self._where).plain
            )
        return self._keys, self._rows

    def _id_of(self, name: str, kind: StateKind, schema: T.StructType) -> bytes:
        catalog = self._states.catalog
        wanted = StateDescriptor(name=name, kind=kind.stored_name, value_schema=schema.json())
        state_id = catalog.find(name)
        if state_id is None:
            state_id = catalog.add(wanted)
        elif not self.found:  # an edit that erased all quarantined keys left it without an entry
            catalog.replace(state_id, wanted)
        return bytes([state_id])


def _row_schema(keeping: QuarantinedRows) -> T.StructType:
    came: list[tuple[str, T.DataType]] = [(EPOCH_COLUMN, T.LongType())]
    if keeping.keeps_late_rows:
        came.append((LATE_COLUMN, T.BooleanType()))
    fields = [T.StructField(_free_name(name, keeping.schema), kind) for name, kind in came]
    return T.StructType([*fields, *keeping.schema.fields])


def _without_late(schema: T.StructType) -> list[T.StructField]:
    return [field for field in schema if not field.name.startswith(LATE_COLUMN)]


def _free_name(name: str, schema: T.StructType) -> str:
    while name in schema.names:
        name += "_"
    return name
