"""The Spark jobs that move an operator's state to other subtasks and write Spark's state stores.

Where entries stay as they are, each new subtask takes over its key groups itself, and keeps the
files of a database. Otherwise entries move: one task reads each old subtask, Spark's shuffle sorts
the entries by new subtask and stored key, and one task writes each new subtask. No task holds more
than a batch of entries in memory.

A query over one small file, whose rows are the handles, puts each handle into GroupState of its
subtask. The query runs in a separate directory as epoch 0. Its state stores are copied as the
version that the wanted epoch ends with (docs/design/0006-seeding-a-fresh-location.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.handover.worker import STATE_SCHEMA
from pyspark_ckpt.operator.plan.operator import TIMEOUTS
from pyspark_ckpt.operator.rescale.databases import (
    DIVIDED_SCHEMA,
    DivideSubtasks,
    can_be_divided,
    shares_of,
)
from pyspark_ckpt.operator.rescale.key_hashing import StoredKeyColumns
from pyspark_ckpt.operator.rescale.tasks import (
    HANDLES_SCHEMA,
    HEAD,
    STORED_KEY,
    SUBTASK,
    TAIL,
    VALUE,
    Movement,
    ReadSubtask,
    WriteSubtask,
    newest_of,
)
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.keys import subtask_tokens
from pyspark_ckpt.operator.run.subtask import set_timeout
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import never_late_column
from pyspark_ckpt.restore.copies import HandleCopy, copy_handles
from pyspark_ckpt.restore.planned import MovedOperator
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.spark.log import SOURCE_EVOLUTION, SparkLog
from pyspark_ckpt.spark.own_session import SMALL_BATCHES, conf_of_start, own_session
from pyspark_ckpt.storage.open import Storage

_BYTES_IN_HEX = 4
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
    newest = newest_of(stored.handles)
    has_same_clock = newest.time_mode == wanted.time_mode
    if can_be_divided(stored.handles, wanted, operator.states):
        handles = _divided(
            spark,
            operator,
            source,
            checkpoints,
            query_id,
            epoch,
            has_same_clock=has_same_clock,
            in_place=in_place,
            links=links,
        )
        if handles is not None:
            return handles
    movement = Movement(
        handles=tuple(map(encode_handle, stored.handles)),
        source_root=source.url,
        operator=wanted,
        merged=operator.states,
        broadcast_giver=newest.subtask,
        has_same_clock=has_same_clock,
    )
    keys = None
    if stored.max_parallelism != wanted.max_parallelism:
        keys = StoredKeyColumns(struct_type(stored.key_schema))
    write = WriteSubtask(movement, query_id, checkpoints.url, epoch)
    rows = collected(
        _moved(own_session(spark, SMALL_BATCHES), movement, keys).mapInArrow(write, HANDLES_SCHEMA),
        f"moving operator {wanted.uid} from {stored.parallelism} to {wanted.parallelism} subtasks",
    )
    return sorted((decode_handle(bytes(row[0])) for row in rows), key=lambda each: each.subtask)


def _divided(
    spark: SparkSession,
    operator: MovedOperator,
    source: Storage,
    checkpoints: Storage,
    query_id: str,
    epoch: int,
    *,
    has_same_clock: bool,
    in_place: bool,
    links: bool,
) -> list[Handle] | None:
    """Give out key groups; ``None`` if a subtask has state that belongs to no key.

    Files of an attempt that is given up are removed by the cleaner.
    """
    wanted = operator.wanted
    shares = shares_of(operator.stored.handles, wanted, query_id, epoch)
    kept = {share.kept.subtask: share.kept for share in shares if share.kept is not None}
    copied = [msgspec.structs.replace(handle, segments=()) for handle in kept.values()]
    if copied and not in_place:
        copy = HandleCopy(wanted, query_id, epoch, links)
        copied = copy_handles(spark, copied, copy, source, checkpoints)
    divide = DivideSubtasks(
        shares,
        {handle.subtask: handle.base for handle in copied if handle.base is not None},
        source.url,
        checkpoints.url,
        operator.states.states,
        has_same_clock=has_same_clock,
    )
    numbers = spark.range(len(shares), numPartitions=len(shares))
    rows = collected(
        numbers.mapInArrow(divide, DIVIDED_SCHEMA),
        f"dividing operator {wanted.uid} among {wanted.parallelism} subtasks",
    )
    made = [None if row[0] is None else decode_handle(bytes(row[0])) for row in rows]
    found = [handle for handle in made if handle is not None]
    return sorted(found, key=lambda each: each.subtask) if len(found) == len(made) else None


def _moved(spark: SparkSession, movement: Movement, keys: StoredKeyColumns | None) -> DataFrame:
    """Return all entries in the partitions of their new subtasks, in the order of their keys."""
    wanted, subtasks = movement.operator, len(movement.handles)
    read = ReadSubtask(movement, keys)
    entries = spark.range(subtasks, numPartitions=subtasks).mapInArrow(read, read.schema)
    tokens = F.array(*[F.lit(token) for token in subtask_tokens(wanted.parallelism)])
    return (
        _by_subtask(entries, wanted, keys)
        .withColumn(TOKEN, F.element_at(tokens, F.col(SUBTASK) + 1))
        .repartition(wanted.parallelism, TOKEN)
        .sortWithinPartitions(SUBTASK, STORED_KEY)
        .select(SUBTASK, STORED_KEY, VALUE)
    )


def _by_subtask(
    entries: DataFrame, wanted: OperatorDescriptor, keys: StoredKeyColumns | None
) -> DataFrame:
    """Return entries with their new subtasks and whole stored keys."""
    if keys is None:
        return entries.select(SUBTASK, F.col(HEAD).alias(STORED_KEY), VALUE)
    key_group = F.pmod(keys.hash_column(), F.lit(wanted.max_parallelism))
    subtask = F.floor(key_group * wanted.parallelism / wanted.max_parallelism).cast("int")
    in_bytes = F.unhex(F.lpad(F.hex(key_group), _BYTES_IN_HEX, "0"))
    is_placed = F.col(SUBTASK).isNotNull()
    stored_key = F.when(is_placed, F.col(HEAD)).otherwise(
        F.concat(F.col(HEAD), in_bytes, F.col(TAIL))
    )
    return entries.select(
        F.coalesce(F.col(SUBTASK), subtask).alias(SUBTASK), stored_key.alias(STORED_KEY), VALUE
    )


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
