"""Takes a query's checkpoints, and stops the query if too many fail or another driver runs it."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.checkpoint.epoch_race import EpochRace, Standing
from pyspark_ckpt.checkpoint.machine import Refusal
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CheckpointAbortedError, FencedError
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.log_fields import fields_of, library_logger, log_fields
from pyspark_ckpt.query.stopping.failure import why_to_stop
from pyspark_ckpt.query.stopping.run_state import RunState

logger = library_logger(__name__)

_FENCES_TAKEN_BACK = 3
"""How often one checkpoint begins again after this driver took its fence back."""


class CheckpointTaker:
    """Takes the checkpoints of one run of a query; any thread may take one.

    If more than `tolerable` checkpoints in a row fail, the run is stopped.
    """

    def __init__(
        self,
        runner: CheckpointRunner,
        race: EpochRace,
        state: RunState,
        committed_epoch: Callable[[], int | None],
        tolerable: int,
    ) -> None:
        self._runner = runner
        self._race = race
        self._state = state
        self._committed_epoch = committed_epoch
        self._tolerable = tolerable

    def take(
        self, *, periodic: bool, waits_for_listeners: bool = True
    ) -> CompletedCheckpoint | Refusal:
        """Take a checkpoint of the newest committed epoch; as :meth:`CheckpointRunner.take`.

        If more checkpoints failed than the settings tolerate, the query was stopped before
        CheckpointAbortedError is raised.
        """
        return self._take(_FENCES_TAKEN_BACK, periodic=periodic, waits=waits_for_listeners)

    def take_periodic(self) -> None:
        """Take a checkpoint if one is due; in the coordinator's thread, where listeners may wait.

        A failure is logged.
        """
        try:
            self.take(periodic=True, waits_for_listeners=False)
        except Exception as exc:
            with log_fields(**fields_of(exc)):
                logger.warning("checkpoint aborted: %s", exc)
                logger.debug("traceback of the aborted checkpoint", exc_info=True)

    def check_commits(self) -> None:
        """Raise FencedError if another driver runs the query.

        That driver may hold an older lease: this one may have been paused before it took its own.
        So the newest epoch has to be this driver's too, unless nobody has committed one since this
        driver's start.
        """
        self._runner.lease.check()
        self._check_not_lost()

    def take_back_if_fenced(self) -> None:
        """Take back the fence from a driver that was started later and commits no epoch.

        FencedError means that the query was started again in this process, or that a driver with an
        older lease commits epochs. OSError means that it is unknown whether this driver has the
        fence.
        """
        try:
            self._runner.lease.check()
        except FencedError:
            if self._race.standing() is Standing.OURS and not self._take_over():
                raise
        else:
            self._check_not_lost()

    def _check_not_lost(self) -> None:
        if self._race.is_lost:
            raise FencedError(
                f"query {self._runner.query_id}: another driver has committed its newest epoch. "
                "Run a query once at a time: stop this one"
            )

    def _take(self, fences: int, *, periodic: bool, waits: bool) -> CompletedCheckpoint | Refusal:
        try:
            return self._runner.take(
                self._committed_epoch, periodic=periodic, waits_for_listeners=waits
            )
        except CheckpointAbortedError as exc:
            if exc.reason != AbortReason.FENCED:
                self._stop_if_intolerable(exc)
                raise
            standing = self._race.standing()
            if standing is Standing.ANOTHERS:
                self._stop_if_intolerable(exc)
            if standing is not Standing.OURS or not fences or not self._take_over():
                raise
        except KeyboardInterrupt:
            raise  # the user interrupted the wait, and the query still runs
        except BaseException as exc:
            self._state.cannot_continue(exc)
            raise
        return self._take(fences - 1, periodic=False, waits=waits)

    def _take_over(self) -> bool:
        has_fence = self._runner.take_over()
        if has_fence:
            logger.warning(
                "query %s: another driver was started for it and has committed no epoch. This "
                "driver continues; stop the other one",
                self._runner.query_id,
            )
        return has_fence

    def _stop_if_intolerable(self, last: CheckpointAbortedError) -> None:
        failure = why_to_stop(
            self._runner.query_id,
            last,
            self._tolerable,
            is_exceeded=self._runner.tolerance_is_exceeded,
        )
        if failure is not None:
            self._state.stop(failure)
