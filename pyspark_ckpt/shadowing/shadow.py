"""The shadow of a running query: two forks on its epochs, and the comparison of both."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CkptError, ConfigurationError, SessionEndedError
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.log_fields import library_logger, log_fields
from pyspark_ckpt.restarting.record import InPlaceRestart
from pyspark_ckpt.restarting.shadow_actions import ShadowActions, forget_shadow, note_shadow
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.shadowing.followed import FollowedEpoch, FollowedQuery
from pyspark_ckpt.shadowing.fork import Fork
from pyspark_ckpt.shadowing.output import ComparedOutput
from pyspark_ckpt.shadowing.report import OUTPUT, Rules, ShadowDifference, ShadowReport, Tally
from pyspark_ckpt.shadowing.states import differing_entries
from pyspark_ckpt.storage.open import Storage

_POLL_S = 0.2
_REMOTE_POLL_S = 2.0
_DELETIONS = 5
logger = library_logger(__name__)


class FollowedRun(Protocol):
    """The query that a shadow follows."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def isActive(self) -> bool:
        """Whether it runs."""


class Promoter(Protocol):
    """Lets the candidate take the query over."""

    def __call__(self, directory: str | None, /) -> Promotion:
        """Stop the query with a savepoint, and start the candidate in its place."""


class Shadow:
    """A candidate program that runs next to a query and is compared with it.

    :func:`pyspark_ckpt.shadow` returns it. A thread of the driver runs it. As a context manager, it
    is discarded at the end of the block.

    Parameters
    ----------
    spark : SparkSession
        A session of the shadow's own, for the comparison.
    query : FollowedRun
        The query that is followed.
    followed : FollowedQuery
        Its epochs.
    forks : tuple of Fork
        The original and the candidate.
    keys : list of str
        The columns that name a row of the output.
    rules : Rules
        What counts as a difference, and when the shadow ends.
    directory : Storage
        All that the shadow makes.
    promoter : Promoter, optional
        Lets the candidate take the query over; ``None`` if the query is of another process.

    Examples
    --------
    >>> def agrees_for_ten_epochs(query, candidate):
    ...     with ckpt.shadow(query, candidate, epochs=10) as shadow:
    ...         shadow.awaitTermination()
    ...     return shadow.report.is_equal
    """

    def __init__(
        self,
        spark: SparkSession,
        query: FollowedRun,
        followed: FollowedQuery,
        forks: tuple[Fork, Fork],
        keys: list[str],
        rules: Rules,
        directory: Storage,
        promoter: Promoter | None = None,
    ) -> None:
        self._spark = spark
        self._query = query
        self._followed = followed
        self._forks = forks
        self._rules = rules
        self._directory = directory
        self._promoter = promoter
        self._tally = Tally(rules)
        self._output = ComparedOutput(
            spark,
            forks[0].output,
            forks[1].output,
            keys,
            rules,
            self._tally.note,
            self._tally.skip,
        )
        self._waiting: deque[FollowedEpoch] = deque()
        self._error: Exception | None = None
        self._is_discarded = False
        self._promoting = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"pyspark_ckpt shadow {query.id}", daemon=True
        )

    @property
    def report(self) -> ShadowReport:
        """What was compared so far, and what differs."""
        return self._tally.report()

    @property
    def isActive(self) -> bool:
        """Whether the shadow runs."""
        return self._thread.is_alive()

    @property
    def directory(self) -> str:
        """Where everything lies that the shadow makes, until it is discarded."""
        return self._directory.url

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the shadow ends by itself, or by a call.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait; by default without end.

        Returns
        -------
        bool
            Whether it has ended.

        Raises
        ------
        CkptError, StreamingQueryException
            If a program failed, or could not be followed.

        Examples
        --------
        >>> def has_ended(shadow: ckpt.Shadow) -> bool:
        ...     return shadow.awaitTermination(60)
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def exception(self) -> Exception | None:
        """Return what ended the shadow, ``None`` without an error.

        Returns
        -------
        Exception or None
            The error of the candidate, of the original or of the comparison.

        Examples
        --------
        >>> def failure(shadow: ckpt.Shadow) -> str:
        ...     return str(shadow.exception() or shadow.report.stopped)
        """
        return self._error

    def stop(self) -> None:
        """End the comparison after the epoch in progress; the report and the forks stay.

        Examples
        --------
        >>> def found_so_far(shadow: ckpt.Shadow) -> ckpt.results.ShadowReport:
        ...     shadow.stop()
        ...     return shadow.report
        """
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def discard(self) -> None:
        """End the comparison, and delete everything that the shadow made.

        Only the report stays, in this object. The query is not touched.

        Raises
        ------
        OSError
            If files cannot be deleted; call it again.

        Examples
        --------
        >>> def forget(shadow: ckpt.Shadow) -> None:
        ...     shadow.discard()
        """
        self.stop()
        for fork in self._forks:
            fork.close()
        delete_directory(self._directory)
        forget_shadow(self.directory)
        self._is_discarded = True

    def promote(
        self,
        directory: str | None = None,
        accept_differences: bool = False,  # noqa: FBT001, FBT002  # Flink's clients have flags
    ) -> Promotion:
        """Let the candidate take over from the query, between two epochs.

        The query stops after its epoch, and a savepoint of that epoch is taken. The candidate
        starts from there, at the query's location and into the query's sink. No row is lost or
        written twice. The query object, its `id` and its epoch numbers continue, as by
        :meth:`CheckpointedQuery.restartWith`. The shadow is discarded; a warning in the log says so
        if its files stay.

        If the candidate cannot start, the query runs as before and the savepoint is deleted.

        Parameters
        ----------
        directory : str, optional
            The parent of the savepoint; by default
            ``spark.ckpt.execution.checkpointing.savepoint-dir``. To go back, pass the savepoint to
            ``restoreFrom`` with the old program.
        accept_differences : bool
            Whether to take over although the report has differences, or not everything was
            compared.

        Returns
        -------
        Promotion
            Has the savepoint, the epoch and the pause.

        Raises
        ------
        ConfigurationError
            If there are differences, output or states were not compared as a whole, or no directory
            is given or configured. Also if the shadow was promoted or discarded, or the query was
            restarted with another program since it began. The query still runs.
        CheckpointAbortedError, PlanError, IncompatibleStateError, RestoreError, NotBuiltYetError
            If the candidate cannot take over. The query runs as before.
        FencedError
            If another driver runs the query.

        Examples
        --------
        >>> def deploy(shadow: ckpt.Shadow) -> str:
        ...     return shadow.promote("/savepoints").savepoint.path
        """
        with self._promoting:
            if self._promoter is None or self._is_discarded:
                raise ConfigurationError(
                    "this shadow cannot be promoted: it was promoted or discarded, or its query "
                    "runs in another process"
                )
            if not accept_differences:
                self._check_proven()
            self._tally.stop("promote was called")
            self.stop()  # it would slow the restart down
            if not accept_differences:
                self._check_proven()  # the epoch that ended last may have differed
            promotion = self._promoter(directory)
            self._promoter = None
            try:
                self.discard()
            except (CkptError, OSError) as exc:
                logger.warning(
                    "query %s: the candidate has taken over, but files of its shadow stay: %s",
                    self._query.id,
                    exc,
                )
            return promotion

    def _check_proven(self) -> None:
        """Check that all was compared and nothing differs."""
        report = self.report
        unproven = report.unproven
        if unproven is not None:
            raise ConfigurationError(
                f"the candidate was not proven: {unproven}. Wait for an epoch, name in shadow()'s "
                "`ignore` what need not be compared, or call promote(accept_differences=True)"
            )
        if not report.is_equal:
            raise ConfigurationError(
                f"the candidate differs from the original: {report!r}\nGive shadow() an `expected` "
                "function for what has to differ, or call promote(accept_differences=True)"
            )

    def __enter__(self) -> Shadow:
        """Return the shadow."""
        return self

    def __exit__(self, *_: object) -> None:
        """Discard the shadow."""
        if not self._is_discarded:
            self.discard()

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def _run(self) -> None:
        with log_fields(query=self._query.id):
            try:
                self._compare_until_over()
            except Exception as exc:
                self._error = error = self._with_reason(exc)
                self._tally.fail(f"it failed: {error}")
                logger.warning("the shadow of query %s failed: %s", self._query.id, error)

    def _with_reason(self, error: Exception) -> Exception:
        """Return an error, or the end of the session that it comes from."""
        why = session_of(self._spark).why_ended()
        if why is None:
            return error
        ended = SessionEndedError(
            f"the shadow of query {self._query.id} has ended, because {why}: start the query "
            "again, and begin the shadow again"
        )
        ended.__cause__ = error
        return ended

    def _compare_until_over(self) -> None:
        poll_s = _REMOTE_POLL_S if self._directory.is_remote else _POLL_S
        with ThreadPoolExecutor(2, "pyspark_ckpt shadow") as both:
            while not self._over.is_set():
                was_active = self._query.isActive
                # All that the query has committed, before Spark deletes the entries of the epochs.
                while (followed := self._followed.next()) is not None:
                    self._waiting.append(followed)
                if not self._waiting:
                    if not was_active:
                        self._tally.stop("the query has ended")
                        return
                    self._over.wait(poll_s)
                    continue
                self._epoch(self._waiting.popleft(), both)
                if (enough := self._tally.has_enough) is not None:
                    self._tally.stop(enough)
                    return
        self._tally.stop("stop was called")

    def _epoch(self, followed: FollowedEpoch, both: ThreadPoolExecutor) -> None:
        epoch = followed.epoch
        runs = [both.submit(fork.run, followed) for fork in self._forks]
        errors = [(fork, run.exception()) for fork, run in zip(self._forks, runs, strict=True)]
        for fork, error in errors:
            if error is not None:
                self._tally.fail(f"the {fork.name} failed in epoch {epoch}: {error}")
                raise error
        pairs, more = self._output.differing(epoch)
        for key, old, new in pairs:
            self._tally.add(ShadowDifference(epoch, OUTPUT, key, old, new))
        if more:
            self._tally.add_uncompared(OUTPUT, more)
        rows = self._output.rows(epoch)
        compares_states = (self.report.epochs + 1) % self._rules.states_every == 0
        if compares_states:
            self._compare_states(epoch, both)
        self._tally.end_epoch(epoch, rows, compared_states=compares_states)
        for fork in self._forks:
            self._directory.delete_directory(f"output/{fork.name}/epoch-{epoch}")

    def _compare_states(self, epoch: int, both: ThreadPoolExecutor) -> None:
        old, new = (run.result() for run in [both.submit(fork.checkpoint) for fork in self._forks])
        for place, pair in differing_entries(old, new, self._rules, self._tally.skip):
            key, before, after = pair
            self._tally.add_entry(ShadowDifference(epoch, place, key, before, after))


def begin_shadow(shadow: Shadow, checkpoints: str) -> Shadow:
    """Let a shadow begin to compare, and let requests to its query find it."""

    def promote(directory: str, /, *, accept_differences: bool) -> Savepoint:
        return shadow.promote(directory, accept_differences).savepoint

    note_shadow(checkpoints, shadow.directory, ShadowActions(shadow.discard, promote))
    shadow._thread.start()  # noqa: SLF001  # its own module
    return shadow


def delete_directory(directory: Storage) -> None:
    """Delete what a shadow made; a task may still upload a file while it is deleted."""
    parent = directory.parent()
    for _ in range(_DELETIONS):
        with suppress(OSError, PySparkException):
            parent.delete_directory(directory.name)
        if directory.name not in parent.list():
            return
    raise OSError(f"{directory.url} cannot be deleted: delete it, or discard the shadow again")


def check_follows(query: FollowedRun) -> None:
    """Raise if a query does not run, so that there is nothing to follow."""
    if not query.isActive:
        raise CkptError(f"query {query.id} has ended: start it, and begin the shadow again")


@dataclass(frozen=True, slots=True)
class Promotion:
    """What :meth:`Shadow.promote` did.

    Parameters
    ----------
    savepoint : Savepoint
        Of the last epoch of the original program, to go back to.
    restart : InPlaceRestart
        The epoch, the number of subtasks before and after, and the pause.

    Examples
    --------
    >>> restart = ckpt.results.InPlaceRestart(0, 2, 2, 1_900, "promote")
    >>> ckpt.results.Promotion(savepoint, restart).restart.pause_ms
    1900
    """

    savepoint: Savepoint
    restart: InPlaceRestart
