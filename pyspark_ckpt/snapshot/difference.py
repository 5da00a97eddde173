"""The difference of two snapshots: counts first, then rows with old and new values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, StateUseError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.html_form import html_table
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.changed_entries import Change, Place, Side, changed_entries
from pyspark_ckpt.snapshot.changed_rows import (
    ADDED,
    CHANGED,
    REMOVED,
    ChangedRows,
    as_rows,
    changed_raw_state,
    changed_rows,
    changed_timers,
)
from pyspark_ckpt.snapshot.columns import pandas_frame, python_rows
from pyspark_ckpt.snapshot.reader import SnapshotReader, StoredOperator
from pyspark_ckpt.snapshot.snapshot import open_state

_COLUMNS = ("operator", "state", "kind", ADDED, REMOVED, CHANGED)
_SAMPLES = 5
_TIMERS, _RAW = "timers", "raw"


def diff_state(old: str, new: str) -> StateDifference:
    """Compare the states of two savepoints or checkpoints.

    They may be of one query, or of a query and its fork, at any parallelism. State that both
    share is not read: of two checkpoints of one query mostly the changes between them are read.

    Parameters
    ----------
    old, new : str
        As :func:`open_state` takes them.

    Returns
    -------
    StateDifference
        How many entries of each state were added, removed and changed, and which.

    Raises
    ------
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If a path holds no checkpoint or savepoint, or it is damaged.
    ConfigurationError, NotBuiltYetError
        If there is no storage for the scheme of a path, or its library is not installed.
    IncompatibleStateError
        If the key columns of an operator, or the forms of a state, have nothing in common.
    OSError
        If a storage cannot be reached.

    Examples
    --------
    >>> difference = ckpt.diff_state(savepoint.path, savepoint.path)
    >>> difference.is_equal
    True
    """
    with open_state(old) as first, open_state(new) as second:
        before, after = RestoreSource(first.path), RestoreSource(second.path)
        with before.reading(), after.reading():
            return StateDifference(before.path, after.path, _tables(before, after))


def _tables(old: RestoreSource, new: RestoreSource) -> dict[tuple[str, str], _Compared]:
    found: dict[tuple[str, str], _Compared] = {}
    with closing(SnapshotReader(old)) as before, closing(SnapshotReader(new)) as after:
        for uid, sides in sides_of_operators(before, after):
            found |= {(uid, name): each for name, each in _of_operator(uid, *sides).items()}
    return found


def sides_of_operators(
    old: SnapshotReader, new: SnapshotReader
) -> Iterator[tuple[str, tuple[Side, Side]]]:
    """Yield the uid of each operator of two snapshots, and the operator in both."""
    uids = [[each.uid for each in reader.source.metadata.operators] for reader in (old, new)]
    for uid in dict.fromkeys(uids[0] + uids[1]):
        first, second = (
            Side(reader.source.storage, reader.operator(uid) if uid in known else None)
            for reader, known in zip((old, new), uids, strict=True)
        )
        yield uid, (first, second)


class _Compared:
    """A state of both snapshots, and the table of its changes."""

    def __init__(self, kind: str, table: pa.Table) -> None:
        self.kind = kind
        self.table = table

    def count(self, change: str) -> int:
        """Return the number of rows with a kind of change."""
        return int(pc.sum(pc.equal(self.table["change"], change)).as_py() or 0)


def _of_operator(uid: str, old: Side, new: Side) -> dict[str, _Compared]:
    before, after = states_of(old.operator), states_of(new.operator)
    key_schema = key_schema_of(uid, old.operator, new.operator)
    changes = changed_entries(old, new)
    found = {}
    for name in dict.fromkeys([*before, *after]):
        states = before.get(name), after.get(name)
        rows = changed_rows_of_state(changes, uid, states, (old, new), key_schema)
        found[name] = _Compared((after.get(name) or before[name]).kind, rows.table())
    return found | {
        name: _Compared(kind, rows.table())
        for name, (kind, rows) in changed_rows_beside_states(
            changes, key_schema, old, new, set(found)
        ).items()
    }


def changed_rows_of_state(
    changes: Mapping[Place, Change],
    uid: str,
    states: tuple[StateDescriptor | None, StateDescriptor | None],
    sides: tuple[Side, Side],
    key_schema: T.StructType,
) -> ChangedRows:
    """Return the rows of one state that differ."""
    state = states[1] or states[0]
    assert state is not None  # one of the snapshots has it
    of_state = {place: change for place, change in changes.items() if place.state == state.name}
    rows = as_rows(of_state, state, *sides)
    return changed_rows(rows, key_schema, states, f"operator {uid!r}, state {state.name!r}")


def changed_rows_beside_states(
    changes: Mapping[Place, Change],
    key_schema: T.StructType,
    old: Side,
    new: Side,
    names: set[str],
) -> dict[str, tuple[str, ChangedRows]]:
    """Return the kinds and rows of timers and raw state that differ, by names of no state."""
    operator = new.operator or old.operator
    assert operator is not None  # one of the snapshots has it
    time_mode = str(operator.metadata.time_mode)
    found = {
        _TIMERS: changed_timers(changes, key_schema, time_mode, operator.what),
        _RAW: changed_raw_state(changes, old, new, operator.what),
    }
    return {
        f"_{name}" if name in names else name: (name, rows) for name, rows in found.items() if rows
    }


def states_of(operator: StoredOperator | None) -> dict[str, StateDescriptor]:
    """Return the states of an operator by name."""
    return {} if operator is None else {state.name: state for state in operator.states.states}


def key_schema_of(uid: str, old: StoredOperator | None, new: StoredOperator | None) -> T.StructType:
    """Return the schema of an operator's key columns."""
    schemas = [each.key_schema for each in (old, new) if each is not None]
    types = [[field.dataType for field in schema.fields] for schema in schemas]
    if types[0] != types[-1]:
        raise IncompatibleStateError(
            f"operator {uid!r}: its key columns are {schemas[0].simpleString()} and "
            f"{schemas[-1].simpleString()}: only states with keys of the same types are compared"
        )
    return schemas[-1]


class StateDifference:
    """What differs between two snapshots; :func:`diff_state` returns it.

    An entry counts as it is stored: also if its time to live is over, until it is cleaned up. An
    entry that was written again with the same value and time is equal. Each item of a list is a row
    with its position. Timers and raw state that differ are like states that are called ``timers``
    and ``raw``, or ``_timers`` and ``_raw`` if the operator has states of these names.

    Parameters
    ----------
    old : str
        The path of the first snapshot.
    new : str
        The path of the second snapshot.
    compared : dict
        The changes of each state, by the operator's uid and the name of the state.

    Examples
    --------
    >>> difference = ckpt.diff_state(savepoint.path, savepoint.path)
    >>> difference.counts[["state", "added", "removed", "changed"]].values.tolist()
    [['count', 0, 0, 0]]
    """

    def __init__(self, old: str, new: str, compared: dict[tuple[str, str], _Compared]) -> None:
        self.old = old
        self.new = new
        self._compared = compared

    @property
    def is_equal(self) -> bool:
        """Whether no entry differs."""
        return all(each.table.num_rows == 0 for each in self._compared.values())

    @property
    def counts(self) -> pd.DataFrame:
        """A row per operator and state: its kind, and how many rows were changed in which way."""
        rows: list[dict[str, Any]] = [
            {
                "operator": uid,
                "state": name,
                "kind": each.kind,
                **{change: each.count(change) for change in (ADDED, REMOVED, CHANGED)},
            }
            for (uid, name), each in self._compared.items()
        ]
        return pd.DataFrame(rows, columns=list(_COLUMNS))

    def _repr_html_(self) -> str:
        title = "No entry differs" if self.is_equal else "Entries that differ"
        rows = self.counts.itertuples(index=False)
        return html_table(f"{title}: {self.old} → {self.new}", _COLUMNS, rows)

    def to_arrow(self, operator: str, state: str) -> pa.Table:
        """Return the changes of one state as an Arrow table.

        Parameters
        ----------
        operator : str
            The operator's uid.
        state : str
            The name of the state.

        Returns
        -------
        pyarrow.Table
            A row per change: ``change`` (``added``, ``removed`` or ``changed``), the columns of
            keys, and each column of values twice, with ``old_`` and ``new_``. A timer has none.

        Raises
        ------
        StateUseError
            If neither snapshot has the state.

        Examples
        --------
        >>> difference = ckpt.diff_state(savepoint.path, savepoint.path)
        >>> difference.to_arrow("count", "count").column_names
        ['change', 'user', 'old_n', 'new_n']
        """
        if (operator, state) not in self._compared:
            known = ", ".join(f"{uid!r} {name!r}" for uid, name in self._compared)
            raise StateUseError(
                f"{self.old} and {self.new} have no state {state!r} of an operator {operator!r}: "
                f"they have {known or 'none'}"
            )
        return self._compared[operator, state].table

    def to_pandas(self, operator: str, state: str) -> pd.DataFrame:
        """Return the changes of one state as a pandas frame.

        Parameters
        ----------
        operator : str
            The operator's uid.
        state : str
            The name of the state.

        Returns
        -------
        pandas.DataFrame
            As :meth:`to_arrow`. A column of integers with nulls has Python's and ``None``.

        Raises
        ------
        StateUseError
            If neither snapshot has the state.

        Examples
        --------
        >>> ckpt.diff_state(savepoint.path, savepoint.path).to_pandas("count", "count").empty
        True
        """
        return pandas_frame(self.to_arrow(operator, state))

    def samples(self, rows: int = _SAMPLES) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Return the first changes of each state that has any.

        Parameters
        ----------
        rows : int
            Most changes of one state.

        Returns
        -------
        dict
            Rows as dicts, by the operator's uid and the name of the state.

        Examples
        --------
        >>> ckpt.diff_state(savepoint.path, savepoint.path).samples()
        {}
        """
        return {
            state: python_rows(each.table.slice(0, rows))
            for state, each in self._compared.items()
            if each.table.num_rows
        }
