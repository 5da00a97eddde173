"""The states of a running query, read on its driver through one run after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pandas as pd
import pyarrow as pa

from pyspark_ckpt.live.newest_handles import CommittedEpoch
from pyspark_ckpt.live.run_states import LiveStates, StateOfRun
from pyspark_ckpt.snapshot.columns import pandas_frame

R = TypeVar("R")


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
    >>> found = query.state("count", "count").get("ada")
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
    >>> count.get("ada").value
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
        """The columns of the state's table, as :func:`open_state` has them."""
        return self._read(lambda state: state.schema)

    def get(self, *key: Any) -> LiveValue:
        """Return what the state holds for one key.

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
        NotBuiltYetError
            If only Spark can hash the key columns.
        CorruptFileError, CheckpointAbortedError
            If a file of the state is missing or changed.
        OSError
            If this machine's disk has no room for the copy.

        Examples
        --------
        >>> query.state("count", "count").get("nobody").value is None
        True
        """
        value, committed = self._read(lambda state: state.get(key))
        return LiveValue(value, committed.epoch, committed.watermark_ms, committed.offsets)

    def to_arrow(self) -> pa.Table:
        """Return the whole state as an Arrow table.

        Returns
        -------
        pyarrow.Table
            The columns as in :func:`open_state`. The metadata of its schema has ``epoch``,
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
            The columns as in :func:`open_state`. Its ``attrs`` are ``epoch``, ``watermark_ms`` and
            ``offsets``.

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
        """Return what `read` returns for a run that did not end meanwhile, or for the last run."""
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
                # A restart in place exchanges files, and the read may have seen some of the others.
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
