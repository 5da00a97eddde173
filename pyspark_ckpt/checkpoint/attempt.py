"""The steps that take one checkpoint: reserve its id, gather the epoch, publish ``_metadata``.

The caller may abort the checkpoint while a step runs. The steps then end with an error that nobody
waits for, and publish nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles
from pyspark_ckpt.checkpoint.machine import CheckpointMachine, CheckpointState, Subtask
from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, EpochContents, metadata_of
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.stores.base import CompletedCheckpointStore


@dataclass(slots=True)
class Attempt:
    """A checkpoint that is being taken, and the step that it is at."""

    checkpoint_id: int
    epoch: int
    triggered_at_ms: int
    began_ms: int
    step: str = "waiting for the one before it, which still hangs"

    @property
    def duration_ms(self) -> int:
        """The time that it has taken, also if the wall clock has jumped."""
        return monotonic_ms() - self.began_ms


class AttemptSteps:
    """Takes the checkpoints of one query, one after the other, in the thread that calls it.

    `guard` is held while `machine` is read or changed. `note` is called with each completed
    checkpoint. `new_requests` returns the requests to the storage since its last call.
    """

    def __init__(
        self,
        machine: CheckpointMachine,
        guard: threading.Lock,
        store: CompletedCheckpointStore,
        files: CheckpointFiles,
        gather: Callable[[int], EpochContents],
        note: Callable[[CompletedCheckpoint], None],
        new_requests: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._machine = machine
        self._guard = guard
        self._store = store
        self._files = files
        self._gather = gather
        self._note = note
        self._new_requests = new_requests

    def run(self, attempt: Attempt) -> CompletedCheckpoint:
        """Take a checkpoint that was triggered; it is durable on return.

        It raises ``CheckpointAbortedError`` if a subtask has not acknowledged the checkpoint, or if
        the caller has aborted it while it was under way. Errors of the storage, the store and
        `gather` pass through.
        """
        checkpoint_id = attempt.checkpoint_id
        with self._guard:
            if self._machine.state_of(checkpoint_id) is not CheckpointState.COLLECTING:
                raise _ended(attempt)  # it expired before its turn
        attempt.step = "making its directory"
        self._reserve(checkpoint_id)
        attempt.step = "gathering handles, offsets and source logs"
        metadata = metadata_of(
            self._gather(attempt.epoch),
            CheckpointKind.CHECKPOINT,
            checkpoint_id=checkpoint_id,
            triggered_at_ms=attempt.triggered_at_ms,
            completed_at_ms=attempt.triggered_at_ms + attempt.duration_ms,
        )
        self._store.check_reserved(checkpoint_id)
        self._acknowledge(attempt, metadata)
        self._store.add(checkpoint_id, metadata)
        # Made first: nothing may fail once the machine knows that the checkpoint is complete.
        path = self._store.path(checkpoint_id)
        completed = CompletedCheckpoint.of(checkpoint_id, path, metadata, self._new_requests())
        with self._guard:
            if not self._machine.published(checkpoint_id):
                raise _ended(attempt)  # the next start decides
        self._note(completed)
        return completed

    def _reserve(self, checkpoint_id: int) -> None:
        try:
            self._store.reserve(checkpoint_id)
        except FileExistsError:
            last_id = self._store.last_id()
            with self._guard:
                self._machine.note_used_id(last_id)
            raise

    def _acknowledge(self, attempt: Attempt, metadata: CheckpointMetadata) -> None:
        """Acknowledge a checkpoint for all subtasks whose state was read, and begin to publish it.

        It raises ``CheckpointAbortedError`` if a subtask is missing, or if the checkpoint was
        aborted while it was under way.
        """
        subtasks = [
            Subtask(operator.uid, number)
            for operator in metadata.operators
            for number in range(operator.parallelism)  # a subtask without rows has no handle
        ]
        with self._guard:
            missing = self._machine.acknowledge(attempt.checkpoint_id, subtasks)
            if missing:
                raise CheckpointAbortedError(
                    f"no acknowledgement of {', '.join(f'{s.uid}/{s.number}' for s in missing)}",
                    AbortReason.NOT_ACKNOWLEDGED,
                )
            if not self._machine.publish(attempt.checkpoint_id):
                raise _ended(attempt)
            self._files.remember(attempt.checkpoint_id, metadata)
            attempt.step = "writing its _metadata, which may have been written: nothing is deleted"


def _ended(attempt: Attempt) -> CheckpointAbortedError:
    return CheckpointAbortedError(
        f"chk-{attempt.checkpoint_id} was aborted before", AbortReason.EXPIRED
    )
