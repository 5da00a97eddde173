"""A running count and sum per key in Bytewax."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bytewax.operators as op
from bytewax.operators import KeyedStream, StatefulBatchLogic
from bytewax_job import Job


class _Count(StatefulBatchLogic):
    def __init__(self, state: tuple[int, int] | None) -> None:
        self._n, self._total = state or (0, 0)

    def on_batch(self, values: list[int]) -> tuple[Iterable[tuple[int, int]], bool]:
        self._n += len(values)
        self._total += sum(values)
        return [(self._n, self._total)], StatefulBatchLogic.RETAIN

    def snapshot(self) -> tuple[int, int]:
        return self._n, self._total


def _counted(arguments: dict[str, Any], rows: KeyedStream[int]) -> KeyedStream[Any]:
    return op.stateful_batch("count", rows, _Count)


if __name__ == "__main__":
    Job(__file__, "value", ["n", "total"], _counted, in_order=False).run()
