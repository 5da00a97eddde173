"""The states of a running query, read on its driver at the newest committed epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import CheckpointAbortedError, CorruptFileError, StateUseError
from pyspark_ckpt.formats.canonical_file import ArrowEntries
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.live.key_values import KeyValues
from pyspark_ckpt.live.newest_handles import CommittedEpoch, CommittedEpochs, NewestHandles
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.rows.keys import KeyPlaces, subtask_of
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.operator.table.catalog import evolved, struct_type
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.snapshot.columns import pandas_frame
from pyspark_ckpt.snapshot.reader import SnapshotReader, StoredOperator
from pyspark_ckpt.snapshot.tables import state_table
from pyspark_ckpt.snapshot.views import StateView
from pyspark_ckpt.stored.replica import Replica
from pyspark_ckpt.stored.state import StoredRange, StoredState

R = TypeVar("R")

_MOST_TRIES = 10
"""A read is tried again if an epoch was committed during it, because older files are deleted."""


@dataclass(frozen=True, slots=True)
class LiveValue:
    """What a state held for one key at the newest committed epoch.

    Parameters
    ----------
    value : dict, list of dict, or None
        As :meth:`StateView.get` returns it; ``None`` if the key has no state.
    epoch : int
        The epoch.
    watermark_ms : int
        The watermark after the epoch, in milliseconds since 1970; 0 before the first one.
    offsets : dict
        Where each source continues after the epoch, as Spark writes it, by the number of the
        source.

    Examples
    --------
    >>> found = query.state("count", "count").get_with_epoch("ada")
    >>> found.value
    {'n': 2}
    >>> found.epoch
    0
    """

    value: Any
    epoch: int
    watermark_ms: int
    offsets: dict[int, str]


class LiveState:
    """One state of a running query; ``query.state(...)`` returns it.

    Each call reads the newest epoch that was committed before it, and never an epoch in progress.
    It neither stops the query nor waits for an epoch or checkpoint. If the query is restarted in
    place, the state continues with the query; a call then waits for the new run. Use it from any
    thread of the driver.

    Parameters
    ----------
    states_after : callable
        Returns the states of the query's run that follows the run with the given states, or the
        same ones if none follows; for ``None`` those of the run that there is.
    operator, name : str
        The operator's uid, and the name of the state.

    Raises
    ------
    StateUseError
        If there is no such operator or state.

    Examples
    --------
    >>> count = query.state("count", "count")
    >>> count.get("ada")
    {'n': 2}
    """

    def __init__(
        self, states_after: Callable[[LiveStates | None], LiveStates], operator: str, name: str
    ) -> None:
        self._states_after = states_after
        self._operator = operator
        self._name = name
        self._read(lambda _: None)  # raises the error

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state's table, as :meth:`Location.state` has them."""
        return self._read(lambda state: state.schema)

    def get(self, *key: Any) -> Any:
        """Return what the state holds for one key, as :meth:`StateView.get` does.

        Parameters
        ----------
        *key : object
            A value per key column, as a processor gets them.

        Returns
        -------
        dict, list of dict, or None
            The value of :meth:`get_with_epoch`, which also says what is raised.

        Examples
        --------
        >>> query.state("count", "count").get("nobody") is None
        True
        """
        return self.get_with_epoch(*key).value

    def get_with_epoch(self, *key: Any) -> LiveValue:
        """Return what the state holds for one key, and at which epoch.

        The first call for a subtask copies the subtask's state to the driver's disk. Later calls
        apply what was committed since.

        Parameters
        ----------
        *key : object
            A value per key column, as a processor gets them.

        Returns
        -------
        LiveValue
            The value, with the epoch, watermark and source offsets that it belongs to. A value
            whose time to live is over is ``None``, as for the processor.

        Raises
        ------
        UnknownEpochError
            If no epoch is committed yet.
        StateUseError
            If the state belongs to no key, or the query has ended.
        StateValueError
            If `key` does not fit the key columns.
        CorruptFileError, CheckpointAbortedError
            If a file of the state is missing or changed.
        OSError
            If this machine's disk has no room for the copy.

        Examples
        --------
        >>> query.state("count", "count").get_with_epoch("nobody").value is None
        True
        """
        value, committed = self._read(lambda state: state.get(key))
        return LiveValue(value, committed.epoch, committed.watermark_ms, committed.offsets)

    def to_arrow(self) -> pa.Table:
        """Return the whole state as an Arrow table.

        Returns
        -------
        pyarrow.Table
            The columns as in :meth:`Location.state`. The metadata of its schema has ``epoch``,
            ``watermark_ms`` and ``offsets`` as JSON.

        Raises
        ------
        UnknownEpochError
            If no epoch is committed yet.
        StateUseError
            If the query has ended.
        CorruptFileError, CheckpointAbortedError
            If a file of the state is missing or changed.

        Examples
        --------
        >>> query.state("count", "count").to_arrow().num_rows
        2
        """
        table, committed = self._read(StateOfRun.whole)
        stamp = {
            name: msgspec.json.encode(value).decode() for name, value in _stamp(committed).items()
        }
        return table.replace_schema_metadata({**(table.schema.metadata or {}), **stamp})

    def to_pandas(self) -> pd.DataFrame:
        """Return the whole state as a pandas frame.

        Returns
        -------
        pandas.DataFrame
            The columns as in :meth:`Location.state`. Its ``attrs`` are ``epoch``, ``watermark_ms``
            and ``offsets``.

        Raises
        ------
        UnknownEpochError
            If no epoch is committed yet.
        StateUseError
            If the query has ended.
        CorruptFileError, CheckpointAbortedError
            If a file of the state is missing or changed.

        Examples
        --------
        >>> frame = query.state("count", "count").to_pandas()
        >>> frame.sort_values("user").values.tolist()
        [['ada', 2], ['bob', 1]]
        >>> frame.attrs["epoch"]
        0
        """
        table, committed = self._read(StateOfRun.whole)
        frame = pandas_frame(table)
        frame.attrs.update(_stamp(committed))
        return frame

    def _read(self, read: Callable[[StateOfRun], R]) -> R:
        """Return what `read` returns for a run that has not ended since, or for the last run."""
        states = self._states_after(None)
        while True:
            try:
                found = read(states.state(self._operator, self._name))
            except Exception:
                following = self._following(states)
                if following is states:
                    states.check_session()  # without one, errors of Spark have no reason
                    raise
            else:
                # A restart in place swaps files, and the read may have seen some of the others.
                following = self._following(states)
                if following is states:
                    return found
            states = following

    def _following(self, states: LiveStates) -> LiveStates:
        return self._states_after(states) if states.is_closed else states


def _stamp(committed: CommittedEpoch) -> dict[str, Any]:
    return {
        "epoch": committed.epoch,
        "watermark_ms": committed.watermark_ms,
        "offsets": committed.offsets,
    }


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
        why = session_of(self._spark).why_ended()
        if why is not None:
            raise StateUseError(
                f"query {self._files.query_id} has ended, because {why}: open its "
                "checkpointLocation with location(path).state()"
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
        backend = self._files.backend_type
        metadata = self.descriptor.stored(self._operator_id, backend, tuple(handles))
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
                f"{self.what}: the query has ended; open its checkpointLocation with "
                "location(path).state()"
            )


class _EpochReader(SnapshotReader):
    """Reads the entries of handles of a committed epoch."""

    def __init__(self, files: QueryFiles, committed: CommittedEpoch) -> None:
        self._files = files
        self._committed = committed

    def entries(
        self, handle: Handle, stored: StoredRange, on_step: Callable[[], None] = lambda: None
    ) -> Iterator[ArrowEntries]:
        yield from StoredState(self._files.storage, handle).scan(stored, on_step)

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
        """The columns of the state's table, as :meth:`Location.state` has them."""
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
