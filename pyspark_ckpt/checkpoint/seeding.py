"""Seeding: fills a fresh ``checkpointLocation`` from a checkpoint or savepoint.

The new query gets copies of all files it needs, so it never depends on what it was restored from.
Its location looks as if the query had just committed the epoch of the snapshot: state stores,
source offsets, watermark; the query goes on with the epoch after it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from pyspark_ckpt.checkpoint.adopting import adopt_all
from pyspark_ckpt.checkpoint.native_restore import place_native_state, store_conf
from pyspark_ckpt.checkpoint.redistributing import has_to_move, redistribute
from pyspark_ckpt.checkpoint.restore_request import RestoreRequest
from pyspark_ckpt.checkpoint.restore_source import RestoreSource
from pyspark_ckpt.checkpoint.restored_source_logs import copy_source_logs
from pyspark_ckpt.checkpoint.seeded_state import Seed, write_seeds
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.origin import write_origin
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.spark.log import OffsetsEntry, SparkLog
from pyspark_ckpt.spark.operators import StatefulOperators
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.spark.state_files import copy_first_version
from pyspark_ckpt.storage.open import LocalStorage, Storage

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
    if operators.native:
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
