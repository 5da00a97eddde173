"""``key_by``: partitions a DataFrame by key."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from pyspark_ckpt.api.stream import KeyedStream
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.plan.grouping_columns import grouping_columns
from pyspark_ckpt.operator.plan.operator import KeyedInput
from pyspark_ckpt.operator.plan.parallelism import parallelism_of
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.key_groups import check_max_parallelism, default_max_parallelism
from pyspark_ckpt.spark.program import check_frame


def key_by(df: DataFrame, *columns: str | Column, maxParallelism: int | None = None) -> KeyedStream:
    """Partition a DataFrame by key.

    Call it on the driver, where ``df.groupBy(*columns)`` would be. A null is a key like any other,
    as in Spark's ``groupBy``.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame. Over a batch DataFrame the processor runs once, and its state is
        discarded.
    *columns : str or Column
        One or more names or expressions, as for ``groupBy``. Keys have the names that ``groupBy``
        gives them. The processor's rows have the columns of `df`, without the expressions.
    maxParallelism : int, optional
        Number of key groups, fixed for the life of the state. By default a power of two of at
        least 128, derived from the parallelism as in Flink.

    Returns
    -------
    KeyedStream
        Its methods run a processor over the stream.

    Raises
    ------
    PlanError
        If `df` is no DataFrame, a key column is missing or ambiguous, or `maxParallelism` is not
        allowed.
    NotBuiltYetError
        If `df` has a column of an unsupported type.

    Examples
    --------
    >>> keyed = ckpt.key_by(events, "user", maxParallelism=256)
    """
    check_frame(df, "key_by", "df", PlanError)
    conf = df.sparkSession.conf
    parallelism = parallelism_of(df.sparkSession)
    time_zone = str(conf.get("spark.sql.session.timeZone"))
    chosen = default_max_parallelism(parallelism) if maxParallelism is None else maxParallelism
    grouping = grouping_columns(df, columns)
    keyed = KeyedInput(
        grouping.df,
        InputColumns(grouping.df.schema, grouping.names, time_zone, grouping.derived),
        parallelism,
        check_max_parallelism(chosen, parallelism),
    )
    return KeyedStream(keyed)
