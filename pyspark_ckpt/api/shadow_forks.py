"""The forks of a shadow: their writers, locations and settings; and shadows of another process.

A fork has the settings of the query, and writes nothing outside of the shadow's directory. Its
queries run in a copy of the session of its program.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_ckpt.api.restarts import Launch
from pyspark_ckpt.api.writer import CheckpointedStreamWriter
from pyspark_ckpt.errors import ConfigurationError, NotBuiltYetError
from pyspark_ckpt.formats.layout import SHADOW
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.plan.parallelism import building_with
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.restore.location.exchange import live_shadows
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.sessions.kind import is_connect
from pyspark_ckpt.settings import ClaimMode, HighAvailability, Retention, Settings, is_ckpt_option
from pyspark_ckpt.shadowing.followed import FollowedQuery
from pyspark_ckpt.shadowing.fork import Fork, ForkedProgram
from pyspark_ckpt.shadowing.output import KeptOutput
from pyspark_ckpt.shadowing.rules import Rules
from pyspark_ckpt.shadowing.shadow import (
    FollowedRun,
    Promoter,
    Shadow,
    begin_shadow,
    delete_directory,
)
from pyspark_ckpt.snapshot.snapshot import open_state
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.own_session import of_own_session, own_session
from pyspark_ckpt.spark.plan import given_names, operators_of, source_ids
from pyspark_ckpt.spark.program import Program, stream_of
from pyspark_ckpt.storage.open import Storage

logger = library_logger(__name__)


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
        if is_connect(writer._stream):
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
    launch = Launch(_start, lambda _: None)
    subtasks = operators_of(writer._stream).descriptors[0].parallelism
    start = writer._query_start(launch, None, subtasks)
    return Fork(ForkedProgram(name, start, kept, writer._stream.schema, source_ids(writer._stream)))


def _start(writer: CheckpointedStreamWriter) -> StreamingQuery:
    return writer._writer.start()


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
