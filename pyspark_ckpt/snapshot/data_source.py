"""The tables of a snapshot as Spark frames: a data source with a partition per subtask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_ckpt.errors import ConfigurationError, StateError
from pyspark_ckpt.operator.values.arrow_values import in_type
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.columns import TIME, in_microseconds
from pyspark_ckpt.snapshot.parts import Part, PartPin, parts_of
from pyspark_ckpt.snapshot.snapshot import Snapshot, open_state
from pyspark_ckpt.snapshot.views import StateView, TableView

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EQUAL_AS_STORED = (
    T.StringType, T.BinaryType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType,
    T.DateType,
)  # fmt: skip
"""Types of key columns whose equal values have one stored form, and one form in filters."""

_TABLES = ("state", "timers", "raw")


class StateDataSource(DataSource):
    """The table of a state as a Spark frame: ``spark.read.format("pyspark_ckpt.state")``.

    Register it once per session with ``spark.dataSource.register``. Its options are ``path`` as for
    :func:`open_state`, ``operator``, ``state``, ``includeExpired``, ``pushFilters``, and ``table``,
    which is ``state``, or ``timers`` or ``raw`` without a state. Subtasks are read in parallel.

    Parameters
    ----------
    options : dict of str to str
        The options of the read.

    Raises
    ------
    ConfigurationError
        If an option is missing or unknown.
    StateUseError
        If there is no such operator or state.
    CheckpointNotFoundError, CorruptFileError
        If the path holds no checkpoint or savepoint, or it is damaged.

    Examples
    --------
    >>> spark.dataSource.register(ckpt.StateDataSource)
    >>> reader = spark.read.format("pyspark_ckpt.state")
    >>> state = reader.options(operator="count", state="count").load(savepoint.path)
    >>> sorted(tuple(row) for row in state.collect())
    [('ada', 2), ('bob', 1)]
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format.

        Returns
        -------
        str
            ``pyspark_ckpt.state``.

        Examples
        --------
        >>> ckpt.StateDataSource.name()
        'pyspark_ckpt.state'
        """
        return "pyspark_ckpt.state"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._table = _TableOptions.of(options)

    def schema(self) -> T.StructType:
        """Return the schema of the table.

        Returns
        -------
        pyspark.sql.types.StructType
            That of the Arrow table.

        Examples
        --------
        >>> options = {"path": savepoint.path, "operator": "count", "state": "count"}
        >>> source = ckpt.StateDataSource(options)
        >>> source.schema().simpleString()
        'struct<user:string,n:bigint>'
        """
        with self._table.opened() as view:
            return _spark_schema(view)

    def reader(self, schema: T.StructType) -> DataSourceReader:  # noqa: ARG002  # it is its own
        """Return a reader of the table.

        Parameters
        ----------
        schema : pyspark.sql.types.StructType
            That of :meth:`schema`.

        Returns
        -------
        pyspark.sql.datasource.DataSourceReader
            With a partition per subtask.

        Examples
        --------
        >>> options = {"path": savepoint.path, "operator": "count", "state": "count"}
        >>> source = ckpt.StateDataSource(options)
        >>> reader = source.reader(source.schema())
        >>> sum(len(batch) for part in reader.partitions() for batch in reader.read(part))
        2
        """
        return _KeyReader(self._table) if self._table.push_filters else _Reader(self._table)


@dataclass(frozen=True)
class _TableOptions:
    """Which table is read; `path` is that of the snapshot itself, so that all tasks read one."""

    path: str
    table: str
    operator: str
    state: str | None
    include_expired: bool
    push_filters: bool

    @classmethod
    def of(cls, options: dict[str, str]) -> _TableOptions:
        known = {name.lower(): value for name, value in options.items()}
        table = known.get("table", "state")
        if table not in _TABLES:
            raise ConfigurationError(
                f"option table of pyspark_ckpt.state is {table!r}: use one of {', '.join(_TABLES)}"
            )
        needed = ("path", "operator", "state") if table == "state" else ("path", "operator")
        missing = [name for name in needed if not known.get(name)]
        if missing:
            raise ConfigurationError(
                f"pyspark_ckpt.state needs the options {', '.join(missing)}: set them with option()"
            )
        with open_state(known["path"]) as snapshot:
            path = snapshot.path
        return cls(
            path,
            table,
            known["operator"],
            known.get("state"),
            _is_set(known, "includeExpired"),
            _is_set(known, "pushFilters"),
        )

    @contextmanager
    def opened(self) -> Iterator[TableView]:
        with open_state(self.path) as snapshot:
            yield self.view(snapshot)

    @contextmanager
    def opened_part(self, part: Part) -> Iterator[TableView]:
        """Open the snapshot for a task, also if it was subsumed after the job was planned."""
        source = RestoreSource.of_metadata(self.path, part.metadata)
        pin = PartPin(source, part)
        if not pin.hold():  # such as when a frame is computed again
            with self.opened() as view:
                yield view
            return
        with Snapshot(source, pin) as snapshot:
            try:
                yield self.view(snapshot)
            except GeneratorExit:  # nobody wants more rows
                raise
            except BaseException:
                pin.leave()  # the task may run again
                raise

    def view(self, snapshot: Snapshot) -> TableView:
        """Return the table of an open snapshot."""
        if self.table == "timers":
            return snapshot.timers(self.operator)
        if self.table == "raw":
            return snapshot.raw(self.operator)
        assert self.state is not None  # checked in of()
        return snapshot.state(self.operator, self.state)


class _Reader(DataSourceReader):
    def __init__(self, table: _TableOptions) -> None:
        self._table = table
        self._key: tuple[Any, ...] | None = None

    def partitions(self) -> Sequence[InputPartition]:
        source = RestoreSource(self._table.path)
        with Snapshot(source) as snapshot:
            view = self._table.view(snapshot)
            subtasks: list[int | None] = [] if self._key is not None else [*view.subtasks]
            parts = parts_of(source, self._table.operator, subtasks or [None])
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with self._table.opened_part(partition.value) as view:
            schema = _sent_schema(view.schema)
            for batch in self._batches(view, partition.value.subtask):
                columns = pa.Table.from_batches([batch]).columns
                sent = list(map(_sent, columns, schema.types))
                yield from pa.Table.from_arrays(sent, schema=schema).to_batches()

    def _batches(self, view: TableView, subtask: int | None) -> Iterable[pa.RecordBatch]:
        include_expired = self._table.include_expired
        if self._key is not None:
            assert isinstance(view, StateView)
            rows = view.rows_of(*self._key, include_expired=include_expired)
            batches: list[pa.RecordBatch] = rows.to_batches()
            return batches
        stream: Iterable[pa.RecordBatch]
        stream = view.to_arrow(include_expired=include_expired, subtask=subtask)
        return stream


class _KeyReader(_Reader):
    """Reads one key if filters name one; Spark refuses this method unless it pushes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read one key only, if filters set all key columns; Spark still applies the filters."""
        from pyspark.sql.datasource import EqualTo  # PySpark 4.0 has none, and never calls this

        equal = {each.attribute: each.value for each in filters if isinstance(each, EqualTo)}
        with self._table.opened() as view:
            if isinstance(view, StateView):
                self._key = _key_of(view, equal)
        return filters


def _is_set(options: dict[str, str], name: str) -> bool:
    value = options.get(name.lower(), "false").lower()
    if value not in ("true", "false"):
        raise ConfigurationError(
            f"option {name} of pyspark_ckpt.state is {value!r}: use true or false"
        )
    return value == "true"


def _key_of(view: StateView, equal: dict[tuple[str, ...], Any]) -> tuple[Any, ...] | None:
    """Return the only key that filters let through, ``None`` if they do not name one."""
    fields = from_arrow_schema(pa.schema(view.key_fields), prefer_timestamp_ntz=True).fields
    if not fields or any((field.name,) not in equal for field in fields):
        return None
    if not all(isinstance(field.dataType, _EQUAL_AS_STORED) for field in fields):
        return None
    key = tuple(equal[field.name,] for field in fields)
    try:
        view.rows_of(*key)
    except StateError:  # such as a key with a collation, which only Spark can hash
        return None
    return key


def _spark_schema(view: TableView) -> T.StructType:
    return from_arrow_schema(view.schema, prefer_timestamp_ntz=True)


def _sent(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return in_microseconds(column, kind) if column.type == TIME else in_type(column, kind)


def _sent_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with timestamps as Spark takes them."""
    fields = [
        field.with_type(pa.timestamp("us", tz=field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in schema
    ]
    return pa.schema(fields)
