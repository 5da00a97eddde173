"""Takes a query's checkpoints one at a time: reserve an id, gather the epoch, publish, clean up.

A caller of :meth:`CheckpointRunner.take` waits for the checkpoint, at most for its timeout. The
steps run in a separate thread. A step that hangs is given up without its thread, and cannot
publish the checkpoint when it continues.

The caller may abort the checkpoint while a step runs. The steps then end with an error that nobody
waits for, and publish nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial

from pyspark_ckpt.abort_reason import AbortReason, reason_of
from pyspark_ckpt.checkpoint.cleaning import CheckpointFiles, CleaningHold
from pyspark_ckpt.checkpoint.machine import CheckpointMachine, CheckpointState, Refusal, Subtask
from pyspark_ckpt.checkpoint.time_limit import CallThread, expired, has_ended, in_time
from pyspark_ckpt.clock import monotonic_ms, now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError, FencedError
from pyspark_ckpt.formats.metadata import CheckpointMetadata, EpochContents, metadata_of
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.listener import Listeners
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.log_fields import keep_fields, library_logger, log_fields
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.spark.jobs import error_text
from pyspark_ckpt.storage.fenced import Lease
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.storage.retrying import retried
from pyspark_ckpt.storage.servers.remote import RequestMeter
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import Fence

ABORTED_KEPT = 1000
"""How many aborted checkpoints are remembered."""

logger = library_logger(__name__)
SHORTEST_MS = 60_000


class CheckpointRunner:
    """Takes the checkpoints of one query and cleans up after them; knows no Spark.

    `exclusive` is held while a checkpoint is under way or files are cleaned. A thread that copies
    files has a `hold`. It is that of the run before, whose savepoint may still be copied; ``None``
    for a new one. `listeners` are called for each checkpoint that ends. `fence` says whether
    another run of the query has begun.

    `gather` is called in the thread of the steps and may take its time, `cancel` is called at the
    timeout, `renew_copies` at a take-over, and `forget_copies` with the paths of files that were
    cleaned. `is_present` returns whether the query has committed a checkpoint's epoch: Spark loses
    its newest epochs in a power loss, and runs others with their numbers. `store` is given if the
    start has claimed it; otherwise it is claimed now.
    """

    def __init__(
        self,
        query_id: str,
        subtasks: frozenset[Subtask],
        storage: Storage,
        settings: Settings,
        gather: Callable[[int], EpochContents],
        cancel: Callable[[], None] = lambda: None,
        renew_copies: Callable[[], None] = lambda: None,
        is_present: Callable[[CheckpointMetadata], bool] = lambda _: True,
        forget_copies: Callable[[Sequence[str]], None] = lambda _: None,
        store: CompletedCheckpointStore | None = None,
        hold: CleaningHold | None = None,
    ) -> None:
        self.exclusive = threading.Lock()
        self.hold = hold or CleaningHold()
        self.listeners = Listeners()
        self.query_id = query_id
        self._cancel = cancel
        self._renew_copies = renew_copies
        self._timeout_ms = settings.timeout_ms
        self._cleaning = Patience("cleaning", patience_ms(settings), monotonic_ms)
        self._requests: dict[int, dict[str, int]] = {}
        self.fence = Fence(storage, settings, query_id, store)
        self._store = self.fence.store
        self._files = CheckpointFiles(storage, self._store, forget_copies)
        self._aborted: deque[AbortedCheckpoint] = deque(maxlen=ABORTED_KEPT)
        self._machine = CheckpointMachine(
            subtasks,
            settings,
            monotonic_ms,
            self._store.last_id(),
            self._files.present_epochs(query_id, is_present),
        )
        # The thread that waits and the thread of the steps both change the machine.
        self._guard = threading.Lock()
        self._gather = gather
        self._new_requests = RequestMeter(storage.requests).new
        self._thread = self._new_thread()

    def _new_thread(self) -> CallThread:
        return CallThread(f"pyspark_ckpt checkpoints {self.query_id}")

    @property
    def tolerance_is_exceeded(self) -> bool:
        """Whether more checkpoints in a row have failed than the settings tolerate."""
        with self._guard:
            return self._machine.tolerance_is_exceeded

    @property
    def lease(self) -> Lease:
        """The right to run the query, until another driver or another start here takes it over."""
        return self._store

    def take_over(self) -> bool:
        """Take back the fence from a driver that was started later.

        It returns false, and takes nothing back, if the query was started again in this process.
        ``OSError`` or ``ConfigurationError`` means that it is unknown whether the take-over worked.
        """
        with self.exclusive:
            # The other driver may be about to delete the copies that it found.
            if not self.fence.take_over(self._renew_copies):
                return False
            last_id = self._store.last_id()
            with self._guard:
                self._machine.note_used_id(last_id)
            return True

    def due_in_ms(self) -> int:
        """Return the time until the next periodic checkpoint, 0 if it is due."""
        with self._guard:
            return self._machine.due_in_ms()

    def aborted(self) -> list[AbortedCheckpoint]:
        """Return the aborted checkpoints and savepoints, oldest first."""
        return list(self._aborted)

    def newest(self) -> CompletedCheckpoint | None:
        """Return the newest completed checkpoint."""
        with self._guard:
            newest = self._machine.newest_completed()
        metadata = None if newest is None else self._files.read(newest)
        if newest is None or not isinstance(metadata, CheckpointMetadata):
            return None
        return CompletedCheckpoint.of(
            newest, self.path(newest), metadata, self._requests.get(newest)
        )

    def covers(self, epoch: int) -> bool:
        """Return whether the newest checkpoint has a committed epoch, or a later one."""
        with self._guard:
            return self._machine.covers(epoch)

    def retained(self) -> list[tuple[int, CheckpointMetadata | CkptError]]:
        """Return the retained checkpoints with their ids, oldest first.

        A checkpoint that cannot be read is represented by the error. One that is removed during the
        call is left out.
        """
        found = [(number, self._files.read(number)) for number in self._store.ids()]
        return [
            (number, each)
            for number, each in found
            if isinstance(each, CheckpointMetadata) or self._store.is_complete(number)
        ]

    def metadata_of(self, checkpoint_id: int) -> CheckpointMetadata | None:
        """Return the metadata of a checkpoint, ``None`` if it cannot be read.

        If this driver took the checkpoint, the metadata has the counts of its handles.
        """
        metadata = self._files.read(checkpoint_id)
        return metadata if isinstance(metadata, CheckpointMetadata) else None

    def requests_of(self, checkpoint_id: int) -> dict[str, int] | None:
        """Return the requests that a checkpoint sent, ``None`` if another driver took it."""
        return self._requests.get(checkpoint_id)

    def is_under_way(self) -> bool:
        """Return whether a checkpoint is under way."""
        with self._guard:
            return self._machine.pending() is not None

    def last_id(self) -> int:
        """Return the highest id of any attempt so far."""
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
        """Take a checkpoint of the newest committed epoch and clean up after it.

        A returned checkpoint is durable; a ``Refusal`` says why none was triggered. If the
        checkpoint was aborted, it is recorded with its reason, and ``CheckpointAbortedError`` is
        raised. Errors of cleaning are raised only after cleaning has failed for longer than
        checkpoints may fail.
        """
        with log_fields(query=self.query_id):
            try:
                ended = self._take(committed_epoch, periodic=periodic)
            except CheckpointAbortedError:  # it could not even be triggered
                self._call_listeners(waits=waits_for_listeners)
                raise
        if isinstance(ended, Refusal):
            return ended
        attempt, outcome, cleaning_error = ended
        with self._fields_of(attempt):
            self._call_listeners(waits=waits_for_listeners)
            self._judge(cleaning_error)
            return self._ended(attempt, outcome)

    def _take(
        self, committed_epoch: Callable[[], int | None], *, periodic: bool
    ) -> Refusal | tuple[Attempt, CompletedCheckpoint | AbortedCheckpoint, BaseException | None]:
        """Return a checkpoint that has ended, with the error of the cleaning after it."""
        with self.exclusive:
            attempt = self._trigger(committed_epoch, periodic=periodic)
            if isinstance(attempt, Refusal):
                return attempt
            with self._fields_of(attempt):
                outcome, is_over = self._outcome(attempt)
                # A step that hangs may be writing: nothing is cleaned then.
                return attempt, outcome, self._clean() if is_over else None

    def _fields_of(self, attempt: Attempt) -> AbstractContextManager[None]:
        return log_fields(
            query=self.query_id, checkpoint=attempt.checkpoint_id, epoch=attempt.epoch
        )

    def _call_listeners(self, *, waits: bool) -> None:
        self.listeners.call()
        if waits:
            self.listeners.wait(self._timeout_ms / 1000)

    def _ended(
        self, attempt: Attempt, outcome: CompletedCheckpoint | AbortedCheckpoint
    ) -> CompletedCheckpoint:
        """Return or raise what became of a checkpoint."""
        where = f"query {self.query_id}, chk-{attempt.checkpoint_id}, epoch {attempt.epoch}"
        if isinstance(outcome, AbortedCheckpoint):
            error = CheckpointAbortedError(f"{where}: {outcome.message}", outcome.reason)
            keep_fields(error)
            raise error
        sent = outcome.requests or {}
        self._note_requests(attempt.checkpoint_id, sent)
        logger.info(
            "%s: completed, %s bytes; requests to the storage since the one before: %s",
            where,
            outcome.size_bytes,
            ", ".join(f"{number} {kind}" for kind, number in sent.items()) or "none",
        )
        return outcome

    def _note_requests(self, checkpoint_id: int, sent: dict[str, int]) -> None:
        """Remember a checkpoint's requests for as long as the checkpoint is retained."""
        with self._guard:
            retained = self._machine.ids(CheckpointState.COMPLETED)
        known = {**self._requests, checkpoint_id: sent}
        self._requests = {number: known[number] for number in retained if number in known}

    def record_abort(self, aborted: AbortedCheckpoint) -> None:
        """Remember an aborted checkpoint or savepoint; listeners hear of a checkpoint only."""
        self._aborted.append(aborted)
        if aborted.kind is CheckpointKind.CHECKPOINT:
            self.listeners.note(aborted)

    def close(self) -> None:
        """Take no more checkpoints."""
        with self.exclusive:
            with self._guard:
                self._machine.shut_down()
            self._thread.close()
            self._store.close()

    def reopen(self) -> None:
        """Take checkpoints again, of an epoch that was run after the query's end."""
        with self.exclusive:
            self._thread = self._new_thread()
            with self._guard:
                self._machine.reopen()

    def discard_all(self) -> None:
        """Remove all checkpoints and the files that only they need; the state stays.

        Waits for savepoints that are under way.
        """
        self.hold.wait(self._timeout_ms / 1000)
        with self.exclusive:
            try:
                self._files.discard_all()
            finally:
                self._store.close()

    def _trigger(
        self, committed_epoch: Callable[[], int | None], *, periodic: bool
    ) -> Attempt | Refusal:
        began_at_ms, began_ms = now_ms(), monotonic_ms()
        try:
            epoch = in_time(
                "look for committed epochs", self._timeout_ms, lambda: retried(committed_epoch)
            )
        except (OSError, CheckpointAbortedError) as exc:
            with self._guard:
                # It was due, and is due again after another interval.
                self._machine.trigger(None, periodic=periodic)
                self._machine.note_failure()
            message = (
                f"its committed epochs cannot be listed ({exc}); check that the checkpointLocation "
                "can be read"
            )
            reason = AbortReason.STORAGE_FAILED
            self.record_abort(
                AbortedCheckpoint(
                    kind=CheckpointKind.CHECKPOINT,
                    checkpoint_id=None,
                    epoch=None,
                    triggered_at_ms=began_at_ms,
                    duration_ms=monotonic_ms() - began_ms,
                    reason=reason,
                    message=message,
                )
            )
            raise CheckpointAbortedError(f"query {self.query_id}: {message}", reason) from exc
        with self._guard:
            triggered = self._machine.trigger(epoch, periodic=periodic)
        if isinstance(triggered, Refusal):
            return triggered
        assert epoch is not None  # else it would be refused
        return Attempt(triggered, epoch, now_ms(), monotonic_ms())

    def _outcome(self, attempt: Attempt) -> tuple[CompletedCheckpoint | AbortedCheckpoint, bool]:
        """Wait for the steps to end or to expire; return also whether they have ended."""
        try:
            steps = self._thread.submit(partial(self._publish, attempt))
            while not has_ended(steps, self._expires_in_ms()):
                with self._guard:
                    aborted = self._expire(attempt)
                if aborted is not None:
                    self._cancel_step()
                    return aborted, steps.done()
        except BaseException as exc:  # nobody waits any more, and the next one needs its turn
            reason, message = AbortReason.INTERRUPTED, "its caller was interrupted"
            if isinstance(exc, Exception):
                reason, message = AbortReason.FAILED, error_text(exc)
            with self._guard:
                if self._machine.abort(attempt.checkpoint_id, reason):
                    self._aborted_as(attempt, reason, message)
            self._cancel_step()
            raise
        error = steps.exception()
        return (steps.result() if error is None else self._failed(attempt, error)), True

    def _publish(self, attempt: Attempt) -> CompletedCheckpoint:
        """Take a checkpoint that was triggered, in the thread of the steps; durable on return.

        It raises ``CheckpointAbortedError`` if a subtask has not acknowledged the checkpoint, or if
        the caller has aborted it while it was under way. Errors of the storage, the store and
        `gather` pass through.
        """
        checkpoint_id = attempt.checkpoint_id
        with self._guard:
            if self._machine.state_of(checkpoint_id) is not CheckpointState.COLLECTING:
                raise _aborted_before(attempt)  # it expired before its turn

        attempt.step = "making its directory"
        try:
            self._store.reserve(checkpoint_id)
        except FileExistsError:
            last_id = self._store.last_id()
            with self._guard:
                self._machine.note_used_id(last_id)
            raise

        attempt.step = "gathering handles, offsets and source logs"
        metadata = metadata_of(
            self._gather(attempt.epoch),  # which checks that every file is there
            CheckpointKind.CHECKPOINT,
            checkpoint_id=checkpoint_id,
            triggered_at_ms=attempt.triggered_at_ms,
            completed_at_ms=attempt.triggered_at_ms + attempt.duration_ms,
        )
        self._store.check_reserved(checkpoint_id)

        # The handle that Spark committed for a subtask is its acknowledgement.
        acknowledged = [
            Subtask(operator.uid, number)
            for operator in metadata.operators
            for number in range(operator.parallelism)  # a subtask without rows has no handle
        ]
        with self._guard:
            missing = self._machine.acknowledge(checkpoint_id, acknowledged)
            if missing:
                raise CheckpointAbortedError(
                    f"no acknowledgement of {', '.join(f'{s.uid}/{s.number}' for s in missing)}",
                    AbortReason.NOT_ACKNOWLEDGED,
                )
            if not self._machine.publish(checkpoint_id):
                raise _aborted_before(attempt)
            self._files.remember(checkpoint_id, metadata)
            attempt.step = "writing its _metadata, which may have been written: nothing is deleted"

        self._store.add(checkpoint_id, metadata)

        # Made first: nothing may fail once the machine knows that the checkpoint is complete.
        completed = CompletedCheckpoint.of(
            checkpoint_id, self.path(checkpoint_id), metadata, self._new_requests()
        )
        with self._guard:
            if not self._machine.published(checkpoint_id):
                raise _aborted_before(attempt)  # the next start decides
        self.listeners.note(completed)
        return completed

    def _expires_in_ms(self) -> int | None:
        with self._guard:
            return self._machine.expires_in_ms()

    def _expire(self, attempt: Attempt) -> AbortedCheckpoint | None:
        """Abort the checkpoint if its time is over, with the guard held."""
        if not self._machine.expire():
            return None
        return self._aborted_as(attempt, AbortReason.EXPIRED, f"expired while {attempt.step}")

    def _failed(self, attempt: Attempt, error: BaseException) -> AbortedCheckpoint:
        logger.debug("chk-%s failed", attempt.checkpoint_id, exc_info=error)
        reason = reason_of(error) if isinstance(error, Exception) else AbortReason.FAILED
        message = error_text(error)
        with self._guard:
            state = self._machine.state_of(attempt.checkpoint_id)
            # A fenced driver knows that its checkpoint is not complete.
            if state is CheckpointState.PUBLISHING and reason is not AbortReason.FENCED:
                reason = AbortReason.METADATA_UNCERTAIN
                message = f"{message}; it may be there: nothing is deleted, the next start reads it"
            self._machine.abort(attempt.checkpoint_id, reason)
            return self._aborted_as(attempt, reason, message)

    def _aborted_as(self, attempt: Attempt, reason: AbortReason, message: str) -> AbortedCheckpoint:
        """Record an abort and return it."""
        aborted = AbortedCheckpoint(
            kind=CheckpointKind.CHECKPOINT,
            checkpoint_id=attempt.checkpoint_id,
            epoch=attempt.epoch,
            triggered_at_ms=attempt.triggered_at_ms,
            duration_ms=attempt.duration_ms,
            reason=reason,
            message=message,
        )
        self.record_abort(aborted)
        return aborted

    def _cancel_step(self) -> None:
        try:
            self._cancel()
        except Exception as exc:  # an error of Spark does not undo the abort
            logger.warning("query %s: an expired step continues: %s", self.query_id, exc)

    def _clean(self) -> BaseException | None:
        """Clean up after the newest checkpoint; return the error."""
        cleaning = self._thread.submit(self._clean_files)
        if not has_ended(cleaning, self._timeout_ms):
            # The next checkpoints wait for it and expire, so two never clean at once.
            return expired("cleaning", self._timeout_ms)
        return cleaning.exception()

    def _clean_files(self) -> None:
        with self._guard:
            completed = self._machine.ids(CheckpointState.COMPLETED)
            uncertain = self._machine.ids(CheckpointState.UNCERTAIN)
            retained_from = self._machine.retained_from()
        with self.hold.cleaning() as may_clean:
            if may_clean:
                with suppress(FencedError):  # the next checkpoint raises it
                    self._files.clean(completed, uncertain, retained_from)

    def _judge(self, cleaning_error: BaseException | None) -> None:
        if cleaning_error is None:
            self._cleaning.succeeded()
        elif isinstance(cleaning_error, (OSError, CkptError)):
            self._cleaning.failed(cleaning_error)
        else:
            raise cleaning_error


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


def _aborted_before(attempt: Attempt) -> CheckpointAbortedError:
    return CheckpointAbortedError(
        f"chk-{attempt.checkpoint_id} was aborted before", AbortReason.EXPIRED
    )


def patience_ms(settings: Settings) -> int:
    """Return how long cleaning or requests may fail: as long as checkpoints may fail."""
    tolerable = settings.tolerable_failed_checkpoints + 1
    return max(SHORTEST_MS, tolerable * settings.interval_ms)


class Patience:
    """Counts the time that repeated work fails, and raises the error after the limit.

    The log has equal failures in a row once, and an entry when the work succeeds again.

    `clock` returns milliseconds that never go back.
    """

    def __init__(self, what: str, limit_ms: int, clock: Callable[[], int]) -> None:
        self._what = what
        self._limit_ms = limit_ms
        self._clock = clock
        self._failing_since_ms: int | None = None
        self._logged: str | None = None

    def succeeded(self) -> None:
        """Note a success: the next failure is the first one."""
        if self._failing_since_ms is not None:
            seconds = (self._clock() - self._failing_since_ms) / 1000
            logger.warning("%s succeeds again after %.1f s", self._what, seconds)
        self._failing_since_ms = self._logged = None

    def failed(self, error: Exception) -> None:
        """Note a failure; raise it if the work has failed for too long."""
        now_ms = self._clock()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        text = f"{type(error).__name__}: {error}"
        if text != self._logged:
            logger.warning("%s failed, and is tried again: %s", self._what, text)
            self._logged = text
        if now_ms - self._failing_since_ms >= self._limit_ms:
            raise error
