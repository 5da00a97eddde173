"""The stateful operators of a query: those of this library and Spark's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_ckpt.operator.descriptor import OperatorDescriptor


@dataclass(frozen=True, slots=True)
class SparkOperator:
    """One of Spark's own stateful operators, by its name in Spark's state metadata."""

    name: str


@dataclass(frozen=True, slots=True)
class StatefulOperators:
    """All stateful operators of a query; the position in `in_order` is Spark's id."""

    in_order: tuple[OperatorDescriptor | SparkOperator, ...]
    follows_aggregation: bool = False
    """Whether an operator of this library follows an aggregation of Spark.

    Spark allows that for its own ``transformWithState`` only, and has to be told not to check.
    """

    @classmethod
    def of(
        cls,
        operators: Iterable[OperatorDescriptor | SparkOperator],
        *,
        follows_aggregation: bool = False,
    ) -> StatefulOperators:
        """Return the operators of a query from an iterable in the order of their ids."""
        return cls(tuple(operators), follows_aggregation)

    @property
    def ours(self) -> dict[int, OperatorDescriptor]:
        """The operators of this library, by id."""
        return {
            operator_id: operator
            for operator_id, operator in enumerate(self.in_order)
            if isinstance(operator, OperatorDescriptor)
        }

    @property
    def parallelisms(self) -> dict[int, int | None]:
        """How many partitions each operator has, by id; ``None`` for Spark's own."""
        return {
            operator_id: operator.parallelism if isinstance(operator, OperatorDescriptor) else None
            for operator_id, operator in enumerate(self.in_order)
        }

    @property
    def spark_operators(self) -> dict[int, SparkOperator]:
        """Spark's own operators, by id."""
        return {
            operator_id: operator
            for operator_id, operator in enumerate(self.in_order)
            if isinstance(operator, SparkOperator)
        }

    @property
    def have_one_watermark(self) -> bool:
        """Whether all operators share one watermark.

        Spark gives no watermark to an operator that follows one of this library.
        """
        return self._has_followed and not self.each_has_its_watermark

    @property
    def each_has_its_watermark(self) -> bool:
        """Whether operators follow, and Spark computes a watermark for each operator.

        Then every operator of this library passes its watermark to the operator that follows it.
        Operators of this library alone share one watermark, unless they follow an aggregation:
        it emits rows that are late for the query's watermark.
        """
        followed = [operator for number, operator in self.ours.items() if number > 0]
        needed = self._spark_follows or (self.follows_aggregation and len(self.ours) > 1)
        return needed and all(operator.passes_watermark for operator in followed)

    @property
    def _has_followed(self) -> bool:
        return len(self.ours) > 1 or self._spark_follows

    @property
    def _spark_follows(self) -> bool:
        """Whether one of Spark's own operators follows an operator of this library."""
        return min(self.spark_operators, default=len(self.in_order)) < max(self.ours, default=0)

    @property
    def descriptors(self) -> tuple[OperatorDescriptor, ...]:
        """The operators of this library, in the order of their ids."""
        return tuple(self.ours.values())
