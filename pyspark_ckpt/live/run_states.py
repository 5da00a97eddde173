"""The states of one run of a query, read on its driver at the newest committed epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, StateUseError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.live.key_values import KeyValues
from pyspark_ckpt.live.newest_handles import CommittedEpoch, CommittedEpochs, NewestHandles
from pyspark_ckpt.live.replica import Replica
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.rows.key_groups import subtask_of
from pyspark_ckpt.operator.rows.key_hash import KeyPlaces
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.operator.table.catalog import evolved, struct_type
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.snapshot.entries import StoredEntries, StoredRange, stored_entries
from pyspark_ckpt.snapshot.reader import SnapshotReader, StoredOperator
from pyspark_ckpt.snapshot.tables import state_table
from pyspark_ckpt.snapshot.views import StateView
from pyspark_ckpt.spark.session import why_ended

_MOST_TRIES = 10
"""A read is tried again if an epoch was committed meanwhile, because older files are deleted."""

R = TypeVar("R")


class LiveStates:
    """The states of one run of a query.

    `is_closed` says whether they are read no more, because the run has ended.

    `spark` must be a session of :func:`reading_session`.
    """

    def __init__(self, spark: SparkSession, files: QueryFiles) -> None:
        self.is_closed = False
        self._spark = spark
        self._files = files
        self._states: dict[tuple[str, str], StateOfRun] = {}
        epochs = CommittedEpochs(files)
        self._operators = {
            operator.uid: LiveOperator(spark, files, operator_id, epochs)
            for operator_id, operator in files.operators.ours.items()
        }

    def state(self, uid: str, name: str) -> StateOfRun:
        """Return one state of an operator."""
        if uid not in self._operators:
            raise StateUseError(
                f"query {self._files.query_id} has no operator {uid!r}: it has "
                f"{', '.join(map(repr, self._operators))}"
            )
        operator = self._operators[uid]
        declared = {state.name: state for state in operator.descriptor.states}
        if name not in declared:
            raise StateUseError(
                f"{operator.what} has no state {name!r}: it has "
                f"{', '.join(map(repr, declared)) or 'none'}"
            )
        return self._states.setdefault((uid, name), StateOfRun(operator, declared[name]))

    def check_session(self) -> None:
        """Raise a ``StateUseError`` if the Spark session of the run has ended."""
        why = why_ended(self._spark)
        if why is not None:
            raise StateUseError(
                f"query {self._files.query_id} has ended, because {why}: open its "
                "checkpointLocation with open_state"
            )

    def close(self) -> None:
        """Read no more, and remove the copies of state on this machine."""
        self.is_closed = True  # first, because a read that fails from now on looks at it
        for operator in self._operators.values():
            operator.close()


@dataclass
class _Subtask:
    """What is kept of a subtask that was asked for; the lock is held for a whole read."""

    replica: Replica
    lock: threading.Lock = field(default_factory=threading.Lock)


class LiveOperator:
    """What the states of one operator share."""

    def __init__(
        self, spark: SparkSession, files: QueryFiles, operator_id: int, epochs: CommittedEpochs
    ) -> None:
        self.descriptor: OperatorDescriptor = files.operators.ours[operator_id]
        self.what = f"query {files.query_id}, operator {self.descriptor.uid!r}"
        self.handles = NewestHandles(spark, files, operator_id)
        self._files = files
        self._operator_id = operator_id
        self._epochs = epochs
        self._lock = threading.Lock()
        self._subtasks: dict[int, _Subtask] | None = {}

    @cached_property
    def key_schema(self) -> T.StructType:
        """The schema of the key columns."""
        return struct_type(self.descriptor.key_schema)

    @cached_property
    def places(self) -> KeyPlaces:
        """Finds the key groups of keys."""
        return KeyPlaces(self.key_schema, self.descriptor.max_parallelism)

    @contextmanager
    def replica(self, subtask: int) -> Iterator[Replica]:
        """Yield the copy of a subtask's state; one thread after the other has it.

        It raises ``StateUseError`` if the query has ended.
        """
        with self._lock:
            self._check_open()
            assert self._subtasks is not None  # it is open
            if subtask not in self._subtasks:
                replica = Replica(self._files.backend_type, self._files.storage)
                self._subtasks[subtask] = _Subtask(replica)
            found = self._subtasks[subtask]
        with found.lock:
            self._check_open()
            yield found.replica

    def at_newest(self, read: Callable[[CommittedEpoch], R]) -> R:
        """Return what `read` returns for the newest committed epoch, or a newer one.

        Files of an epoch may be deleted once a newer one is committed. Then it reads the newer one.
        """
        self._check_open()
        for left in reversed(range(_MOST_TRIES)):
            committed = self._epochs.newest()
            try:
                return read(committed)
            except (CorruptFileError, CheckpointAbortedError, FileNotFoundError, PySparkException):
                if not left or self._epochs.newest().epoch == committed.epoch:
                    raise
        raise AssertionError("unreachable")

    def stored(self, handles: list[Handle]) -> StoredOperator:
        """Return the operator as a snapshot of these handles would have it."""
        metadata = OperatorMetadata(
            operator_id=self._operator_id,
            uid=self.descriptor.uid,
            parallelism=self.descriptor.parallelism,
            max_parallelism=self.descriptor.max_parallelism,
            key_schema=self.descriptor.key_schema,
            backend=self._files.backend_type,
            handles=tuple(handles),
            time_mode=self.descriptor.time_mode,
        )
        return StoredOperator(metadata, self.what)

    def reader(self, committed: CommittedEpoch) -> SnapshotReader:
        """Return what reads the entries of an epoch's handles."""
        return _EpochReader(self._files, committed)

    def close(self) -> None:
        """Remove the copies."""
        with self._lock:
            subtasks, self._subtasks = self._subtasks or {}, None
        for each in subtasks.values():
            with each.lock:
                each.replica.close()

    def _check_open(self) -> None:
        if self._subtasks is None:
            raise StateUseError(
                f"{self.what}: the query has ended; open its checkpointLocation with open_state"
            )


class _EpochReader(SnapshotReader):
    """Reads the entries of handles of a committed epoch."""

    def __init__(self, files: QueryFiles, committed: CommittedEpoch) -> None:
        self._files = files
        self._committed = committed

    def entries(
        self, handle: Handle, stored: StoredRange, on_step: Callable[[], None] = lambda: None
    ) -> Iterator[StoredEntries]:
        yield from stored_entries(self._files.storage, handle, stored, on_step)

    def now_ms(self, time: TtlTime) -> int:
        return self._committed.time_ms(time)


class StateOfRun:
    """Reads one state of one run of a query."""

    def __init__(self, operator: LiveOperator, state: StateDescriptor) -> None:
        self._operator = operator
        self._state = state
        self._what = f"{operator.what}, state {state.name!r}"
        self._of_subtask: dict[int, KeyValues] = {}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state's table, as :func:`open_state` has them."""
        return state_table(self._operator.key_schema, self._state, 0, 0, self._what).schema

    def get(self, key: tuple[Any, ...]) -> tuple[Any, CommittedEpoch]:
        """Return what the state holds for one key, and the epoch; as :meth:`LiveState.get`."""
        if kind_of(self._state).movement is not Movement.WITH_KEY:
            raise StateUseError(f"{self._what} belongs to no key: read it with to_pandas")
        operator = self._operator.descriptor
        key_group, encoded = self._operator.places.place(key)
        subtask = subtask_of(key_group, operator.parallelism, operator.max_parallelism)
        start = encode_key_group(key_group)
        with self._operator.replica(subtask) as replica:

            def read(committed: CommittedEpoch) -> tuple[Any, CommittedEpoch]:
                committed, handle = self._operator.handles.of_subtask(committed, subtask)
                state_id = None if handle is None else _id_of(self._state.name, handle)
                value = None
                if handle is not None and state_id is not None:
                    stored_key = start + bytes([state_id]) + encoded
                    values = self._values(handle, state_id)
                    value = values.get(replica, handle, stored_key, committed)
                return value, committed

            return self._operator.at_newest(read)

    def whole(self) -> tuple[pa.Table, CommittedEpoch]:
        """Return the whole state, and the epoch; as :meth:`LiveState.to_arrow`."""

        def read(committed: CommittedEpoch) -> tuple[pa.Table, CommittedEpoch]:
            committed, found = self._operator.handles.of_all(committed)
            handles = [self._as_declared(handle) for handle in found]
            if all(_id_of(self._state.name, handle) is None for handle in handles):
                return self.schema.empty_table(), committed
            operator, reader = self._operator.stored(handles), self._operator.reader(committed)
            view = StateView(reader, operator, self._state.name)
            return view.to_arrow().read_all(), committed

        return self._operator.at_newest(read)

    def _as_declared(self, handle: Handle) -> Handle:
        """Return a handle whose state has the newest schema: an idle subtask keeps the old one."""
        state_id = _id_of(self._state.name, handle)
        if state_id is None:
            return handle
        states = list(handle.states)
        states[state_id] = evolved(states[state_id], self._state, self._what)
        return msgspec.structs.replace(handle, states=tuple(states))

    def _values(self, handle: Handle, state_id: int) -> KeyValues:
        known = self._of_subtask.get(handle.subtask)
        stored = handle.states[state_id]
        if known is None or (known.stored, known.state_id) != (stored, state_id):
            key_schema = self._operator.key_schema
            known = KeyValues(key_schema, self._state, handle, state_id, self._what)
            self._of_subtask[handle.subtask] = known
        return known


def _id_of(name: str, handle: Handle) -> int | None:
    """Return the id of a state in a subtask, ``None`` if the subtask does not have it yet."""
    for state_id, state in enumerate(handle.states):
        if state.name == name and state.sweeps is None:
            return state_id
    return None
