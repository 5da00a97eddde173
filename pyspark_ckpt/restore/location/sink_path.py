"""The output path of a restored query: whether it is the query's, and takes its next epochs.

Spark's file sink skips an epoch that is in the path's log. A restored query continues the epoch
numbers of another query. So two queries with one path would each lose the epochs that the other one
has written. Therefore a restored query claims its path in the log's directory, before it fills the
log: a file with the query's id, created exclusively. Spark ignores the file, because its name is no
number of an epoch.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import msgspec

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.formats.rolled_back import read_rolled_back
from pyspark_ckpt.formats.small_file import read_small_file
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.sink import FileSinkLog
from pyspark_ckpt.storage.open import Storage

CLAIM_NAME = "_restored_query.json"


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    query_id: str


def check_fresh(sink: FileSinkLog, epoch: int) -> None:
    """Check that a path is free for a query that is to be restored at an epoch; writes nothing.

    Raises
    ------
    RestoreError
        If a query has written there, or a restored query has claimed the path.
    """
    _check_claim(sink, ())
    if not sink.is_fresh(epoch):
        raise _of_another_query(sink)


def prepare_path(log: SparkLog, committed: int, checkpoints: Storage, sink: FileSinkLog) -> None:
    """Claim and fill the path of a restored query, so that the sink takes its next epochs; durable.

    Does nothing for a query that was not restored.

    Parameters
    ----------
    log
        Spark's log of the query's location.
    committed
        Its newest committed epoch.
    checkpoints
        The query's checkpoints directory.
    sink
        The log of the path.

    Raises
    ------
    RestoreError
        If the path has the output of later epochs, as after a rollback, or of another query, or
        lacks epochs of this one. Nothing was written.
    """
    origin, query_id = read_origin(checkpoints), log.query_id()
    if origin is None or query_id is None:
        return
    ids = (query_id, *(each.query_id for each in read_rolled_back(log.storage)))
    has_claimed = _check_claim(sink, ids)
    written, begun = sink.newest_epoch(), log.begun_epoch()
    if written is not None and begun is not None and written > begun:
        raise RestoreError(
            f"{sink.path} already has the output of epochs up to {written}, but this "
            f"location continues from epoch {begun} because it was restored from "
            f"{origin.path}, epoch {origin.epoch}: Spark's file sink would skip the next "
            "epochs; give the query a new path"
        )
    is_fresh = sink.is_fresh(committed, begun)
    if not is_fresh:
        # Before its first epoch, only a query that was rolled back has written to a path.
        if committed == origin.epoch and not has_claimed and origin.query_id not in ids:
            raise _of_another_query(sink)
        if not sink.reaches(committed):
            raise RestoreError(
                f"the log of {sink.path} lacks epochs up to {committed}, from which this location "
                "continues. Spark could not read the path after its next compaction: give the "
                "query the path that it wrote to before, or a new one"
            )
    _claim(sink, ids)
    if is_fresh:
        sink.fill(committed)


def _check_claim(sink: FileSinkLog, query_ids: Collection[str]) -> bool:
    """Return whether one of these queries has claimed a path; refuse the path of another one."""
    if not sink.log.exists(CLAIM_NAME):
        return False
    holds, to_do = "the restored query that writes here", "give the query a new path or table"
    owner = read_small_file(sink.log, CLAIM_NAME, _Claim, holds, to_do).query_id
    if owner not in query_ids:
        raise RestoreError(
            f"{sink.path} is the output path of query {owner}, which was restored too. Spark's "
            "file sink would skip epochs with the same numbers: give this query a new path or table"
        )
    return True


def _claim(sink: FileSinkLog, query_ids: tuple[str, ...]) -> None:
    """Let no other restored query write to the path; the first of the ids is the query's own."""
    with suppress(FileExistsError):
        sink.log.write(CLAIM_NAME, [msgspec.json.encode(_Claim(query_id=query_ids[0]))])
    _check_claim(sink, query_ids)


def _of_another_query(sink: FileSinkLog) -> RestoreError:
    return RestoreError(
        f"{sink.path} already has the output of another query. Spark's file sink would "
        "skip epochs with the same numbers: give the restored query a new path or table"
    )
