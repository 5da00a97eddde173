"""One attempt at a checkpoint after the other: its steps, run in a thread of their own.

Whoever waits for an attempt may give it up: its steps cannot publish any more when they go on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from pyspark_ckpt.abort_reason import AbortReason, reason_of
from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles
from pyspark_ckpt.checkpoint.machine import CheckpointMachine, CheckpointState, acknowledgements_of
from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.spark.jobs import error_text
from pyspark_ckpt.stores.base import CompletedCheckpointStore

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Attempt:
    """A checkpoint that is being taken; `outcome` is set once, `ended` when its steps are over."""

    checkpoint_id: int
    epoch: int
    triggered_at_ms: int
    began_ms: int
    step: str = "waiting for the one before it, which still hangs"
    outcome: CompletedCheckpoint | AbortedCheckpoint | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def duration_ms(self) -> int:
        """How long it has taken, whatever was done to the wall clock meanwhile."""
        return monotonic_ms() - self.began_ms

    def give_up(self, reason: AbortReason, message: str) -> AbortedCheckpoint:
        """Make this its outcome."""
        self.outcome = AbortedCheckpoint(
            kind="checkpoint",
            checkpoint_id=self.checkpoint_id,
            epoch=self.epoch,
            triggered_at_ms=self.triggered_at_ms,
            duration_ms=self.duration_ms,
            reason=reason,
            message=message,
        )
        return self.outcome


@dataclass(slots=True)
class Work:
    """Other work of that thread; `error` is what it raised, `ended` is set when it is over."""

    call: Callable[[], None]
    error: Exception | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Do it."""
        try:
            self.call()
        except Exception as exc:
            self.error = exc


class AttemptThread:
    """Runs the steps of attempts, in the order in which they began.

    Parameters
    ----------
    query_id
        The query.
    machine, guard
        What is told of each step, and the lock to hold for that.
    store, files
        Where checkpoints are published, and what is known of their files.
    snapshot
        Gathers a committed epoch; may take its time.
    note
        Is told each outcome that the steps come to; of an abort it is told with the guard held.
    """

    def __init__(
        self,
        query_id: str,
        machine: CheckpointMachine,
        guard: threading.Lock,
        store: CompletedCheckpointStore,
        files: CheckpointFiles,
        snapshot: Callable[[int], CheckpointMetadata],
        note: Callable[[CompletedCheckpoint | AbortedCheckpoint], None],
    ) -> None:
        self._query_id = query_id
        self._machine = machine
        self._guard = guard
        self._store = store
        self._files = files
        self._snapshot = snapshot
        self._note = note
        self._attempts: queue.SimpleQueue[Attempt | Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, attempt: Attempt) -> None:
        """Have its steps run as soon as those before it are over."""
        self._put(attempt)

    def do(self, work: Work) -> None:
        """Have other work done behind the attempts; an attempt that follows waits for it."""
        self._put(work)

    def _put(self, work: Attempt | Work) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name=f"pyspark_ckpt checkpoints {self._query_id}", daemon=True
            )
            self._thread.start()
        self._attempts.put(work)

    def close(self) -> None:
        """End the thread after the attempts that have begun."""
        self._attempts.put(None)

    def _run(self) -> None:
        while (work := self._attempts.get()) is not None:
            try:
                if isinstance(work, Attempt):
                    self._run_attempt(work)
                else:
                    work.run()
            finally:
                work.ended.set()

    def _run_attempt(self, attempt: Attempt) -> None:
        try:
            self._run_steps(attempt)
        except Exception as exc:
            logger.debug("chk-%s failed", attempt.checkpoint_id, exc_info=True)
            self._fail(attempt, exc)

    def _run_steps(self, attempt: Attempt) -> None:
        with self._guard:
            if self._machine.state_of(attempt.checkpoint_id) is not CheckpointState.COLLECTING:
                return  # it expired before its turn
        attempt.step = "making its directory"
        self._reserve(attempt.checkpoint_id)
        attempt.step = "gathering handles, offsets and source logs"
        metadata = msgspec.structs.replace(
            self._snapshot(attempt.epoch),
            checkpoint_id=attempt.checkpoint_id,
            triggered_at_ms=attempt.triggered_at_ms,
            completed_at_ms=attempt.triggered_at_ms + attempt.duration_ms,
        )
        self._store.check_reserved(attempt.checkpoint_id)
        if not self._may_publish(attempt.checkpoint_id, metadata):
            return
        attempt.step = "writing its _metadata, which may have been written: nothing is deleted"
        self._store.add(attempt.checkpoint_id, metadata)
        self._complete(attempt, metadata)

    def _reserve(self, checkpoint_id: int) -> None:
        try:
            self._store.reserve(checkpoint_id)
        except FileExistsError:
            last_id = self._store.last_id()
            with self._guard:
                self._machine.note_used_id(last_id)
            raise

    def _may_publish(self, checkpoint_id: int, metadata: CheckpointMetadata) -> bool:
        """Pass on the acknowledgements; false if the checkpoint was given up meanwhile.

        Raises
        ------
        CheckpointAbortedError
            If a subtask is missing.
        """
        with self._guard:
            for acknowledgement in acknowledgements_of(checkpoint_id, metadata):
                self._machine.acknowledge(acknowledgement)
            missing = self._machine.missing(checkpoint_id)
            if missing:
                raise CheckpointAbortedError(
                    f"no acknowledgement of {', '.join(f'{s.uid}/{s.number}' for s in missing)}",
                    AbortReason.NOT_ACKNOWLEDGED,
                )
            logs = {log.file.path for log in metadata.source_logs}
            if not self._machine.publish(checkpoint_id, logs):
                return False
            self._files.remember(checkpoint_id, metadata)
            return True

    def _complete(self, attempt: Attempt, metadata: CheckpointMetadata) -> None:
        checkpoint_id = attempt.checkpoint_id
        # Made first: once the machine knows that it is complete, nothing may fail.
        completed = CompletedCheckpoint.of(checkpoint_id, self._store.path(checkpoint_id), metadata)
        with self._guard:
            if self._machine.published(checkpoint_id) is None:
                return  # it expired: the next start decides
            attempt.outcome = completed
        self._note(completed)
        logger.info(
            "query %s: chk-%s completed, epoch %s, %s bytes",
            self._query_id, checkpoint_id, completed.epoch, completed.size_bytes,
        )  # fmt: skip

    def _fail(self, attempt: Attempt, error: Exception) -> None:
        reason = reason_of(error)
        message = error_text(error)
        with self._guard:
            state = self._machine.state_of(attempt.checkpoint_id)
            # A fenced one is known not to be complete.
            if state is CheckpointState.PUBLISHING and reason is not AbortReason.FENCED:
                reason = AbortReason.METADATA_UNCERTAIN
                message = f"{message}; it may be there: nothing is deleted, the next start reads it"
            if self._machine.abort(attempt.checkpoint_id, reason):
                self._note(attempt.give_up(reason, message))
