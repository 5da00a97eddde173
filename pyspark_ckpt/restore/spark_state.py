"""Has Spark write state stores that hold given handles, for a query that is about to start.

A query over one small file, whose rows are the handles, puts each handle into GroupState of its
subtask. The query runs in a directory of its own as epoch 0. Its state stores are copied as the
version that the wanted epoch ends with (docs/design/0006-seeding-a-fresh-location.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.handover.arrow_stream import STATE_SCHEMA
from pyspark_ckpt.operator.plan.operator import TIMEOUTS
from pyspark_ckpt.operator.rows.input import TOKEN
from pyspark_ckpt.operator.rows.key_groups import subtask_tokens
from pyspark_ckpt.operator.run.subtask import set_timeout
from pyspark_ckpt.operator.task_failure import marks_errors
from pyspark_ckpt.operator.time import never_late_column
from pyspark_ckpt.spark.conf import conf_of_start
from pyspark_ckpt.spark.log import SOURCE_EVOLUTION, SparkLog
from pyspark_ckpt.spark.own_session import own_session
from pyspark_ckpt.storage.open import Storage

_CHANGELOGS = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_WHOLE_VERSIONS = {_CHANGELOGS: "false"}
"""Makes RocksDB write a whole version: a changelog needs the version before it."""

_WHOLE_FILES = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
"""Whatever the user's session says: a subtask whose handle was skipped would begin empty."""


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
