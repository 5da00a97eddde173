"""The runner: does for the state machine what its checkpoints need done, one at a time.

Whoever takes a checkpoint waits for it, at most for its timeout. The steps run in a thread of
their own: one that hangs is given up without it, and cannot publish any more when it goes on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.attempt_thread import Attempt, AttemptThread, Work
from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles, CleaningHold
from pyspark_ckpt.checkpoint.machine import CheckpointMachine, CheckpointState, Refusal, Subtask
from pyspark_ckpt.checkpoint.time_limit import expired, in_time
from pyspark_ckpt.checkpoint.tolerance import Patience, patience_ms
from pyspark_ckpt.clock import monotonic_ms, now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, FencedError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.listener import Listeners
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.storage.retrying import retried
from pyspark_ckpt.stores.open import claim_store

ABORTED_KEPT = 1000
"""How many aborted checkpoints are remembered."""

logger = logging.getLogger(__name__)


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
        Gathers a committed epoch; called in the thread of the steps, may take its time.
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
        self.query_id = query_id
        self._subtasks = subtasks
        self._cancel = cancel
        self._timeout_ms = settings.timeout_ms
        self._cleaning = Patience("cleaning", patience_ms(settings), monotonic_ms)
        self._store = claim_store(storage, settings, query_id)
        self._files = CheckpointFiles(storage, self._store)
        self._aborted: deque[AbortedCheckpoint] = deque(maxlen=ABORTED_KEPT)
        self._machine = CheckpointMachine(
            query_id,
            settings,
            monotonic_ms,
            self._store.last_id(),
            {number: self._files.epoch_of(number) for number in self._store.ids()},
        )
        # The machine is asked by the thread that waits and by the one that works.
        self._guard = threading.Lock()
        self._attempts = AttemptThread(
            query_id, self._machine, self._guard, self._store, self._files, snapshot, self._note
        )

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

    def take_over(self) -> None:
        """Take back the fence from a driver that was started later.

        Raises
        ------
        OSError
            If it is not known to have worked.
        """
        with self.exclusive:
            self._store.claim()
            last_id = self._store.last_id()
            with self._guard:
                self._machine.note_used_id(last_id)

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
        self,
        committed_epoch: Callable[[], int | None],
        *,
        periodic: bool,
        waits_for_listeners: bool = True,
    ) -> CompletedCheckpoint | Refusal:
        """Take a checkpoint of the newest committed epoch and clean up behind it.

        Parameters
        ----------
        committed_epoch
            Looks for that epoch.
        periodic
            Whether it waits for the interval.
        waits_for_listeners
            Whether the listeners have heard of it on return.

        Raises
        ------
        CheckpointAbortedError
            If it was given up; recorded with its reason.
        OSError, CkptError
            If nothing could be cleaned for longer than checkpoints may fail.
        """
        with self.exclusive:
            begun, epoch = self._begin(committed_epoch, periodic=periodic)
            if isinstance(begun, Refusal) or epoch is None:
                return begun if isinstance(begun, Refusal) else Refusal.NO_COMMITTED_EPOCH
            attempt = Attempt(begun, epoch, now_ms(), monotonic_ms())
            outcome = self._outcome(attempt)
            # Behind a step that hangs nothing is cleaned: it may be writing.
            cleaning = self._clean() if attempt.ended.is_set() else Work(_nothing)
        self.listeners.call()
        if waits_for_listeners:
            self.listeners.wait(self._timeout_ms / 1000)
        self._judge(cleaning)
        if isinstance(outcome, AbortedCheckpoint):
            raise CheckpointAbortedError(
                f"query {self.query_id}, chk-{begun}, epoch {epoch}: {outcome.message}",
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
            self._attempts.close()
            self._store.close()

    def discard_all(self) -> None:
        """Remove all checkpoints and the files that only they need; not the state.

        Waits for savepoints that are under way.
        """
        self.hold.wait(self._timeout_ms / 1000)
        with self.exclusive:
            self._files.discard_all()
            self._store.close()

    def _begin(
        self, committed_epoch: Callable[[], int | None], *, periodic: bool
    ) -> tuple[int | Refusal, int | None]:
        try:
            epoch = in_time(
                "look for committed epochs", self._timeout_ms, lambda: retried(committed_epoch)
            )
        except (OSError, CheckpointAbortedError) as exc:
            with self._guard:
                # It was due, and is due again after another interval.
                self._machine.trigger(None, self._subtasks, periodic=periodic)
                self._machine.note_failure()
            raise CheckpointAbortedError(
                f"query {self.query_id}: its committed epochs cannot be listed ({exc}); see to "
                "the checkpointLocation",
                AbortReason.STORAGE_FAILED,
            ) from exc
        with self._guard:
            return self._machine.trigger(epoch, self._subtasks, periodic=periodic), epoch

    def _outcome(self, attempt: Attempt) -> CompletedCheckpoint | AbortedCheckpoint:
        """Wait for an attempt to end or to expire."""
        self._attempts.begin(attempt)
        checkpoint_id = attempt.checkpoint_id
        while attempt.outcome is None:
            with self._guard:
                expires_in_ms = self._machine.expires_in_ms(checkpoint_id)
                has_expired = checkpoint_id in self._machine.expire()
                if has_expired:
                    message = f"expired while {attempt.step}"
                    self._note(attempt.give_up(AbortReason.EXPIRED, message))
                elif attempt.ended.is_set() and attempt.outcome is None:
                    self._machine.abort(checkpoint_id, AbortReason.FAILED)
                    self._note(attempt.give_up(AbortReason.FAILED, "its steps have no result"))
            if has_expired:
                self._cancel_step()
            attempt.ended.wait(expires_in_ms / 1000)
        return attempt.outcome

    def _note(self, outcome: CompletedCheckpoint | AbortedCheckpoint) -> None:
        if isinstance(outcome, AbortedCheckpoint):
            self.record_abort(outcome)
        else:
            self.listeners.note(outcome)

    def _cancel_step(self) -> None:
        try:
            self._cancel()
        except Exception as exc:  # no error of Spark's may keep it from being given up
            logger.warning("query %s: what has expired goes on: %s", self.query_id, exc)

    def _clean(self) -> Work:
        """Clean up behind the newest checkpoint, in the thread of the steps."""
        cleaning = Work(self._clean_files)
        self._attempts.do(cleaning)
        if not cleaning.ended.wait(self._timeout_ms / 1000):
            # The next checkpoints wait for it and expire: they must not clean at the same time.
            cleaning.error = expired("cleaning", self._timeout_ms)
        return cleaning

    def _judge(self, cleaning: Work) -> None:
        if cleaning.error is None:
            self._cleaning.succeeded()
        elif isinstance(cleaning.error, (OSError, CkptError)):
            self._cleaning.failed(cleaning.error)
        else:
            raise cleaning.error

    def _clean_files(self) -> None:
        with self._guard:
            completed = self._machine.ids(CheckpointState.COMPLETED)
            uncertain = self._machine.ids(CheckpointState.UNCERTAIN)
            retained_from = self._machine.retained_from()
            # What was released may be needed by others: what goes is found from what stays.
            self._machine.take_released()
        with self.hold.cleaning() as may_clean:
            if may_clean:
                with suppress(FencedError):  # the next checkpoint raises it
                    self._files.clean(completed, uncertain, retained_from)


def _nothing() -> None:
    pass
