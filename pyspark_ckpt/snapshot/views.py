"""The tables of a snapshot as users read them: streams, frames, and the state of one key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from pyspark_ckpt.errors import CorruptFileError, StateUseError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.rows.keys import KeyPlaces, subtask_of
from pyspark_ckpt.operator.state.kinds import Entries, Movement, kind_of
from pyspark_ckpt.operator.table.catalog import evolved
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.snapshot.columns import pandas_frame, python_rows, same_rows
from pyspark_ckpt.snapshot.reader import SnapshotReader, StoredOperator
from pyspark_ckpt.snapshot.tables import Table, state_table
from pyspark_ckpt.stored.state import StoredRange

if TYPE_CHECKING:
    import polars


class TableView:
    """A typed table of a snapshot, read when it is asked for.

    Parameters
    ----------
    reader : SnapshotReader
        Reads the snapshot.
    operator : StoredOperator
        The operator.
    schema : pyarrow.Schema
        The columns.
    table_of : callable
        Returns the table over one subtask's entries.

    Examples
    --------
    >>> timers = ckpt.location(savepoint.path).state().timers("count")
    >>> timers.schema.names
    ['user', 'fires_at']
    """

    def __init__(
        self,
        reader: SnapshotReader,
        operator: StoredOperator,
        schema: pa.Schema,
        table_of: Callable[[Handle], Table | None],
    ) -> None:
        self.schema = schema
        self._reader = reader
        self._operator = operator
        self._table_of = table_of

    @property
    def subtasks(self) -> Sequence[int]:
        """The subtasks that have rows of the table; none if it is not read by subtasks."""
        return [handle.subtask for handle in self._operator.handles if self._table_of(handle)]

    def to_arrow(
        self, *, include_expired: bool = False, subtask: int | None = None
    ) -> pa.RecordBatchReader:
        """Return the table as a stream of Arrow batches.

        Parameters
        ----------
        include_expired : bool
            Whether entries are included whose time to live was over when the snapshot was taken.
        subtask : int, optional
            One of `subtasks`, to read its rows only. By default, all are read.

        Returns
        -------
        pyarrow.RecordBatchReader
            Reads as it is consumed, in bounded memory. DuckDB and Polars take it as it is.

        Raises
        ------
        CorruptFileError
            While it is read: if a file is missing or changed.

        Examples
        --------
        >>> view = ckpt.location(savepoint.path).state().state("count", "count")
        >>> view.to_arrow().read_all().num_rows
        2
        """
        batches = self.batches(include_expired=include_expired, subtask=subtask)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def batches(
        self,
        *,
        include_expired: bool = False,
        subtask: int | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> Iterator[pa.RecordBatch]:
        """Return the table's batches one by one, with a call between the steps of reading.

        A batch may need many steps, because the entries of a state lie among those of others.

        Parameters
        ----------
        include_expired : bool
            As for :meth:`to_arrow`.
        subtask : int, optional
            As for :meth:`to_arrow`.
        on_step : callable
            Is called after each part of a file that was read, also if it has no row of the table.
            What it raises ends the reading, as at a limit of time.

        Returns
        -------
        iterator of pyarrow.RecordBatch
            Reads as it is consumed, in bounded memory.

        Raises
        ------
        CorruptFileError
            While it is read: if a file is missing or changed.

        Examples
        --------
        >>> view = ckpt.location(savepoint.path).state().state("count", "count")
        >>> sum(batch.num_rows for batch in view.batches())
        2
        """
        return self._batches(include_expired=include_expired, subtask=subtask, on_step=on_step)

    def to_pandas(self, *, include_expired: bool = False) -> pd.DataFrame:
        """Return the table as a pandas frame.

        Parameters
        ----------
        include_expired : bool
            As for :meth:`to_arrow`.

        Returns
        -------
        pandas.DataFrame
            All of it, in memory. A column of integers with nulls has Python's and ``None``.

        Raises
        ------
        CorruptFileError
            If a file is missing or changed.

        Examples
        --------
        >>> view = ckpt.location(savepoint.path).state().state("count", "count")
        >>> view.to_pandas().sort_values("user").values.tolist()
        [['ada', 2], ['bob', 1]]
        """
        return pandas_frame(self.to_arrow(include_expired=include_expired).read_all())

    def to_polars(self, *, include_expired: bool = False) -> polars.DataFrame:
        """Return the table as a Polars frame; needs the extra ``polars``.

        Parameters
        ----------
        include_expired : bool
            As for :meth:`to_arrow`.

        Returns
        -------
        polars.DataFrame
            All of it, in memory.

        Raises
        ------
        ImportError
            If Polars is not installed.
        CorruptFileError
            If a file is missing or changed.

        Examples
        --------
        >>> view = ckpt.location(savepoint.path).state().state("count", "count")
        >>> view.to_polars().height
        2
        """
        import polars  # not every user has it

        frame = polars.from_arrow(self.to_arrow(include_expired=include_expired).read_all())
        assert isinstance(frame, polars.DataFrame)  # a table has several columns
        return frame

    def _batches(
        self, *, include_expired: bool, subtask: int | None, on_step: Callable[[], None]
    ) -> Iterator[pa.RecordBatch]:
        for handle in self._operator.handles:
            if subtask is not None and handle.subtask != subtask:
                continue
            table = self._table_of(handle)
            if table is not None:
                parts = self._reader.entries(handle, table.stored, on_step)
                yield from table.batches(parts, self._now_ms(include_expired=include_expired))

    def _now_ms(self, *, include_expired: bool) -> int | None:  # noqa: ARG002  # timers stay
        return None


class StateView(TableView):
    """One state of a snapshot as a typed table; ``snapshot.state(...)`` returns it.

    The columns are the key columns, the columns of map keys, ``position`` in a list, the columns of
    values, and ``expires_at`` if the state has or had a time to live. The state of an operator,
    not of a key, has ``subtask`` instead of key columns, and broadcast state has neither.

    Parameters
    ----------
    reader : SnapshotReader
        Reads the snapshot.
    operator : StoredOperator
        The operator.
    name : str
        The name of the state.

    Examples
    --------
    >>> view = ckpt.location(savepoint.path).state().state("count", "count")
    >>> view.kind, view.schema.names
    ('value', ['user', 'n'])
    """

    def __init__(self, reader: SnapshotReader, operator: StoredOperator, name: str) -> None:
        names = [state.name for state in operator.states.states]
        if name not in names:
            raise StateUseError(
                f"{operator.what} has no state {name!r}: it has {', '.join(map(repr, names))}"
            )
        self._state = operator.states.states[names.index(name)]
        self._what = f"{operator.what}, state {name!r}"
        self._ids = operator.ids_of(name)
        self._is_keyed = kind_of(self._state).movement is Movement.WITH_KEY
        empty = state_table(operator.key_schema, self._state, 0, 0, self._what)
        super().__init__(reader, operator, empty.schema, self._table)
        names_of_table: list[str] = empty.schema.names
        key_columns = len(operator.key_schema.fields) if self._is_keyed else 0
        self._columns = names_of_table[key_columns:]

    @property
    def name(self) -> str:
        """The name of the state."""
        return self._state.name

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns; none if the state belongs to no key."""
        return [self.schema.field(place) for place in range(len(self.schema) - len(self._columns))]

    @property
    def now_ms(self) -> int | None:
        """The snapshot's time in which entries age: of its epoch, or its watermark.

        Milliseconds since 1970, as `expires_at`; ``None`` if the state has no time to live.
        """
        return None if self._state.ttl is None else self._reader.now_ms(self._state.ttl.time)

    @property
    def kind(self) -> str:
        """The kind of the state, as in ``Snapshot.states``."""
        return self._state.kind

    def get(self, *key: Any, include_expired: bool = False) -> Any:
        """Return what the state holds for one key.

        Parameters
        ----------
        *key : object
            A value per key column, as a processor gets them.
        include_expired : bool
            As for :meth:`to_arrow`.

        Returns
        -------
        dict, list of dict, or None
            The values by their columns: one dict of a value, reducing or aggregating state, a list
            of dicts of a list or map state in its order. ``None`` if the key has no state.

        Raises
        ------
        StateUseError
            If the state is not keyed.
        StateValueError
            If `key` does not fit the key columns.
        CorruptFileError
            If a file is missing or changed.

        Examples
        --------
        >>> view = ckpt.location(savepoint.path).state().state("count", "count")
        >>> view.get("ada")
        {'n': 2}
        >>> print(view.get("nobody"))
        None
        """
        found = self.rows_of(*key, include_expired=include_expired)
        rows = python_rows(found.select(self._columns))
        if kind_of(self._state).entries is not Entries.ONE:
            return rows or None
        return rows[0] if rows else None

    @property
    def subtasks(self) -> Sequence[int]:
        """The subtasks that have the state; none if they have copies of one broadcast state."""
        is_copied = kind_of(self._state).movement is Movement.COPIED
        return [] if is_copied else sorted(self._ids)

    def rows_of(self, *key: Any, include_expired: bool = False) -> pa.Table:
        """Return the rows of one key.

        Parameters
        ----------
        *key : object
            As for :meth:`get`.
        include_expired : bool
            As for :meth:`to_arrow`.

        Returns
        -------
        pyarrow.Table
            With all columns of the table; no row if the key has no state.

        Raises
        ------
        StateUseError
            If the state is not keyed.
        StateValueError
            If `key` does not fit the key columns.
        CorruptFileError
            If a file is missing or changed.

        Examples
        --------
        >>> view = ckpt.location(savepoint.path).state().state("count", "count")
        >>> view.rows_of("ada").to_pylist()
        [{'user': 'ada', 'n': 2}]
        """
        if not self._is_keyed:
            raise StateUseError(f"{self._what} belongs to no key: read it with to_arrow")
        metadata = self._operator.metadata
        places = KeyPlaces(self._operator.key_schema, metadata.max_parallelism)
        key_group, encoded = places.place(key)
        subtask = subtask_of(key_group, metadata.parallelism, metadata.max_parallelism)
        state_id = self._ids.get(subtask)
        if state_id is None:
            return self.schema.empty_table()
        (handle,) = [each for each in self._operator.handles if each.subtask == subtask]
        start = encode_key_group(key_group) + bytes([state_id]) + encoded
        # No other key begins with a whole key, because MessagePack says where a value ends.
        parts = self._reader.entries(handle, StoredRange.below(start))
        table = self._table(handle)
        assert table is not None  # the subtask has the state
        batches = table.batches(parts, self._now_ms(include_expired=include_expired))
        return pa.Table.from_batches(batches, self.schema)

    def _table(self, handle: Handle) -> Table | None:
        state_id = self._ids.get(handle.subtask)
        if state_id is None:
            return None
        state = evolved(handle.states[state_id], self._state, self._what)
        return state_table(self._operator.key_schema, state, state_id, handle.subtask, self._what)

    def _batches(
        self, *, include_expired: bool, subtask: int | None, on_step: Callable[[], None]
    ) -> Iterator[pa.RecordBatch]:
        if kind_of(self._state).movement is not Movement.COPIED:
            yield from super()._batches(
                include_expired=include_expired, subtask=subtask, on_step=on_step
            )
            return
        copies = {
            handle.subtask: pa.Table.from_batches(
                table.batches(
                    self._reader.entries(handle, table.stored, on_step),
                    self._now_ms(include_expired=include_expired),
                ),
                self.schema,
            )
            for handle in self._operator.handles
            if (table := self._table(handle)) is not None
        }
        yield from self._one_of(copies).to_batches()

    def _one_of(self, copies: Mapping[int, pa.Table]) -> pa.Table:
        """Return the newest copy of a state that is the same in all subtasks that are as new."""
        newest = max(handle.epoch for handle in self._operator.handles)
        current = [
            copies[handle.subtask]
            for handle in self._operator.handles
            if handle.epoch == newest and handle.subtask in copies
        ] or list(copies.values())
        if not all(same_rows(copy, current[0]) for copy in current):
            raise CorruptFileError(
                f"{self._what} is not the same in all subtasks: the processor must write the same "
                "broadcast state in each of them"
            )
        return current[0]

    def _now_ms(self, *, include_expired: bool) -> int | None:
        return None if include_expired else self.now_ms
