"""``combine``: aggregates of a keyed stream, combined before the shuffle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_ckpt.combine.aggregates import Aggregate
from pyspark_ckpt.combine.combination import Aggregates, FunctionOverTables
from pyspark_ckpt.combine.plan import COMBINE_ROWS, CombinationPlan, rows_combined, where
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.plan.declared import parse_schema
from pyspark_ckpt.operator.plan.operator import KeyedInput
from pyspark_ckpt.operator.schema.evolution import same_type

Stream = TypeVar("Stream", bound="CombiningStream")


class CombiningStream:
    """A keyed stream whose rows can be combined; the base of :class:`KeyedStream`."""

    _broadcast: DataFrame | None = None

    def __init__(self, keyed: KeyedInput) -> None:
        self._keyed = keyed

    def combineRows(
        self: Stream, aggregates: Mapping[str, Aggregate], *, anyOrder: bool = False
    ) -> Stream:
        """Combine the rows of each map task before a processor gets them.

        Fewer rows go through the shuffle and to the processor, and a key with very many rows costs
        no more than others. Nothing is kept: that is the processor's part. Its rows are the key
        columns and the partial results, and a key may have several in an epoch: one for each map
        task that has rows of it, and more if combining does not pay. So the processor must add up
        counts and sums, take the least of the least values, and so on.

        Parameters
        ----------
        aggregates : Mapping of str to Aggregate
            What is computed, by the name of the column that the processor reads.
        anyOrder : bool
            Allow aggregates whose result may depend on the order in which rows are combined: sums
            of fractions, ``First``, ``Last`` and ``CollectList``.

        Returns
        -------
        KeyedStream
            The combined rows, keyed as before. They have no event time, so late rows are combined
            too, and ``timeMode="EventTime"`` is refused.

        Raises
        ------
        PlanError
            If an aggregate is not allowed, a column has a type that cannot be combined before the
            shuffle, or a result may depend on the order of rows. The message names the column.

        Examples
        --------
        >>> class Total(Count):
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         yield Row(user=key[0], n=sum(row.n for row in rows))
        >>> combined = ckpt.key_by(events, "user").combineRows({"n": ckpt.Count()})
        >>> totals = combined.transformWithState(
        ...     Total(), "user string, n long", "Update", "None", uid="totals"
        ... )
        """
        _check_aggregates(aggregates, COMBINE_ROWS)
        combined = Aggregates(aggregates, self._keyed.columns.schema, COMBINE_ROWS)
        stream = copy(self)
        stream._keyed = rows_combined(  # noqa: SLF001  # of this class
            self._keyed, combined, in_any_order=anyOrder
        )
        return stream

    def combine(
        self,
        aggregates: Mapping[str, Aggregate],
        outputMode: str = "Update",
        *,
        uid: str | None = None,
        beforeShuffle: bool | None = None,
        ttlDurationMs: int | None = None,
    ) -> DataFrame:
        """Keep aggregates of each key: count, sum, least, greatest, first, last, list.

        Each map task combines its rows before the shuffle, so that at most one row per key and
        task goes through it. A key with many rows costs no more than others.

        Parameters
        ----------
        aggregates : Mapping of str to Aggregate
            What is computed, by the name of the result's column.
        outputMode : str
            ``Update`` or ``Append``.
        uid : str, optional
            The operator's stable name, as for :meth:`transformWithState`.
        beforeShuffle : bool, optional
            By default rows are combined before the shuffle if that cannot change a result: not
            with sums of fractions, with ``First``, ``Last`` or ``CollectList``, whose result may
            depend on the order of rows, and not with columns of nested types. ``True`` does it
            also where the order counts. ``False`` never does it.
        ttlDurationMs : int, optional
            Forget a key so many milliseconds of processing time behind its last row.

        Returns
        -------
        DataFrame
            The key columns and the results, one row for each key that has rows in the epoch.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.

        Examples
        --------
        >>> counts = ckpt.key_by(events, "user").combine({"n": ckpt.Count()}, uid="count")
        >>> counts.columns
        ['user', 'n']
        """
        _check_aggregates(aggregates, where(uid))
        self._check_no_broadcast(where(uid))
        combination = Aggregates(aggregates, self._keyed.columns.schema, where(uid))
        return CombinationPlan(
            self._keyed, combination, uid, outputMode, beforeShuffle, ttlDurationMs
        ).build()

    def combineInArrow(
        self,
        function: Callable[[pa.Table, list[str]], pa.Table],
        stateStructType: T.StructType | str,
        outputMode: str = "Update",
        *,
        uid: str | None = None,
        beforeShuffle: bool | None = None,
        ttlDurationMs: int | None = None,
    ) -> DataFrame:
        """Keep for each key what a function makes of its rows, as Arrow tables.

        The function is called in map tasks before the shuffle, and on executors behind it with
        the rows of the state. So its result must not depend on how rows are divided, or on their
        order.

        Parameters
        ----------
        function : callable
            Gets a table of partial rows and the names of its key columns. Returns a table with the
            same columns and one row per key, such as ``table.group_by(keys).aggregate(...)`` with
            the names that the columns had.
        stateStructType : StructType or str
            The columns of partial rows. The stream must have them: each row is a partial row.
        outputMode : str
            ``Update`` or ``Append``.
        uid : str, optional
            The operator's stable name, as for :meth:`transformWithState`.
        beforeShuffle : bool, optional
            Whether the function is called before the shuffle; by default unless a column has a
            nested or collated type.
        ttlDurationMs : int, optional
            Forget a key so many milliseconds of processing time behind its last row.

        Returns
        -------
        DataFrame
            The key columns and those of `stateStructType`, one row for each key that has rows in
            the epoch.

        Raises
        ------
        PlanError
            If an argument is not allowed. The message names the argument.

        Examples
        --------
        >>> def longest(table, keys):
        ...     found = table.group_by(keys).aggregate([("size", "max")])
        ...     return found.rename_columns([*keys, "size"])
        >>> from pyspark.sql import functions as F
        >>> sized = events.withColumn("size", F.length("user"))
        >>> longest_names = ckpt.key_by(sized, "user").combineInArrow(
        ...     longest, "size int", uid="longest"
        ... )
        """
        self._check_no_broadcast(where(uid))
        schema = stateStructType
        if not isinstance(schema, T.StructType):
            schema = parse_schema(schema)
        rows = self._keyed.columns.schema
        wrong = [
            field.simpleString()
            for field in schema.fields
            if field.name not in rows.names
            or not same_type(rows[field.name].dataType, field.dataType, nullability=False)
        ]
        if wrong or not schema.fields:
            raise PlanError(
                f"{where(uid)}: combineInArrow got the columns {schema.simpleString()}; the stream "
                f"is {rows.simpleString()}: give it the same columns with select first"
            )
        if not callable(function):
            raise PlanError(f"{where(uid)}: {type(function).__name__} is no function")
        combination = FunctionOverTables(function, schema, where(uid))
        return CombinationPlan(
            self._keyed, combination, uid, outputMode, beforeShuffle, ttlDurationMs
        ).build()

    def _check_no_broadcast(self, where: str) -> None:
        if self._broadcast is not None:
            raise PlanError(
                f"{where}: combine and combineInArrow have no processor that gets the rows of "
                "connectBroadcast: leave one of the two out"
            )


def _check_aggregates(aggregates: object, where: str) -> None:
    if not isinstance(aggregates, Mapping):
        raise PlanError(
            f"{where}: the aggregates are {type(aggregates).__name__}: give a dict from names to "
            "aggregates"
        )
