"""The aggregates that a query combines before the shuffle: see :class:`Aggregate`.

Examples
--------
>>> from pyspark_ckpt import agg
>>> wanted = {"n": agg.Count(), "total": agg.Sum("amount")}
"""

from pyspark_ckpt.combine.aggregates import (
    Aggregate,
    CollectList,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)

__all__ = [
    "Aggregate",
    "CollectList",
    "Count",
    "First",
    "Last",
    "Max",
    "Min",
    "Sum",
]
