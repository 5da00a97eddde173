"""The Spark jobs that move an operator's state to other subtasks and write Spark's state stores.

Where entries stay as they are, each new subtask takes over its key groups itself, and keeps the
files of a database. Otherwise entries move, in a :class:`StateRewrite`.

A query over one small file, whose rows are the handles, puts each handle into GroupState of its
subtask. The query runs in a separate directory as epoch 0. Its state stores are copied as the
version that the wanted epoch ends with (docs/design/starts.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.handover.worker import STATE_SCHEMA
from pyspark_ckpt.operator.plan.operator import TIMEOUTS
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.keys import subtask_tokens
from pyspark_ckpt.operator.run.subtask import set_timeout
from pyspark_ckpt.operator.state.kinds import StateKind, kind_of
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import never_late_column
from pyspark_ckpt.restore.copies import HandleCopy, copy_handles
from pyspark_ckpt.restore.planned import MovedOperator
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.spark.log import SOURCE_EVOLUTION, SparkLog
from pyspark_ckpt.spark.own_session import conf_of_start, own_session
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stored.division import DivideSubtasks, Share
from pyspark_ckpt.stored.redistribution import Redistribution
from pyspark_ckpt.stored.rewrite import StateRewrite, StoredSource
from pyspark_ckpt.stored.unify import newest_of
from pyspark_ckpt.stored.writing import HANDLES_SCHEMA, TWICE_STORED, Destination

_CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

_WHOLE_VERSIONS = {_CHANGELOGS: "false"}
"""Makes RocksDB write a whole version: a changelog needs the version before it."""

_WHOLE_FILES = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Whatever the user's session says: a subtask whose handle was skipped would begin empty."""


def move_state(
    spark: SparkSession,
    operator: MovedOperator,
    source: Storage,
    checkpoints: Storage,
    query_id: str,
    epoch: int,
    *,
    in_place: bool = False,
    links: bool = False,
) -> list[Handle]:
    """Move an operator's state as it was planned; runs a Spark job.

    The result has the handles of those new subtasks that have state, and all their files are
    durable. `source` is only read. `in_place` says that `checkpoints` has the stored files already,
    because it is the directory of the same query; with `links`, files that stay as they are may be
    linked.
    """
    stored, wanted = operator.stored, operator.wanted
    if operator.shares is not None:
        return _divided(
            spark,
            operator,
            operator.shares,
            source,
            checkpoints,
            query_id,
            epoch,
            in_place=in_place,
            links=links,
        )
    rewrite = rewrite_of(operator, source.url, checkpoints.url, query_id, epoch)
    return rewrite.run(
        spark,
        f"moving operator {wanted.uid} from {stored.parallelism} to {wanted.parallelism} subtasks",
    )


def rewrite_of(
    operator: MovedOperator, source_url: str, target_url: str, query_id: str, epoch: int
) -> StateRewrite:
    """Return the job that moves all entries of an operator."""
    stored, wanted, states = operator.stored, operator.wanted, operator.states
    newest = newest_of(stored.handles)
    lists = (
        state_id
        for state_id, state in enumerate(states.states)
        if kind_of(state) is StateKind.OPERATOR_LIST
    )
    redistribution = Redistribution(
        states, wanted.parallelism, wanted.max_parallelism, newest.subtask
    )
    destination = Destination(
        target_url,
        TWICE_STORED,
        lists=frozenset(lists),
        renumbers_streams=True,
        sets_timeouts=_has_same_clock(operator),
    )
    return StateRewrite(
        [StoredSource(stored.handles, source_url, redistribution)],
        [_first(operator, query_id, subtask, epoch) for subtask in range(wanted.parallelism)],
        destination,
    )


def _divided(
    spark: SparkSession,
    operator: MovedOperator,
    shares: Sequence[Share],
    source: Storage,
    checkpoints: Storage,
    query_id: str,
    epoch: int,
    *,
    in_place: bool,
    links: bool,
) -> list[Handle]:
    """Give out key groups as the shares say."""
    wanted = operator.wanted
    kept = {share.kept.subtask: share.kept for share in shares if share.kept is not None}
    copied = [msgspec.structs.replace(handle, segments=()) for handle in kept.values()]
    if copied and not in_place:
        copy = HandleCopy(wanted, query_id, epoch, links)
        copied = copy_handles(spark, copied, copy, source, checkpoints)
    divide = DivideSubtasks(
        shares,
        [_first(operator, query_id, share.subtask, epoch) for share in shares],
        {handle.subtask: handle.base for handle in copied if handle.base is not None},
        source.url,
        checkpoints.url,
        has_same_clock=_has_same_clock(operator),
    )
    numbers = spark.range(len(shares), numPartitions=len(shares))
    rows = collected(
        numbers.mapInArrow(divide, HANDLES_SCHEMA),
        f"dividing operator {wanted.uid} among {wanted.parallelism} subtasks",
    )
    return sorted((decode_handle(bytes(row[0])) for row in rows), key=attrgetter("subtask"))


def _first(operator: MovedOperator, query_id: str, subtask: int, epoch: int) -> Handle:
    """Return the handle of a new subtask before its files are written."""
    first = operator.wanted.first_handle(query_id, subtask, epoch)
    return msgspec.structs.replace(first, states=operator.states.states)


def _has_same_clock(operator: MovedOperator) -> bool:
    return newest_of(operator.stored.handles).time_mode == operator.wanted.time_mode


@dataclass(frozen=True, slots=True)
class Seed:
    """The handles that Spark's state store gets for one operator."""

    operator: OperatorDescriptor
    handles: list[Handle]


def write_seeds(spark: SparkSession, scratch: Storage, seeds: Sequence[Seed]) -> SparkLog:
    """Return Spark's files of a query whose state stores hold the seeds.

    `scratch` is an empty directory, and the conf of `spark` is not changed. `seeds` are in the
    order of the operator ids. The files are those of the seeding query, whose epoch 0 wrote the
    state stores.
    """
    conf = conf_of_start([seed.operator for seed in seeds], ends_by_itself=True)
    whole = {**_WHOLE_VERSIONS, **_WHOLE_FILES, SOURCE_EVOLUTION: "false"}
    session = own_session(spark, {**conf, **whole})
    branches = []
    for number, seed in enumerate(seeds):
        handles = scratch.child(f"handles/{number}")
        _write_handles(handles, seed)
        branches.append(_seeding_stream(session, handles.hadoop_url, seed.operator))
    log = SparkLog(scratch.child("location"))
    query = (
        reduce(DataFrame.union, branches)
        .writeStream.format("noop")
        .queryName(f"pyspark_ckpt: seeding {scratch.parent().name}")
        .option("checkpointLocation", log.storage.hadoop_url)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if log.committed_epoch() != 0:
        raise RestoreError(
            f"seeding {scratch.parent().url} ended without a commit: start the query again"
        )
    return log


def _write_handles(directory: Storage, seed: Seed) -> None:
    tokens = subtask_tokens(seed.operator.parallelism)
    table = pa.table(
        {
            TOKEN: pa.array([tokens[handle.subtask] for handle in seed.handles], pa.int32()),
            "handle": pa.array([encode_handle(handle) for handle in seed.handles], pa.binary()),
        }
    )
    content = pa.BufferOutputStream()
    pq.write_table(table, content)
    directory.write("handles.parquet", [content.getvalue().to_pybytes()])


def _seeding_stream(spark: SparkSession, directory: str, operator: OperatorDescriptor) -> DataFrame:
    handles = spark.readStream.schema(f"{TOKEN} int, handle binary").parquet(directory)
    # Spark requires a column of event time for event-time timeouts.
    return (
        handles.select(TOKEN, "handle", never_late_column())
        .groupBy(TOKEN)
        .applyInPandasWithState(
            _put_handle, "token int", STATE_SCHEMA, "append", TIMEOUTS[operator.time_mode]
        )
    )


@marks_errors
def _put_handle(
    token: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for encoded in frame["handle"]:
            state.update((bytes(encoded),))
            set_timeout(state, decode_handle(bytes(encoded)), state.getCurrentProcessingTimeMs())
    yield pd.DataFrame({"token": [int(token[0])]})
