"""``shadow``: runs a candidate program as a shadow of a query, and lets it take over.

Two forks of the query run next to it: one with its own program, one with the candidate. Both start
from one savepoint and run the epochs of the query (docs/design/shadows.md).

A fork has the settings of the query, and writes nothing outside of the shadow's directory. Its
queries run in a copy of the session of its program.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.api.writer import CheckpointedStreamWriter
from pyspark_ckpt.errors import ConfigurationError, NotBuiltYetError
from pyspark_ckpt.formats.layout import SHADOW
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.plan.parallelism import building_with
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.query.coordinator import CheckpointCoordinator
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.query.restarts import Launch, Restarts, parallelism_of_run
from pyspark_ckpt.query.start import QueryStart
from pyspark_ckpt.restore.location.swap import live_shadows
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import ClaimMode, HighAvailability, Retention, Settings, is_ckpt_option
from pyspark_ckpt.shadowing.followed import FollowedQuery
from pyspark_ckpt.shadowing.fork import Fork, ForkedProgram
from pyspark_ckpt.shadowing.output import KeptOutput
from pyspark_ckpt.shadowing.report import Expected, Rules
from pyspark_ckpt.shadowing.shadow import (
    FollowedRun,
    Promoter,
    Promotion,
    Shadow,
    begin_shadow,
    check_follows,
    delete_directory,
)
from pyspark_ckpt.snapshot.snapshot import open_state
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.own_session import of_own_session, own_session
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.plan import given_names, operators_of, source_ids
from pyspark_ckpt.spark.program import Program, check_program, stream_of
from pyspark_ckpt.storage.open import Storage, open_storage

_REASON = "promote"
logger = library_logger(__name__)


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
    """Run a candidate program next to a running query, and compare both epoch by epoch.

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


@dataclass(frozen=True, slots=True)
class Change:
    """The candidate, and what it has otherwise."""

    program: Program
    parallelism: int | None
    options: dict[str, str]

    def __post_init__(self) -> None:
        if others := [key for key in self.options if not is_ckpt_option(key)]:
            raise ConfigurationError(
                f"shadow: options has {', '.join(others)}: give spark.ckpt. keys only; the "
                "candidate takes over the sink of the query, with its options"
            )


@dataclass(frozen=True, slots=True)
class Begin:
    """What a shadow begins with: the query, its epochs, a directory, and where it starts from."""

    query: FollowedRun
    followed: FollowedQuery
    directory: Storage
    path: str


@contextmanager
def deleted_on_failure(directory: Storage) -> Iterator[None]:
    """Delete the directory of a shadow that could not begin."""
    try:
        yield
    except BaseException:
        try:
            delete_directory(directory)
        except OSError as exc:
            live_shadows.discard(directory.name)  # the next start of the query removes it
            logger.warning("what a shadow that could not begin has left stays: %s", exc)
        raise


def check_parent(parent: Storage) -> None:
    """Refuse the location of another query, whose driver removes what it does not know."""
    if SparkLog(parent).query_id() is not None:
        raise ConfigurationError(
            f"shadow: directory {parent.url} is the checkpointLocation of a query, which would "
            "delete the files of the shadow: give another one"
        )


def program_of(writer: CheckpointedStreamWriter) -> Program:
    """Return the program of a writer; it stays the same object through a rescale in place."""
    return writer._program


def filled_shadow(
    programs: Programs, rules: Rules, begin: Begin, promoter: Promoter | None
) -> Shadow:
    """Return a shadow whose forks have their locations, and have run no epoch."""
    forks = (
        _fork("original", programs.original, begin),
        _fork("candidate", programs.candidate, begin),
    )
    found = Shadow(
        own_session(programs.original._stream.sparkSession, {}),
        begin.query,
        begin.followed,
        forks,
        programs.keys,
        rules,
        begin.directory,
        promoter,
    )
    for fork in forks:
        fork.fill()
    return found


def shadow_of_location(
    location: Storage,
    original: DataFrame | CheckpointedStreamWriter,
    candidate: DataFrame | CheckpointedStreamWriter,
    rules: Rules,
    parent: Storage,
) -> Shadow:
    """Return the shadow of a query that another process runs; it cannot be promoted."""
    writer, changed = (
        each if isinstance(each, CheckpointedStreamWriter) else CheckpointedStreamWriter(each)
        for each in (original, candidate)
    )
    check_parent(parent)
    made = parent.child(f"{SHADOW}{secrets.token_hex(6)}")
    with deleted_on_failure(made), open_state(location.url) as newest:
        source = RestoreSource(newest.path)
        metadata = source.metadata
        followed = FollowedQuery(
            SparkLog(location),
            metadata.query_id,
            source_ids(writer._stream),
            given_names(writer._stream),
            metadata.epoch,
        )
        run = _RunElsewhere(metadata.query_id)
        parallelism = metadata.operators[0].parallelism
        change = Change(changed._stream, None, changed._ckpt_options)
        programs = Programs.of(writer, change, rules, parallelism)
        found = filled_shadow(programs, rules, Begin(run, followed, made, source.path), None)
    return begin_shadow(found, location.url)


@dataclass(frozen=True, slots=True)
class _RunElsewhere:
    """A query that another process runs; it may start and stop."""

    id: str

    @property
    def isActive(self) -> bool:
        """Whether it may commit another epoch."""
        return True


class ForkWriter(CheckpointedStreamWriter):
    """A writer with the settings of the query, which touches nothing outside of the fork."""

    def __init__(self, change: Change, writer: CheckpointedStreamWriter, parallelism: int) -> None:
        with building_with(parallelism):
            program = stream_of(change.program, "shadow")
        super().__init__(of_own_session(program))
        self._conf = writer._conf  # of its start; the session's may be for other queries by now
        self.options(**{**writer._ckpt_options, **change.options})
        self.outputMode(writer._output_mode)
        self.path: str | None = None
        """The savepoint that it starts from."""

    def check(self) -> None:
        """Check settings and operators."""
        self._read_settings()
        operators_of(self._stream)

    def _settings(self, spark: SparkSession) -> Settings:
        return replace(
            super()._settings(spark),
            checkpoints_directory=None,
            high_availability_type=HighAvailability.NONE,
            metrics_reporters=(),
            num_retained=1,
            rescales_by_rule=False,
            restore_path=self.path,
            claim_mode=ClaimMode.NO_CLAIM,
            retention=Retention.RETAIN_ON_CANCELLATION,
        )


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of both forks, and the columns that name a row of their output."""

    original: ForkWriter
    candidate: ForkWriter
    keys: list[str]

    @classmethod
    def of(
        cls, writer: CheckpointedStreamWriter, change: Change, rules: Rules, parallelism: int
    ) -> Programs:
        """Build both programs; refuse what is wrong before anything is written."""
        if not session_of(writer._stream).has_jvm:
            raise NotBuiltYetError(
                "shadow is not supported over Spark Connect: use a classic session"
            )
        keys = _keys(writer, rules)
        same = Change(program_of(writer), None, {})
        found = cls(
            ForkWriter(same, writer, parallelism),
            ForkWriter(change, writer, change.parallelism or parallelism),
            keys,
        )
        found.candidate.check()
        return found


def _fork(name: str, writer: ForkWriter, begin: Begin) -> Fork:
    location = begin.directory.child(name)
    kept = KeptOutput(begin.directory.child(f"output/{name}").hadoop_url)
    writer.path = begin.path
    writer.foreachBatch(kept).option("checkpointLocation", location.hadoop_url)
    launch = Launch(lambda writer: writer._writer.start(), lambda _: None)
    subtasks = operators_of(writer._stream).descriptors[0].parallelism
    start = writer._query_start(launch, None, subtasks)
    return Fork(ForkedProgram(name, start, kept, writer._stream.schema, source_ids(writer._stream)))


def _keys(writer: CheckpointedStreamWriter, rules: Rules) -> list[str]:
    """Return the columns that name a row of the output."""
    names = writer._stream.columns
    if rules.keys is not None:
        if missing := [name for name in rules.keys if name not in names]:
            raise ConfigurationError(
                f"shadow: keys has {', '.join(missing)}: the output has {', '.join(names)}"
            )
        return list(rules.keys)
    found = [
        field.name
        for operator in operators_of(writer._stream).descriptors
        for field in struct_type(operator.key_schema).fields
    ]
    return [name for name in dict.fromkeys(found) if name in names]
