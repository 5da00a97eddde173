"""The Spark jobs that move an operator's state to other subtasks, key groups or schemas.

Where entries stay as they are, each new subtask takes over its key groups itself, and keeps the
files of a database. Otherwise entries move: one task reads each old subtask, Spark's shuffle sorts
the entries by new subtask and stored key, and one task writes each new subtask. No task holds more
than a batch of entries in memory.
"""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
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
from pyspark_ckpt.operator.rows.key_groups import subtask_tokens
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.restore.copies import HandleCopy, copy_handles
from pyspark_ckpt.restore.planned import MovedOperator
from pyspark_ckpt.spark.conf import SMALL_BATCHES
from pyspark_ckpt.spark.jobs import collected
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.storage.open import Storage

_BYTES_IN_HEX = 4


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
