"""Seeding: fills a fresh ``checkpointLocation`` from a checkpoint or savepoint.

The new query gets copies of all files it needs, so it never depends on what it was restored from.
Its location looks as if the query had just committed the epoch of the snapshot: state stores,
source offsets, watermark; the query goes on with the epoch after it.

The marker of a ``checkpointLocation`` that is being filled, and what surrounds it.

It stands until everything is there; a location with the marker holds nothing but an unfinished
seeding and is filled anew.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import SEEDING_MARKER
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.origin import write_origin
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.restore.plan import RestoreRequest
from pyspark_ckpt.restore.rescale import has_to_move, redistribute
from pyspark_ckpt.restore.seeded_handles import adopt_all
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.source_logs import copy_source_logs
from pyspark_ckpt.restore.spark_operators import place_native_state, store_conf
from pyspark_ckpt.restore.spark_state import Seed, write_seeds
from pyspark_ckpt.spark.log import OffsetsEntry, SparkLog
from pyspark_ckpt.spark.operators import StatefulOperators
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.spark.state_files import copy_first_version
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage

_SCRATCH = "_seed"


def seed(
    spark: SparkSession,
    location: LocalStorage,
    checkpoints: Storage,
    source: RestoreSource,
    operators: StatefulOperators,
    request: RestoreRequest,
) -> None:
    """Fill a location that was marked, durably but for the marker's removal.

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
        The new query's. Those of this library that `source` does not have start empty, those that
        only it has are left behind.
    request
        The terms: claim mode, migrations, and which source the query reads at each place.

    Raises
    ------
    CorruptFileError, CheckpointNotFoundError
        If a file is missing or changed, or the checkpoint was subsumed while it was copied.
    """
    with source.told_apart():
        _seed(spark, location, checkpoints, source, operators, request)


def _seed(
    spark: SparkSession,
    location: LocalStorage,
    checkpoints: Storage,
    source: RestoreSource,
    operators: StatefulOperators,
    request: RestoreRequest,
) -> None:
    query_id = SparkLog(location).query_id()
    assert query_id is not None  # begin_seeding wrote it
    stored = {operator.uid for operator in source.metadata.operators}
    seeds = [
        Seed(operator, _handles(spark, checkpoints, source, operator, request, query_id))
        for operator in operators.descriptors
    ]
    ids, entries = tuple(operators.ours), _entries_of(source, request.source_ids)
    if operators.spark_operators:
        place_native_state(source, location, operators)
        session = own_session(spark, store_conf(source))
        _place(session, location, seeds, ids, replace(entries, conf=source.plain_conf))
    else:
        _place(spark, location, seeds, ids, entries)
    copy_source_logs(source, location)
    origin = Origin(
        path=source.path,
        kind=source.metadata.kind,
        checkpoint_id=source.metadata.checkpoint_id,
        query_id=source.metadata.query_id,
        epoch=source.metadata.epoch,
        operators=tuple(each.uid for each in operators.descriptors if each.uid in stored),
        sha256=source.sha256,
        claim_mode=request.claim_mode,
        skipped=source.skipped,
    )
    write_origin(checkpoints, origin)
    shutil.rmtree(location.path(_SCRATCH))


@dataclass(frozen=True, slots=True)
class _Entries:
    """What Spark's logs shall say of the epoch that the query goes on from.

    `conf` has settings that hold for all state, where they are not to be the session's.
    """

    epoch: int
    source_offsets: tuple[str, ...]
    times: dict[str, Any] = field(default_factory=dict)
    commit: dict[str, Any] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)


def _entries_of(source: RestoreSource, source_ids: tuple[int, ...] | None) -> _Entries:
    metadata = source.metadata
    by_source = source.offsets
    return _Entries(
        epoch=metadata.epoch,
        source_offsets=tuple(
            by_source[number] for number in source_ids or metadata.source_ids or by_source
        ),
        times=source.times_ms,
        commit={"nextBatchWatermarkMs": metadata.watermark_ms},
    )


def _handles(
    spark: SparkSession,
    checkpoints: Storage,
    source: RestoreSource,
    operator: OperatorDescriptor,
    request: RestoreRequest,
    query_id: str,
) -> list[Handle]:
    """Return an operator's handles in the new query, whose files are durable."""
    stored = {each.uid: each for each in source.metadata.operators}.get(operator.uid)
    if stored is None:
        return []
    epoch = source.metadata.epoch
    migrations = request.migrations.get(operator.uid)
    if has_to_move(stored, operator, migrations):
        return redistribute(
            spark, source.storage, checkpoints, stored, operator, query_id, epoch, migrations
        )
    return adopt_all(spark, stored.handles, operator, query_id, epoch, source.storage, checkpoints)


def _place(
    spark: SparkSession,
    location: LocalStorage,
    seeds: Sequence[Seed],
    operator_ids: Sequence[int],
    entries: _Entries,
) -> None:
    """Write state stores and Spark's logs as they are when an epoch has been committed."""
    seeded = write_seeds(spark, location.child(_SCRATCH), seeds)
    copy_first_version(seeded.storage, location, dict(enumerate(operator_ids)), entries.epoch + 1)
    metadata = {**seeded.offsets_entry(0).metadata, **entries.times}
    # Of what comes from a file, only what Spark itself keeps here.
    metadata["conf"] = {
        key: entries.conf.get(key, value) for key, value in metadata.get("conf", {}).items()
    }
    offsets = OffsetsEntry(metadata, entries.source_offsets).text()
    # Spark goes on from the newest entry, and wants the one before it too.
    for epoch in range(max(entries.epoch - 1, 0), entries.epoch + 1):
        location.write(f"offsets/{epoch}", [offsets.encode()])
    version, fields = seeded.commits_entry(0).split("\n", 1)
    commit = {**json.loads(fields), **entries.commit}
    location.write(f"commits/{entries.epoch}", [f"{version}\n{json.dumps(commit)}".encode()])


QUERY_ID_NAME = "metadata"
"""Spark's file with the id of the query."""

logger = logging.getLogger(__name__)


def begin_seeding(location: LocalStorage) -> str:
    """Mark an empty location as being seeded and give its query an id; both durable on return."""
    location.write(SEEDING_MARKER, [b"this location is being filled before its query starts\n"])
    return write_query_id(location)


def write_query_id(location: LocalStorage) -> str:
    """Give the query of a fresh location its id, as Spark would; durable on return.

    Raises
    ------
    FileExistsError
        If it has one.
    """
    query_id = str(uuid.uuid4())
    location.write(QUERY_ID_NAME, [json.dumps({"id": query_id}).encode()])
    return query_id


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


def finish_seeding(location: LocalStorage, source: str) -> None:
    """Remove the marker: from here on the location is a query's like any other."""
    location.delete([SEEDING_MARKER])
    logger.info("seeded %s from %s", location.root, source)
