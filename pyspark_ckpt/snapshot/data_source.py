"""The tables of a snapshot as Spark frames: a data source with a partition per subtask.

Who plans the read writes a pin for each part. The process that reads a part renews the pins of all
parts that are left, and removes the pin of its own part at the end. So the snapshot is kept from
planning until the last part was read. If all these processes die, the pins are over after their
time.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, ConfigurationError, StateError
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.columns import TIME, in_microseconds
from pyspark_ckpt.snapshot.pin import LEASE_MS
from pyspark_ckpt.snapshot.snapshot import Snapshot, open_state
from pyspark_ckpt.snapshot.views import StateView, TableView
from pyspark_ckpt.stores.reader_pins import PinFile, encode_pin, pin_files, pin_name
from pyspark_ckpt.values.arrow import in_type
from pyspark_ckpt.values.types import find_leaf

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_TABLES = ("state", "timers", "raw")

_READ_DIGITS = 8
"""The first digits of a pin's token are those of the read, the others those of the part."""

_SPREAD_MS = 60_000
"""Up to so much longer than its lease a renewed pin counts."""

_RENEWALS = 3

_NEW_MS = LEASE_MS // _RENEWALS // 2
"""A pin that was written so short a time ago needs no renewal."""

_AT_ONCE = 8
"""Pins that are written at the same time."""

logger = library_logger(__name__)


class StateDataSource(DataSource):
    """The table of a state as a Spark frame: ``spark.read.format("pyspark_ckpt.state")``.

    Register it once per session with ``spark.dataSource.register``. Its options are ``path`` as for
    :meth:`Location.state`, ``operator``, ``state``, ``includeExpired``, ``pushFilters``, and
    ``table``, which is ``state``, or ``timers`` or ``raw`` without a state. Subtasks are read in
    parallel.

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
            return from_arrow_schema(view.schema, prefer_timestamp_ntz=True)

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
                sent = list(map(_as_sent, columns, schema.types))
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
    rows = [find_leaf(field.dataType) for field in fields]
    if not all(row is not None and row.is_filtered for row in rows):
        return None
    key = tuple(equal[field.name,] for field in fields)
    try:
        view.rows_of(*key)
    except StateError:  # such as a value that does not fit the key column
        return None
    return key


def _as_sent(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
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


@dataclass(frozen=True, slots=True)
class Part:
    """What one process reads of a snapshot; it travels to that process."""

    subtask: int | None
    metadata: bytes
    token: str


def parts_of(source: RestoreSource, uid: str, subtasks: Sequence[int | None]) -> list[Part]:
    """Return the parts of a read, and pin each of them. The caller has a pin until this returns."""
    read = secrets.token_hex(_READ_DIGITS // 2)
    parts = [
        Part(subtask, _metadata_of(source, uid, subtask), f"{read}{number:0{_READ_DIGITS}x}")
        for number, subtask in enumerate(subtasks)
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda part: _pin(source, part), parts))
    return parts


def _pin(source: RestoreSource, part: Part) -> None:
    of_part = RestoreSource.of_metadata(source.path, part.metadata).metadata
    files = sorted({file.path for file in of_part.files()})
    by = f"{socket.gethostname()}, process {os.getpid()}, a job that it planned"
    try:
        name = pin_name(now_ms() + LEASE_MS, part.token)
        source.storage.write(name, [encode_pin(by, files)])
    except (OSError, CkptError) as exc:
        logger.warning(
            "%s: the pin of a job could not be written, so what it reads may be deleted "
            "in the meantime: %s",
            source.storage.url,
            exc,
        )


def _metadata_of(source: RestoreSource, uid: str, subtask: int | None) -> bytes:
    """Return the metadata with the files of one subtask only."""
    metadata = source.metadata
    operators = tuple(
        msgspec.structs.replace(
            operator,
            handles=tuple(
                handle
                if subtask in (None, handle.subtask)
                else msgspec.structs.replace(handle, base=None, segments=())
                for handle in operator.handles
            ),
        )
        for operator in metadata.operators
        if operator.uid == uid
    )
    part = msgspec.structs.replace(
        metadata, operators=operators, source_logs=(), spark_operators=()
    )
    return encode_metadata(part)


class PartPin:
    """The pin of a part, for the process that reads the part."""

    def __init__(self, source: RestoreSource, part: Part) -> None:
        self._path = source.path
        self._storage = source.storage
        self._token = part.token
        self._over = threading.Event()

    def hold(self) -> bool:
        """Renew the pins of the read from now on; return whether this part is still kept."""
        now = now_ms()
        if not any(each.token == self._token and now < each.expires_ms for each in self._pins()):
            return False
        self._renew_all()
        threading.Thread(target=self._keep, name="pyspark_ckpt pin", daemon=True).start()
        return True

    def check(self) -> None:
        """Check that the pin still counts.

        ``CheckpointNotFoundError`` is raised if the pin is over, because nothing was read for long.
        """
        if not any(each.token == self._token and each.counts(now_ms()) for each in self._pins()):
            raise CheckpointNotFoundError(
                f"{self._path} was not read for so long that its files may be gone: read it again"
            )

    def leave(self) -> None:
        """Leave the pin to the next attempt to read the part; it will be over by itself."""
        self._over.set()

    def close(self) -> None:
        """Remove the pin, unless it is left."""
        if not self._over.is_set():
            self._over.set()
            # The task of another part may renew the pin at the same time; see `_renew`.
            try:
                while pins := [each for each in self._pins() if each.token == self._token]:
                    if not self._delete(pins):
                        return
            except (OSError, CkptError) as exc:  # it will be over by itself
                self._warn("the pin of a job stays until it is over", exc)

    def _warn(self, what: str, error: Exception) -> None:
        logger.warning("%s: %s: %s", self._storage.url, what, error)

    def _pins(self) -> list[PinFile]:
        """Return the pins of all parts of the read."""
        read = self._token[:_READ_DIGITS]
        return [
            each for each in pin_files(self._storage) if each.is_pin and each.token.startswith(read)
        ]

    def _keep(self) -> None:
        while not self._over.wait(LEASE_MS / 1000 / _RENEWALS):
            self._try_to_renew_all()

    def _try_to_renew_all(self) -> None:
        try:
            self._renew_all()
        except (OSError, CkptError) as exc:  # the next time may be better
            self._warn("the pins of a job could not be looked for", exc)

    def _renew_all(self) -> None:
        # No two processes give a pin the same name: one of them may delete its own again. Nobody
        # renews a new pin: its process may be about to delete it again, and the copy would stay.
        now = now_ms()
        expires_ms = now + LEASE_MS + secrets.randbelow(_SPREAD_MS)
        for each in self._pins():
            if each.expires_ms < now + LEASE_MS - _NEW_MS:
                self._renew(each, expires_ms)

    def _renew(self, pin: PinFile, expires_ms: int) -> None:
        try:
            content = self._storage.read(pin.name)
            renewed = pin_name(expires_ms, pin.token)
            self._storage.write(renewed, [content])
            if self._storage.exists(pin.name):
                self._delete([pin])
            else:  # its part was read just now, and its task may not have seen the new pin
                self._storage.delete([renewed])
        except FileNotFoundError:
            pass  # its part was read, or another process renewed it
        except (OSError, CkptError) as exc:
            logger.warning("%s: a pin could not be renewed: %s", self._storage.url, exc)

    def _delete(self, pins: Sequence[PinFile]) -> bool:
        """Delete pins; return whether that was possible."""
        try:
            self._storage.delete([each.name for each in pins])
        except (OSError, CkptError) as exc:  # it will be over by itself
            logger.warning("%s: a pin could not be deleted: %s", self._storage.url, exc)
            return False
        return True
