"""A savepoint or checkpoint that is open for reading: what it has, and its states as tables."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pandas as pd

from pyspark_ckpt.errors import CheckpointNotFoundError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.layout import METADATA_NAME, PLACES, checkpoint_id_of
from pyspark_ckpt.formats.modes import TtlTime
from pyspark_ckpt.history.places import after_rollback, find_checkpoints_directory
from pyspark_ckpt.operator.table.catalog import schema_text
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.pin import Pin
from pyspark_ckpt.snapshot.reader import SnapshotReader, StoredOperator
from pyspark_ckpt.snapshot.tables import RawTable, TimersTable
from pyspark_ckpt.snapshot.views import StateView, TableView
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stores.open import find_store

STATE_COLUMNS = (
    "operator", "state", "kind", "schema", "map_key_schema", "ttl_ms", "subtasks",
)  # fmt: skip


def open_state(path: str) -> Snapshot:
    """Open a savepoint or checkpoint to read its states as tables."""
    return Snapshot(RestoreSource(_directory_of(path)))


def _directory_of(path: str) -> str:
    """Return the directory of the checkpoint or savepoint that a path means."""
    root = open_storage(path)
    if root.exists(METADATA_NAME) or checkpoint_id_of(root.name) is not None:
        return path
    try:
        checkpoints = find_checkpoints_directory(path)
    except CheckpointNotFoundError:
        if root.exists(PLACES):  # it says where they are, and why they are not found there
            raise
        return path  # the error of opening it says what is missing
    with closing(find_store(checkpoints)) as store:
        ids = store.ids()
        if not ids:
            raise CheckpointNotFoundError(
                f"{checkpoints.url} has no completed checkpoint yet"
                + (after_rollback(path) or ": start its query, or trigger one while it runs")
            )
        return store.path(ids[-1])


class Snapshot:
    """A savepoint or checkpoint that is open for reading; :meth:`Location.state` opens it.

    Use it on any machine. Its states are read when they are asked for.

    Parameters
    ----------
    source : RestoreSource
        The checkpoint or savepoint, whose metadata was checked.
    pin : Pin, optional
        What keeps its files; by default a separate pin.

    Examples
    --------
    >>> snapshot = ckpt.location(savepoint.path).state()
    >>> snapshot.states()[["operator", "state", "kind"]].values.tolist()
    [['count', 'count', 'value']]
    >>> snapshot.close()
    """

    def __init__(self, source: RestoreSource, pin: Pin | None = None) -> None:
        self._source = source
        self._reader = SnapshotReader(source, pin)

    def __enter__(self) -> Snapshot:
        """Return the snapshot itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the snapshot."""
        self.close()

    def close(self) -> None:
        """Read no more from it.

        Examples
        --------
        >>> ckpt.location(savepoint.path).state().close()
        """
        self._reader.close()

    @property
    def path(self) -> str:
        """The directory of the checkpoint or savepoint."""
        return self._source.path

    @property
    def kind(self) -> str:
        """``checkpoint`` or ``savepoint``."""
        return str(self._source.metadata.kind)

    @property
    def query_id(self) -> str:
        """The id of the query that it is of."""
        return self._source.metadata.query_id

    @property
    def query_name(self) -> str | None:
        """The name of the query, ``None`` if it has none."""
        return self._source.metadata.query_name

    @property
    def epoch(self) -> int:
        """The epoch whose end it stores."""
        return self._source.metadata.epoch

    @property
    def watermark_ms(self) -> int:
        """The watermark of the epoch, in milliseconds since 1970; 0 before the first one."""
        return self._source.metadata.watermark_ms

    @property
    def processing_time_ms(self) -> int:
        """When the epoch began, in milliseconds since 1970."""
        return self._reader.now_ms(TtlTime.PROCESSING_TIME)

    @property
    def offsets(self) -> dict[int, str]:
        """Where each source continues, as Spark writes it, by the number of the source."""
        return self._source.offsets

    @property
    def operators(self) -> tuple[str, ...]:
        """The uids of the operators of this library."""
        return tuple(operator.uid for operator in self._source.metadata.operators)

    def states(self) -> pd.DataFrame:
        """Return the states of all operators.

        Returns
        -------
        pandas.DataFrame
            A row per state: operator, state, kind (``value``, ``list``, ``map``, ``reducing``,
            ``aggregating``, ``operator-list`` or ``broadcast``), schema and map_key_schema as DDL,
            ttl_ms, and subtasks, the number of subtasks that have it.

        Examples
        --------
        >>> ckpt.location(savepoint.path).state().states()["schema"].tolist()
        ['struct<n:bigint>']
        """
        rows = [
            self._row(operator, state)
            for operator in map(self._reader.operator, self.operators)
            for state in operator.states.states
        ]
        return pd.DataFrame(rows, columns=list(STATE_COLUMNS)).astype({"ttl_ms": "Int64"})

    def state(self, operator: str, name: str) -> StateView:
        """Return one state as a table.

        Parameters
        ----------
        operator : str
            The operator's uid.
        name : str
            The name of the state.

        Returns
        -------
        StateView
            Reads nothing before it is asked.

        Raises
        ------
        StateUseError
            If there is no such operator or state.

        Examples
        --------
        >>> ckpt.location(savepoint.path).state().state("count", "count").schema.names
        ['user', 'n']
        """
        return StateView(self._reader, self._reader.operator(operator), name)

    def timers(self, operator: str) -> TableView:
        """Return an operator's timers as a table.

        Parameters
        ----------
        operator : str
            The operator's uid.

        Returns
        -------
        TableView
            The key columns and ``fires_at``. The schema's metadata has the ``time_mode``.

        Raises
        ------
        StateUseError
            If there is no such operator.

        Examples
        --------
        >>> ckpt.location(savepoint.path).state().timers("count").to_pandas().empty
        True
        """
        found = self._reader.operator(operator)
        table = TimersTable(found.key_schema, str(found.metadata.time_mode), found.what)
        return TableView(self._reader, found, table.schema, lambda handle: table)  # noqa: ARG005

    def raw(self, operator: str) -> TableView:
        """Return an operator's raw state as a table.

        Parameters
        ----------
        operator : str
            The operator's uid.

        Returns
        -------
        TableView
            ``subtask``, ``stream`` and ``data``.

        Raises
        ------
        StateUseError
            If there is no such operator.

        Examples
        --------
        >>> ckpt.location(savepoint.path).state().raw("count").to_pandas().empty
        True
        """
        found = self._reader.operator(operator)
        return TableView(
            self._reader,
            found,
            RawTable(0, found.what).schema,
            lambda handle: RawTable(handle.subtask, found.what),
        )

    @staticmethod
    def _row(operator: StoredOperator, state: StateDescriptor) -> dict[str, Any]:
        map_keys = state.map_key_schema
        return {
            "operator": operator.metadata.uid,
            "state": state.name,
            "kind": state.kind,
            "schema": schema_text(state.value_schema),
            "map_key_schema": None if map_keys is None else schema_text(map_keys),
            "ttl_ms": None if state.ttl is None else state.ttl.duration_ms,
            "subtasks": len(operator.ids_of(state.name)),
        }
