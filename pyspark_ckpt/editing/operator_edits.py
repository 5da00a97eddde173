"""The part of an edit that changes the state of its operators, one method per change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.editing.operator_edit import OperatorEdit
from pyspark_ckpt.editing.operators import key_columns
from pyspark_ckpt.editing.typed_frames import ChangeRows, RowsFunction
from pyspark_ckpt.errors import PlanError

Edit = TypeVar("Edit", bound="OperatorEdits")


class OperatorEdits:
    """Changes of operators, as ``StateEdit`` has them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._operators: dict[str, OperatorEdit] = {}

    def put(self: Edit, uid: str, state: str, rows: DataFrame) -> Edit:
        """Replace a state by the rows of a DataFrame.

        Parameters
        ----------
        uid : str
            The operator.
        state : str
            The state.
        rows : DataFrame
            The state's table: the key columns, the columns of map keys, those of the values. A list
            has ``position``; without it, the values have the order of the rows. A state with a time
            to live may have ``expires_at``; without it, the entries count as written now. Operator
            list state has ``subtask`` instead of key columns, and broadcast state has neither.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator or state, or the rows have other columns.

        Examples
        --------
        >>> rows = spark.createDataFrame([("ada", 5)], "user string, n long")
        >>> edit = ckpt.edit_state(savepoint.path).put("count", "count", rows)
        """
        self._of(uid).put_state(state, rows)
        return self

    def change(
        self: Edit,
        uid: str,
        state: str,
        function: Callable[[Any], Any],
        *,
        as_pandas: bool = False,
    ) -> Edit:
        """Replace the rows of a state by what a function makes of them.

        Parameters
        ----------
        uid : str
            The operator.
        state : str
            The state.
        function : callable
            Is called on executors with parts of the state's table, and returns the rows that
            replace them. It may leave rows out and add rows. A part may end inside a list or map.
        as_pandas : bool
            Whether the function takes and returns pandas frames rather than Arrow tables.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator or state.

        Examples
        --------
        >>> def double(rows):
        ...     return rows.assign(n=rows.n * 2)
        >>> edit = ckpt.edit_state(savepoint.path)
        >>> doubled = edit.change("count", "count", double, as_pandas=True)
        >>> sorted(tuple(row) for row in doubled.table("count", "count").collect())
        [('ada', 4), ('bob', 2)]
        """
        operator = self._of(uid)
        rows = operator.table(self._spark, state)
        given = RowsFunction(function, as_pandas, f"{operator.where}, state {state!r}")
        operator.put_state(state, rows.mapInArrow(ChangeRows(given, rows.schema), rows.schema))
        return self

    def table(self, uid: str, state: str) -> DataFrame:
        """Return a state as a DataFrame, with the changes so far; ``put`` takes it back.

        Parameters
        ----------
        uid, state : str
            The operator and its state.

        Returns
        -------
        DataFrame
            The state's table, with the entries whose time to live is over.

        Raises
        ------
        PlanError
            If there is no such operator or state.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path)
        >>> many = edit.table("count", "count").where("n > 1")
        >>> edit.put("count", "count", many)
        StateEdit(...)
        """
        return self._of(uid).table(self._spark, state)

    def timers(self, uid: str) -> DataFrame:
        """Return the timers of an operator as a DataFrame, with the changes so far.

        Parameters
        ----------
        uid : str
            The operator.

        Returns
        -------
        DataFrame
            The key columns, and ``fires_at``; ``set_timers`` takes it back.

        Raises
        ------
        PlanError
            If there is no such operator.

        Examples
        --------
        >>> ckpt.edit_state(savepoint.path).timers("count").columns
        ['user', 'fires_at']
        """
        return self._of(uid).timers_table(self._spark)

    def set_timers(self: Edit, uid: str, rows: DataFrame) -> Edit:
        """Replace all timers of an operator.

        Parameters
        ----------
        uid : str
            The operator.
        rows : DataFrame
            The key columns, and ``fires_at``, a timestamp. A timer that is there twice is one.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, it has no clock, or the rows have other columns.

        Examples
        --------
        >>> none = spark.createDataFrame([], "user string, fires_at timestamp")
        >>> ckpt.edit_state(savepoint.path).set_timers("count", none)
        Traceback (most recent call last):
        ...
        pyspark_ckpt.errors.PlanError: ...
        """
        self._of(uid).put_timers(rows)
        return self

    def raw(self, uid: str) -> DataFrame:
        """Return the raw state of an operator as a DataFrame, with the changes so far.

        Parameters
        ----------
        uid : str
            The operator.

        Returns
        -------
        DataFrame
            A row per stream: ``subtask``, ``stream`` and ``data``; ``set_raw`` takes it back.

        Raises
        ------
        PlanError
            If there is no such operator.

        Examples
        --------
        >>> ckpt.edit_state(savepoint.path).raw("count").columns
        ['subtask', 'stream', 'data']
        """
        return self._of(uid).raw_table(self._spark)

    def set_raw(self: Edit, uid: str, rows: DataFrame) -> Edit:
        """Replace the raw state of an operator.

        Parameters
        ----------
        uid : str
            The operator.
        rows : DataFrame
            A row per stream: ``subtask``, ``stream``, a number from 0 that is unique in the
            subtask, and ``data``. Without rows, no raw state is left.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, or the rows have other columns.

        Examples
        --------
        >>> none = spark.createDataFrame([], "subtask int, stream int, data binary")
        >>> edit = ckpt.edit_state(savepoint.path).set_raw("count", none)
        """
        self._of(uid).put_raw(rows)
        return self

    def rekey(
        self: Edit,
        uid: str,
        function: Callable[[Any], Any],
        keys: T.StructType | str | None = None,
        *,
        as_pandas: bool = False,
    ) -> Edit:
        """Give all state and timers of an operator other keys, which a restore refuses.

        Two keys may become one only if they have no value at the same place.

        Parameters
        ----------
        uid : str
            The operator.
        function : callable
            Is called on executors with parts of the key columns, and returns the new key columns of
            each row, in the same order.
        keys : StructType or str, optional
            The new key columns; text is DDL. By default those of before.
        as_pandas : bool
            Whether the function takes and returns pandas frames rather than Arrow tables.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, or a column cannot be a key.

        Examples
        --------
        >>> def shout(keys):
        ...     return keys.assign(user=keys.user.str.upper())
        >>> edit = ckpt.edit_state(savepoint.path).rekey("count", shout, as_pandas=True)
        >>> sorted(tuple(row) for row in edit.table("count", "count").collect())
        [('ADA', 2), ('BOB', 1)]
        """
        operator = self._of(uid)
        schema = operator.key_schema if keys is None else keys
        given = RowsFunction(function, as_pandas, f"{operator.where}, keys")
        operator.rekey(self._spark, given, key_columns(schema, uid))
        return self

    def drop_state(self: Edit, uid: str, state: str) -> Edit:
        """Remove a state with all its entries.

        Parameters
        ----------
        uid, state : str
            The operator and its state.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator or state.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path).drop_state("count", "count")
        """
        self._of(uid).drop_state(state)
        return self

    def drop_operator(self: Edit, uid: str) -> Edit:
        """Remove an operator with all its state.

        Parameters
        ----------
        uid : str
            The operator.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path).drop_operator("count")
        """
        self._of(uid)
        del self._operators[uid]
        return self

    def erase(self: Edit, uid: str, keys: DataFrame) -> Edit:
        """Remove all that belongs to some keys: their state and their timers.

        Operator state, broadcast state and raw state belong to no key, and stay as they are.

        Parameters
        ----------
        uid : str
            The operator.
        keys : DataFrame
            The key columns; few enough for the driver.

        Returns
        -------
        StateEdit
            This edit.

        Raises
        ------
        PlanError
            If there is no such operator, or the rows have other columns.

        Examples
        --------
        >>> edit = ckpt.edit_state(savepoint.path)
        >>> erased = edit.erase("count", spark.createDataFrame([("ada",)], "user string"))
        """
        self._of(uid).erase(keys)
        return self

    def _of(self, uid: str) -> OperatorEdit:
        try:
            return self._operators[uid]
        except KeyError:
            known = ", ".join(map(repr, self._operators)) or "none"
            raise PlanError(f"there is no operator {uid!r}; the operators are {known}") from None
