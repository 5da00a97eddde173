"""The runner: does for the state machine what its checkpoints need done, one at a time.

Whoever takes a checkpoint waits for it, at most for its timeout. The steps run in a thread of the
runner: one that hangs is given up without it, and cannot publish any more when it goes on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from pyspark_ckpt.checkpoint.abort_reason import AbortReason, reason_of
from pyspark_ckpt.checkpoint.acknowledgement import Subtask, acknowledgements_of
from pyspark_ckpt.checkpoint.checkpoint_files import CheckpointFiles
from pyspark_ckpt.checkpoint.checkpoint_machine import CheckpointMachine, CheckpointState, Refusal
from pyspark_ckpt.checkpoint.cleaning_hold import CleaningHold
from pyspark_ckpt.checkpoint.listener import Listeners
from pyspark_ckpt.checkpoint.open_store import claim_store
from pyspark_ckpt.checkpoint.outcome import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.checkpoint.task_errors import error_text
from pyspark_ckpt.configuration import Settings
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata
from pyspark_ckpt.on_disk.storage import Storage

ABORTED_KEPT = 1000
"""How many aborted checkpoints are remembered."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
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
        return _monotonic_ms() - self.began_ms


class CheckpointRunner:
    """Takes the checkpoints of one query and cleans up behind them; knows no Spark.

    Parameters
    ----------
    query_id, subtasks
        The query, and all subtasks of its operators.
    storage
        Its checkpoints directory.
    settings
        What the state machine goes by.
    snapshot
        Gathers a committed epoch; called in the runner's thread, may take its time.
    cancel
        Has the snapshot that is being gathered end soon, if it can; called when it has expired.

    `exclusive` is held while a checkpoint is under way or files are cleaned. Whoever copies files
    has a `hold`.

    Raises
    ------
    OSError
        If the checkpoints directory cannot be read.
    """

    def __init__(
        self,
        query_id: str,
        subtasks: frozenset[Subtask],
        storage: Storage,
        settings: Settings,
        snapshot: Callable[[int], CheckpointMetadata],
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self.exclusive = threading.Lock()
        self.hold = CleaningHold()
        self.listeners = Listeners()
        self._query_id = query_id
        self._subtasks = subtasks
        self._snapshot = snapshot
        self._cancel = cancel
        self._store = claim_store(storage, settings, query_id)
        self._files = CheckpointFiles(storage, self._store)
        self._aborted: deque[AbortedCheckpoint] = deque(maxlen=ABORTED_KEPT)
        self._machine = CheckpointMachine(
            query_id,
            settings,
            _monotonic_ms,
            self._store.last_id(),
            {number: self._files.epoch_of(number) for number in self._store.ids()},
        )
        # The machine is asked by the thread that waits and by the one that works.
        self._guard = threading.Lock()
        self._attempts: queue.SimpleQueue[_Attempt | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    @property
    def tolerance_is_exceeded(self) -> bool:
        """Whether more checkpoints in a row have failed than may."""
        with self._guard:
            return self._machine.tolerance_is_exceeded

    def check_not_fenced(self) -> None:
        """Check that no other driver, or start in this one, has taken the query over.

        Raises
        ------
        FencedError
            If one has.
        """
        self._store.check()

    def due_in_ms(self) -> int:
        """Return how long it is until the next periodic checkpoint."""
        with self._guard:
            return self._machine.due_in_ms()

    def aborted(self) -> list[AbortedCheckpoint]:
        """Return what was given up, oldest first."""
        return list(self._aborted)

    def newest(self) -> CompletedCheckpoint | None:
        """Return the newest completed checkpoint."""
        with self._guard:
            newest = self._machine.newest_completed()
        metadata = None if newest is None else self._files.read(newest)
        if newest is None or not isinstance(metadata, CheckpointMetadata):
            return None
        return CompletedCheckpoint.of(newest, self.path(newest), metadata)

    def retained(self) -> list[tuple[int, CheckpointMetadata | CkptError]]:
        """Return the retained checkpoints with their ids, oldest first.

        In the place of one that cannot be read stands the reason.
        """
        return [(number, self._files.read(number)) for number in self._store.ids()]

    def last_id(self) -> int:
        """Return the highest id that any attempt has had."""
        with self._guard:
            return self._machine.last_id

    def path(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint."""
        return self._store.path(checkpoint_id)

    def take(
        self, committed_epoch: Callable[[], int | None], *, periodic: bool
    ) -> CompletedCheckpoint | Refusal:
        """Take a checkpoint of the newest committed epoch and clean up behind it.

        Raises
        ------
        CheckpointAbortedError
            If it was given up; recorded with its reason.
        """
        with self.exclusive:
            begun, epoch = self._begin(committed_epoch, periodic=periodic)
            if isinstance(begun, Refusal) or epoch is None:
                return begun if isinstance(begun, Refusal) else Refusal.NO_COMMITTED_EPOCH
            outcome = self._outcome(_Attempt(begun, epoch, _now_ms(), _monotonic_ms()))
            self._clean()
        self.listeners.call()
        if isinstance(outcome, AbortedCheckpoint):
            raise CheckpointAbortedError(
                f"query {self._query_id}, chk-{begun}, epoch {epoch}: {outcome.message}",
                outcome.reason,
            )
        return outcome

    def record_abort(self, aborted: AbortedCheckpoint) -> None:
        """Remember what was given up, and keep it for the listeners if it is a checkpoint."""
        self._aborted.append(aborted)
        if aborted.checkpoint_id is not None:
            self.listeners.note(aborted)

    def close(self) -> None:
        """Take no more checkpoints."""
        with self.exclusive:
            with self._guard:
                self._machine.shut_down()
            self._attempts.put(None)
            self._store.close()

    def discard_all(self) -> None:
        """Remove all checkpoints and the files that only they need; not the state.

        Waits for savepoints that are under way.
        """
        self.hold.wait()
        with self.exclusive:
            self._files.discard_all()
            self._store.close()

    def _begin(
        self, committed_epoch: Callable[[], int | None], *, periodic: bool
    ) -> tuple[int | Refusal, int | None]:
        try:
            epoch = committed_epoch()
        except OSError as exc:
            with self._guard:
                # It was due, and is due again after another interval.
                self._machine.trigger(None, self._subtasks, periodic=periodic)
            raise CheckpointAbortedError(
                f"query {self._query_id}: its committed epochs cannot be listed ({exc}); see to "
                "the checkpointLocation",
                AbortReason.STORAGE_FAILED,
            ) from exc
        with self._guard:
            return self._machine.trigger(epoch, self._subtasks, periodic=periodic), epoch

    def _outcome(self, attempt: _Attempt) -> CompletedCheckpoint | AbortedCheckpoint:
        """Wait for an attempt to end or to expire."""
        self._begin_work(attempt)
        checkpoint_id = attempt.checkpoint_id
        while attempt.outcome is None:
            with self._guard:
                expires_in_ms = self._machine.expires_in_ms(checkpoint_id)
                has_expired = checkpoint_id in self._machine.expire()
                if has_expired:
                    message = f"expired while {attempt.step}"
                    self._give_up(attempt, AbortReason.EXPIRED, message)
            if has_expired:
                self._cancel_step()
            attempt.ended.wait(expires_in_ms / 1000)
        return attempt.outcome

    def _cancel_step(self) -> None:
        try:
            self._cancel()
        except Exception as exc:  # no error of Spark's may keep it from being given up
            logger.warning("query %s: what has expired goes on: %s", self._query_id, exc)

    def _begin_work(self, attempt: _Attempt) -> None:
        if self._worker is None:
            self._worker = threading.Thread(
                target=self._work, name=f"pyspark_ckpt checkpoints {self._query_id}", daemon=True
            )
            self._worker.start()
        self._attempts.put(attempt)

    def _work(self) -> None:
        while (attempt := self._attempts.get()) is not None:
            try:
                self._run_steps(attempt)
            except Exception as exc:
                logger.debug("chk-%s failed", attempt.checkpoint_id, exc_info=True)
                self._fail(attempt, exc)
            attempt.ended.set()

    def _run_steps(self, attempt: _Attempt) -> None:
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

    def _complete(self, attempt: _Attempt, metadata: CheckpointMetadata) -> None:
        checkpoint_id = attempt.checkpoint_id
        with self._guard:
            if self._machine.published(checkpoint_id) is None:
                return  # it expired: the next start decides
            completed = CompletedCheckpoint.of(checkpoint_id, self.path(checkpoint_id), metadata)
            attempt.outcome = completed
        self.listeners.note(completed)
        logger.info(
            "query %s: chk-%s completed, epoch %s, %s bytes",
            self._query_id, checkpoint_id, completed.epoch, completed.size_bytes,
        )  # fmt: skip

    def _fail(self, attempt: _Attempt, error: Exception) -> None:
        reason = reason_of(error)
        message = error_text(error)
        with self._guard:
            state = self._machine.state_of(attempt.checkpoint_id)
            # A fenced one is known not to be complete.
            if state is CheckpointState.PUBLISHING and reason is not AbortReason.FENCED:
                reason = AbortReason.METADATA_UNCERTAIN
                message = f"{message}; it may be there: nothing is deleted, the next start reads it"
            if self._machine.abort(attempt.checkpoint_id, reason):
                self._give_up(attempt, reason, message)

    def _give_up(self, attempt: _Attempt, reason: AbortReason, message: str) -> None:
        aborted = AbortedCheckpoint(
            kind="checkpoint",
            checkpoint_id=attempt.checkpoint_id,
            epoch=attempt.epoch,
            triggered_at_ms=attempt.triggered_at_ms,
            duration_ms=attempt.duration_ms,
            reason=reason,
            message=message,
        )
        attempt.outcome = aborted
        self.record_abort(aborted)

    def _clean(self) -> None:
        with self._guard:
            completed = self._machine.ids(CheckpointState.COMPLETED)
            uncertain = self._machine.ids(CheckpointState.UNCERTAIN)
            retained_from = self._machine.retained_from()
            # What was released may be needed by others: what goes is found from what stays.
            self._machine.take_released()
        with self.hold.cleaning() as may_clean:
            if may_clean:
                self._files.clean(completed, uncertain, retained_from)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
