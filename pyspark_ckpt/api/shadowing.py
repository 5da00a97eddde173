"""``shadow``: proves a candidate program beside a running query, and lets it take over.

Two forks of the query run beside it: one with its own program, one with the candidate. Both start
from one savepoint and run the epochs of the query (docs/design/0093-shadows.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from functools import partial

from pyspark_ckpt.api.restarts import (
    Restarts,
    parallelism_of_run,
)
from pyspark_ckpt.api.shadow_forks import (
    Begin,
    Change,
    Programs,
    check_parent,
    deleted_on_failure,
    filled_shadow,
    program_of,
)
from pyspark_ckpt.api.writer import CheckpointedStreamWriter
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.formats.layout import SHADOW
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.restore.location.exchange import live_shadows
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.shadowing.followed import FollowedQuery
from pyspark_ckpt.shadowing.promotion import Promotion
from pyspark_ckpt.shadowing.rules import Expected, Rules
from pyspark_ckpt.shadowing.shadow import (
    Shadow,
    begin_shadow,
    check_follows,
)
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.program import Program, check_program
from pyspark_ckpt.storage.open import open_storage

_REASON = "promote"


def shadow(
    query: CheckpointedQuery,
    candidate: Program,
    *,
    epochs: int | None = None,
    max_differences: int | None = 1000,
    ignore: Iterable[str] = (),
    tolerance: float = 0.0,
    expected: Expected | None = None,
    keys: Iterable[str] | None = None,
    states_every: int = 1,
    parallelism: int | None = None,
    options: Mapping[str, str] | None = None,
    directory: str | None = None,
) -> Shadow:
    """Run a candidate program beside a running query, and compare both epoch by epoch.

    A savepoint of the query is taken while the query runs. Two forks start from it: one with the
    query's own program, one with the candidate. Both run the epochs that the query commits from
    then on, with the same source offsets and processing times. Their output goes into a directory
    of the shadow only. The output of each epoch is compared as a multiset of rows, and the states
    at its end are compared by key. The query itself is not touched.

    Parameters
    ----------
    query : CheckpointedQuery
        The running query, started in this process.
    candidate : DataFrame or callable
        The new program, as :meth:`CheckpointedQuery.restartWith` takes it.
    epochs : int, optional
        After how many epochs the shadow ends by itself; by default never.
    max_differences : int, optional
        After how many differences it ends by itself, at the end of the epoch; ``None``: never.
    ignore : iterable of str
        What may differ: ``output.<column>``, ``<uid>.*`` (an operator), ``<uid>.<state>`` or
        ``<uid>.<state>.<column>``. Timers are the state ``timers``.
    tolerance : float
        Up to which difference floats and decimals are equal: relative to the larger of the two, and
        absolute below 1.
    expected : callable, optional
        Gets each :class:`ShadowDifference` and returns whether it is wanted. Wanted differences are
        only counted.
    keys : iterable of str, optional
        The columns that name a row of the output; by default the key columns of the operators, as
        far as the output has them.
    states_every : int
        After how many epochs the states are compared.
    parallelism : int, optional
        The number of subtasks of a candidate that is a function; by default the query's.
    options : Mapping of str to str, optional
        ``spark.ckpt.`` keys that the candidate has otherwise, such as its backend.
    directory : str, optional
        The parent of the shadow's directory, which all executors have to see; by default the
        query's ``checkpointLocation``.

    Returns
    -------
    Shadow
        Runs in a thread of the driver until it ends by itself, is stopped, promoted or discarded.

    Raises
    ------
    ConfigurationError
        If an argument is not allowed, the candidate builds no streaming DataFrame, or the query was
        attached, so its program is not here.
    CkptError, CheckpointAbortedError
        If the query has ended, or no epoch is committed yet.
    PlanError, IncompatibleStateError, RestoreError
        If the candidate does not fit the query's state.
    NotBuiltYetError
        Over Spark Connect.

    Examples
    --------
    >>> def is_safe(query, candidate):
    ...     with ckpt.shadow(query, candidate, epochs=20, tolerance=1e-9) as shadow:
    ...         shadow.awaitTermination()
    ...         print(shadow.report)
    ...     return shadow.report.is_equal
    """
    check_program(candidate, "shadow")
    rules = Rules(
        epochs,
        max_differences,
        frozenset(ignore),
        tolerance,
        expected,
        None if keys is None else tuple(keys),
        states_every,
    )
    check_follows(query)
    restarts, coordinator = query._restarter, query._current
    if not isinstance(restarts, Restarts):
        raise ConfigurationError(
            f"query {query.id} was attached, so its program is not in this process: start its "
            "shadow in the driver that started it"
        )
    writer = _writer_of(restarts)
    spark = writer._stream.sparkSession
    files = coordinator.files
    parent = files.spark_log.storage
    if directory is not None:
        given = open_storage(qualified_path(spark, directory))
        if given.url != parent.url:
            check_parent(given)
        parent = given
    change = Change(candidate, parallelism, dict(options or {}))
    programs = Programs.of(writer, change, rules, parallelism_of_run(query))
    made = parent.child(f"{SHADOW}{secrets.token_hex(6)}")
    live_shadows.add(made.name)  # the housekeeping of the query removes others
    with deleted_on_failure(made):
        taken = coordinator.trigger_savepoint(
            made.child("savepoint").url, SavepointFormat.NATIVE, is_noted=False
        )
        followed = FollowedQuery(
            files.spark_log, files.query_id, files.source_ids, files.given_names, taken.epoch
        )
        found = filled_shadow(
            programs,
            rules,
            Begin(query, followed, made, taken.path),
            partial(_promoted, query, program_of(writer), change),
        )
        dispose_savepoint(taken.path)
    return begin_shadow(found, files.storage.url)


def _writer_of(restarts: Restarts) -> CheckpointedStreamWriter:
    assert isinstance(restarts.writer, CheckpointedStreamWriter)  # which has made it
    return restarts.writer


def _promoted(
    query: CheckpointedQuery, original: Program, change: Change, directory: str | None
) -> Promotion:
    with query._turn.taken(_REASON):
        restarts = query._restarter
        assert isinstance(restarts, Restarts)  # the shadow was begun with it
        if program_of(_writer_of(restarts)) is not original:
            raise ConfigurationError(
                f"query {query.id} was restarted with another program since the shadow began, "
                "which was compared with the one before: begin another shadow"
            )
        take_over = _TakeOver(restarts, change.options, directory)
        done = query._restart(change.program, change.parallelism, _REASON, take_over)
    assert take_over.savepoint is not None  # it was taken before the restart
    return Promotion(take_over.savepoint, done)


class _TakeOver(Restarts):
    """Restarts a query with a candidate, after a savepoint of the original."""

    def __init__(
        self, restarts: Restarts, options: Mapping[str, str], directory: str | None
    ) -> None:
        super().__init__(restarts.writer, restarts._launch, restarts._place)
        self._options = options
        writer = _writer_of(restarts)
        spark = writer._stream.sparkSession
        settings = writer._settings(spark)
        given = None if directory is None else qualified_path(spark, directory)
        self._directory = given or settings.savepoints_directory
        if self._directory is None:
            raise ConfigurationError(
                "promote needs a directory for the savepoint of the original: give one, or set "
                "spark.ckpt.execution.checkpointing.savepoint-dir"
            )
        self.savepoint: Savepoint | None = None

    def _start_of_change(self, program: Program | None, parallelism: int | None) -> QueryStart:
        changed = _writer_of(self)._copy()
        changed.options(**self._options)
        return changed._next_start(self._launch, self._place, program, parallelism)

    def _stop(self, coordinator: CheckpointCoordinator) -> tuple[str, CheckpointMetadata]:
        found = super()._stop(coordinator)
        self.savepoint = coordinator.trigger_savepoint(self._directory, SavepointFormat.NATIVE)
        return found

    def _undo(self) -> None:
        if self.savepoint is not None:
            dispose_savepoint(self.savepoint.path)
