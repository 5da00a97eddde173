"""The difference of two snapshots: counts first, then rows with old and new values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, StateUseError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.changed_entries import Change, Place, Side, changed_entries
from pyspark_ckpt.snapshot.changed_rows import ADDED, CHANGED, REMOVED, as_rows, change_table
from pyspark_ckpt.snapshot.reader import SnapshotReader, StoredOperator
from pyspark_ckpt.snapshot.snapshot import open_state

_COLUMNS = ("operator", "state", "kind", ADDED, REMOVED, CHANGED)
_SAMPLES = 5


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
    readers = SnapshotReader(old), SnapshotReader(new)
    uids = [[each.uid for each in source.metadata.operators] for source in (old, new)]
    found: dict[tuple[str, str], _Compared] = {}
    for uid in dict.fromkeys(uids[0] + uids[1]):
        sides = [
            Side(reader.source.storage, reader.operator(uid) if uid in known else None)
            for reader, known in zip(readers, uids, strict=True)
        ]
        found |= {(uid, name): each for name, each in _of_operator(uid, *sides).items()}
    return found


class _Compared:
    """A state of both snapshots, and the table of its changes."""

    def __init__(self, kind: str, table: pa.Table) -> None:
        self.kind = kind
        self.table = table

    def count(self, change: str) -> int:
        """Return the number of rows with a kind of change."""
        return int(pc.sum(pc.equal(self.table["change"], change)).as_py() or 0)


def _of_operator(uid: str, old: Side, new: Side) -> dict[str, _Compared]:
    before, after = _states_of(old.operator), _states_of(new.operator)
    key_schema = _key_schema(uid, old.operator, new.operator)
    changes = changed_entries(old, new)
    found = {}
    for name in dict.fromkeys([*before, *after]):
        state = after.get(name) or before[name]
        of_state = _of_state(changes, name, is_copied=kind_of(state).movement is Movement.COPIED)
        what = f"operator {uid!r}, state {name!r}"
        states = before.get(name), after.get(name)
        rows = as_rows(of_state, state, old, new)
        found[name] = _Compared(state.kind, change_table(rows, key_schema, states, what))
    return found


def _states_of(operator: StoredOperator | None) -> dict[str, StateDescriptor]:
    return {} if operator is None else {state.name: state for state in operator.states.states}


def _key_schema(uid: str, old: StoredOperator | None, new: StoredOperator | None) -> T.StructType:
    schemas = [each.key_schema for each in (old, new) if each is not None]
    types = [[field.dataType for field in schema.fields] for schema in schemas]
    if types[0] != types[-1]:
        raise IncompatibleStateError(
            f"operator {uid!r}: its key columns are {schemas[0].simpleString()} and "
            f"{schemas[-1].simpleString()}: only states with keys of the same types are compared"
        )
    return schemas[-1]


def _of_state(
    changes: Mapping[Place, Change], name: str, *, is_copied: bool
) -> dict[Place, Change]:
    """Return the changes of one state; broadcast state has the same in every subtask."""
    return {
        place._replace(subtask=None) if is_copied else place: change
        for place, change in changes.items()
        if place.state == name
    }


class StateDifference:
    """What differs between two snapshots; :func:`diff_state` returns it.

    An entry counts as it is stored: also if its time to live is over, until it is cleaned up. An
    entry that was written again with the same value and time is equal. Each item of a list is a row
    with its position. Timers and raw state are not compared.

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
            keys, and each column of values twice, with ``old_`` and ``new_``.

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
            As :meth:`to_arrow`.

        Raises
        ------
        StateUseError
            If neither snapshot has the state.

        Examples
        --------
        >>> ckpt.diff_state(savepoint.path, savepoint.path).to_pandas("count", "count").empty
        True
        """
        frame: pd.DataFrame = self.to_arrow(operator, state).to_pandas()
        return frame

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
            state: each.table.slice(0, rows).to_pylist()
            for state, each in self._compared.items()
            if each.table.num_rows
        }
