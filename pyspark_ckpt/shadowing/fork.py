"""One program of a shadow: a fork that runs the epochs of the query, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.shadowing.followed import FollowedEpoch, begin_epoch
from pyspark_ckpt.shadowing.output import KeptOutput, Output
from pyspark_ckpt.spark.log import SparkLog


@dataclass(frozen=True, slots=True)
class ForkedProgram:
    """How a program of a shadow is started."""

    name: str
    start: QueryStart
    kept: KeptOutput
    schema: T.StructType
    source_ids: Sequence[int]


class Fork:
    """Runs a program on the epochs of the query."""

    def __init__(self, program: ForkedProgram) -> None:
        self.name = program.name
        self.output = Output(program.kept, program.schema)
        self._program = program
        self._start = program.start
        self._log = SparkLog(program.start.location.storage)
        self._runner: CheckpointRunner | None = None

    def fill(self) -> None:
        """Fill the location from what the program is restored from."""
        self._start.fill()

    def run(self, followed: FollowedEpoch) -> None:
        """Run an epoch, which is committed on return."""
        begin_epoch(self._log.storage, followed, self._program.source_ids)
        self._start.run_due_epoch()
        if self._log.committed_epoch() != followed.epoch:
            raise CheckpointAbortedError(
                f"the {self.name} has not committed epoch {followed.epoch} at "
                f"{self._log.storage.url}: its query was stopped from outside"
            )

    def checkpoint(self) -> RestoreSource:
        """Take a checkpoint of the last epoch, and delete the one before."""
        if self._runner is None:
            self._runner = self._start.runner()
        taken = self._runner.take(self._log.committed_epoch, periodic=False)
        assert isinstance(taken, CompletedCheckpoint)  # there is a new epoch
        return RestoreSource(taken.path)

    def close(self) -> None:
        """Take no more checkpoints."""
        if self._runner is not None:
            self._runner.close()
