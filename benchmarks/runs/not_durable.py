"""An operator without durability, to see what durability costs.

In the worker it leaves out everything that makes an epoch durable. No segment is encoded, digested,
written or synchronised, none is read back and applied in the next epoch, and no base snapshot is
made. The epoch's writes go straight into the local copy, which would be wrong after a failure.
The handle stays, as Spark's state of the subtask. A long interval avoids checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from pyspark_ckpt.formats.handle import Segment, new_version
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.materialization import Materializer
from pyspark_ckpt.operator.run import barrier as epoch_end
from pyspark_ckpt.operator.run import subtask
from pyspark_ckpt.operator.run.subtask import SubtaskFunction
from state_backends import Changes, StateBackend

NO_CHECKPOINTS = {"spark.ckpt.execution.checkpointing.interval": "1000d"}
"""Options of a query that takes none while it runs."""


class NotDurableSubtask(SubtaskFunction):
    """The operator's function without the parts that durability needs."""

    def process(self, *arguments: Any) -> Iterator[Any]:
        """Process an epoch; nothing is durable."""
        opened: list[StateBackend] = []

        @contextmanager
        def noted(*places: Any) -> Iterator[Any]:
            with open_local_copy(*places) as copy:
                opened.append(copy.backend)
                yield copy

        def apply_at_once(
            storage: Any, handle: Any, changes: Iterable[Changes], epoch: int, *others: Any
        ) -> Segment:
            version = new_version(epoch)
            opened[-1].apply(changes, version)
            return Segment(version, epoch, 0, 0, inline=b"")

        with ExitStack() as patches:
            for owner, name, function in (
                (subtask, "open_local_copy", noted),
                (Materializer, "advance", lambda _, handle, epoch: handle),
                (epoch_end, "make_segment", apply_at_once),
            ):
                patches.enter_context(mock.patch.object(owner, name, function))
            yield from SubtaskFunction.process(self, *arguments)
