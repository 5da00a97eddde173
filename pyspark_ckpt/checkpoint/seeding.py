"""Seeding: fills a fresh ``checkpointLocation`` from a checkpoint or savepoint.

The new query gets copies of all files it needs, so it never depends on what it was restored from.
Spark's state store is written by Spark itself: a query over one small file, whose rows are the
handles, puts each into GroupState of its subtask as epoch 0. Then its offsets are replaced by the
snapshot's, and the user's query goes on with epoch 1. A marker file stands until all of that is
done; a location with the marker holds nothing but an unfinished seeding and is filled anew.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.checkpoint.origin import write_origin
from pyspark_ckpt.checkpoint.redistributing import has_to_move, redistribute
from pyspark_ckpt.checkpoint.restore_plan import RestoreMigrations
from pyspark_ckpt.checkpoint.restore_source import RestoreSource
from pyspark_ckpt.checkpoint.spark_log import NO_OFFSET, OffsetsEntry, SparkLog
from pyspark_ckpt.configuration import NO_CLAIM
from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.on_disk.handle import (
    BaseFile,
    FileReference,
    Handle,
    decode_handle,
    encode_handle,
)
from pyspark_ckpt.on_disk.layout import SEEDING_MARKER, base_path, segment_path
from pyspark_ckpt.on_disk.metadata import Origin
from pyspark_ckpt.on_disk.storage import LocalStorage, Storage, open_storage
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.epoch_clock import TimeMode
from pyspark_ckpt.operator.event_time import never_late_column
from pyspark_ckpt.operator.input_columns import TOKEN
from pyspark_ckpt.operator.key_groups import subtask_tokens
from pyspark_ckpt.operator.subtask import set_timeout
from pyspark_ckpt.operator_plan import STATE_SCHEMA, TIMEOUTS
from pyspark_ckpt.session_conf import conf_of_start, session_conf

logger = logging.getLogger(__name__)

SEEDED_EPOCH = 0
_SEED_DIRECTORY = "_seed"


def clear_unfinished(location: LocalStorage, checkpoints_directory: str | None) -> None:
    """Remove what an interrupted seeding left behind; the marker goes last."""
    query_id = SparkLog(location).query_id()
    if checkpoints_directory is not None and query_id is not None:
        open_storage(checkpoints_directory).delete_directory(query_id)
    for name in location.list():
        if name == SEEDING_MARKER:
            continue
        if location.path(name).is_dir():
            shutil.rmtree(location.path(name))
        else:
            location.delete([name])
    location.delete([SEEDING_MARKER])


def begin_seeding(location: LocalStorage) -> str:
    """Mark an empty location as being seeded and give its query an id; both durable on return."""
    location.write(SEEDING_MARKER, [b"this location is being filled before its query starts\n"])
    query_id = str(uuid.uuid4())
    location.write("metadata", [json.dumps({"id": query_id}).encode()])
    return query_id


def seed(
    spark: SparkSession,
    location: LocalStorage,
    checkpoints: Storage,
    source: RestoreSource,
    operators: Sequence[OperatorDescriptor],
    claim_mode: str = NO_CLAIM,
    migrations: RestoreMigrations | None = None,
    source_ids: tuple[int, ...] | None = None,
) -> None:
    """Fill a location that :func:`begin_seeding` has marked, durably but for the marker's removal.

    Parameters
    ----------
    spark
        The session the query will be started from, with its state store settings.
    location
        The ``checkpointLocation``.
    checkpoints
        The new query's checkpoints directory.
    source
        What to start from.
    operators
        The new query's, in the order of their ids. Those that `source` does not have start empty,
        those that only it has are left behind.
    claim_mode
        Whether the new query will delete `source`.
    migrations
        Those that are done on the way, by uid and state.
    source_ids
        Which source the new query reads at each place; by default as before.
    """
    query_id = SparkLog(location).query_id()
    assert query_id is not None  # begin_seeding wrote it

    stored = {operator.uid: operator for operator in source.metadata.operators}

    def handles(operator: OperatorDescriptor) -> list[Handle]:
        if operator.uid not in stored:
            return []
        found, of_operator = stored[operator.uid], (migrations or {}).get(operator.uid)
        if has_to_move(found, operator, of_operator):
            return redistribute(
                spark,
                source.storage,
                checkpoints,
                found,
                operator,
                query_id,
                SEEDED_EPOCH,
                of_operator,
            )
        return [
            _adopt(handle, operator, query_id, source.storage, checkpoints)
            for handle in found.handles
        ]

    seeds = [Seed(operator, handles(operator)) for operator in operators]
    _seed_state_store(spark, location, seeds)
    _replace_offsets(location, source, source_ids or source.metadata.source_ids)
    origin = Origin(
        path=source.path,
        kind=source.metadata.kind,
        checkpoint_id=source.metadata.checkpoint_id,
        query_id=source.metadata.query_id,
        epoch=source.metadata.epoch,
        operators=tuple(each.uid for each in operators if each.uid in stored),
        sha256=source.sha256,
        claim_mode=claim_mode,
        skipped=source.skipped,
    )
    write_origin(checkpoints, origin)
    shutil.rmtree(location.path(_SEED_DIRECTORY))


def seed_initial(
    spark: SparkSession,
    location: LocalStorage,
    seeds: Sequence[Seed],
    sources: int,
) -> None:
    """Fill a location that :func:`begin_seeding` has marked with initial states.

    Parameters
    ----------
    spark
        The session the query will be started from.
    location
        The ``checkpointLocation``.
    seeds
        The state of each operator, in the order of their ids.
    sources
        At how many places the query reads a source; all from their start.
    """
    _seed_state_store(spark, location, seeds)
    log = SparkLog(location)
    seeded = log.offsets_entry(SEEDED_EPOCH)
    offsets = OffsetsEntry(seeded.metadata, (NO_OFFSET,) * sources)
    log.replace(f"offsets/{SEEDED_EPOCH}", offsets.text())
    shutil.rmtree(location.path("sources"))
    shutil.rmtree(location.path(_SEED_DIRECTORY))


def finish_seeding(location: LocalStorage, source: str) -> None:
    """Remove the marker: from here on the location is a query's like any other."""
    location.delete([SEEDING_MARKER])
    logger.info("seeded %s from %s", location.root, source)


@dataclass(frozen=True, slots=True)
class Seed:
    """What Spark's state store gets for one operator."""

    operator: OperatorDescriptor
    handles: list[Handle]


def _adopt(
    handle: Handle,
    operator: OperatorDescriptor,
    query_id: str,
    source: Storage,
    target: Storage,
) -> Handle:
    """Copy a handle's files under names of the new query and return the handle that names them."""

    def copy(reference: FileReference, path: str) -> FileReference:
        return target.copy_in(source, reference, path)

    base = handle.base
    if base is not None:
        files = tuple(
            BaseFile(each.name, copy(each.file, base_path(handle.subtask, SEEDED_EPOCH)))
            for each in base.files
        )
        base = msgspec.structs.replace(base, files=files)
    segments = tuple(
        segment
        if segment.file is None
        else msgspec.structs.replace(
            segment, file=copy(segment.file, segment_path(handle.subtask, SEEDED_EPOCH))
        )
        for segment in handle.segments
    )
    return msgspec.structs.replace(
        handle,
        query_id=query_id,
        epoch=SEEDED_EPOCH,
        base=base,
        segments=segments,
        pending=None,
        predecessors=msgspec.UNSET,
        time_mode=operator.time_mode,
        timeout_ms=handle.timeout_ms if handle.time_mode == operator.time_mode else None,
    )


def _seed_state_store(spark: SparkSession, location: LocalStorage, seeds: Sequence[Seed]) -> None:
    """Run one query with as many operators as the user's, in the same order and time modes."""
    directory = location.path(_SEED_DIRECTORY)
    branches = []
    for operator_id, seed in enumerate(seeds):
        _write_handles(directory / str(operator_id), seed)
        branches.append(_seeding_stream(spark, directory / str(operator_id), seed.operator))
    conf = conf_of_start([seed.operator for seed in seeds], ends_by_itself=True)
    with session_conf(spark, conf):
        query = (
            reduce(DataFrame.union, branches)
            .writeStream.format("noop")
            .queryName(f"pyspark_ckpt: seeding {location.root.name}")
            .option("checkpointLocation", str(location.root))
            .trigger(availableNow=True)
            .start()
        )
    query.awaitTermination()
    if SparkLog(location).committed_epoch() != SEEDED_EPOCH:
        raise RestoreError(f"seeding {location.root} ended without a commit: start the query again")


def _write_handles(directory: Path, seed: Seed) -> None:
    tokens = subtask_tokens(seed.operator.parallelism)
    table = pa.table(
        {
            TOKEN: pa.array([tokens[handle.subtask] for handle in seed.handles], pa.int32()),
            "handle": pa.array([encode_handle(handle) for handle in seed.handles], pa.binary()),
        }
    )
    directory.mkdir(parents=True)
    pq.write_table(table, directory / "handles.parquet")


def _seeding_stream(
    spark: SparkSession, directory: Path, operator: OperatorDescriptor
) -> DataFrame:
    handles = spark.readStream.schema(f"{TOKEN} int, handle binary").parquet(str(directory))
    # Spark wants a column of event time where there are event-time timeouts.
    return (
        handles.select(TOKEN, "handle", never_late_column())
        .groupBy(TOKEN)
        .applyInPandasWithState(
            _put_handle, "token int", STATE_SCHEMA, "append", TIMEOUTS[TimeMode(operator.time_mode)]
        )
    )


def _put_handle(
    token: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for encoded in frame["handle"]:
            state.update((bytes(encoded),))
            set_timeout(state, decode_handle(bytes(encoded)), state.getCurrentProcessingTimeMs())
    yield pd.DataFrame({"token": [int(token[0])]})


def _replace_offsets(
    location: LocalStorage, source: RestoreSource, source_ids: tuple[int, ...]
) -> None:
    """Give epoch 0 the snapshot's source offsets, source logs and watermark."""
    log = SparkLog(location)
    metadata = source.metadata
    for_all_sources = json.loads(metadata.offsets_entry.split("\n")[1])
    by_source = source.offsets
    seeded = log.offsets_entry(SEEDED_EPOCH)
    times = {key: for_all_sources[key] for key in ("batchWatermarkMs", "batchTimestampMs")}
    at_each_place = tuple(by_source[number] for number in source_ids or by_source)
    offsets = OffsetsEntry({**seeded.metadata, **times}, at_each_place)
    shutil.rmtree(location.path("sources"))
    for source_log in metadata.source_logs:
        path = f"sources/{source_log.source_index}/{source_log.log_name}"
        location.copy_in(source.storage, source_log.file, path)
    log.replace(f"offsets/{SEEDED_EPOCH}", offsets.text())
    version, fields = log.commits_entry(SEEDED_EPOCH).split("\n", 1)
    commit = {**json.loads(fields), "nextBatchWatermarkMs": metadata.watermark_ms}
    log.replace(f"commits/{SEEDED_EPOCH}", f"{version}\n{json.dumps(commit)}")
