"""How a location continues in which Spark's own files are damaged: a rollback to a checkpoint.

A retained checkpoint has all that a query continues from, so a rollback needs none of Spark's files
in the location. It needs the id of the location's query, which is also known elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing, suppress

from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY, checkpoint_name
from pyspark_ckpt.restore.seeding import QUERY_ID_NAME
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.damage import Damage, damaged_file, unread_file
from pyspark_ckpt.spark.log import Sources, SparkLog
from pyspark_ckpt.spark.state_files import STATE
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.open import find_store
from pyspark_ckpt.stores.owner import owns
from pyspark_ckpt.stores.place import recorded_place, rollback_call

QUERY_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def query_id_at(location: Storage, root: Storage | None) -> str | None:
    """Return the id of a location's query, also if Spark's file with the id is lost or damaged.

    `root` is by default what the location records. The result is ``None`` if the location has no
    query, or if nothing says which query it has.
    """
    query_id = readable_query_id(location)
    if query_id is not None:
        return query_id
    if root is None:
        recorded = recorded_place(location)
        root = None if recorded is None else recorded.root
    if root is None:
        source = newest_whole(location.child(CHECKPOINTS_DIRECTORY))
        return None if source is None else source.metadata.query_id
    names = filter(QUERY_ID.fullmatch, root.list())
    return next((name for name in names if owns(location, root.child(name))), None)


def readable_query_id(location: Storage) -> str | None:
    """Return the id that Spark's file has, ``None`` if the file is missing or damaged."""
    try:
        return SparkLog(location).query_id()
    except CorruptFileError:
        return None


def newest_whole(checkpoints: Storage) -> RestoreSource | None:
    """Return the newest checkpoint whose files are there, ``None`` if there is none."""
    try:
        with closing(find_store(checkpoints)) as store:
            ids = sorted(store.ids(), reverse=True)
    except (CkptError, OSError):
        return None
    for number in ids:
        path = checkpoints.url_of(checkpoint_name(number))
        with suppress(CkptError, OSError):  # it is damaged, so an older one counts
            return RestoreSource(path)
    return None


def damaged_location(
    location: Storage, checkpoints: Storage | None, what: Damage | str
) -> CorruptFileError:
    """Return the error of a location in which a file of Spark's is damaged, with the way back."""
    return CorruptFileError(f"{what}. {way_back(location, checkpoints)}")


def way_back(location: Storage, checkpoints: Storage | None) -> str:
    """Return what to do at a location in which a file is damaged; see :func:`damaged_location`."""
    source = None if checkpoints is None else newest_whole(checkpoints)
    if checkpoints is None or source is None:
        return (
            f"There is no complete checkpoint of the query in {location.url} to go back to. Put "
            "it back, for example from a backup, or start the query at a fresh "
            "checkpointLocation, with restoreFrom if there is a savepoint"
        )
    log, epoch = SparkLog(location), source.metadata.epoch
    call = rollback_call(location, checkpoints, open_storage(source.path).name)
    newest = max(log.begun_epoch() or 0, log.committed_epoch() or 0)
    again = (
        " Later epochs run again from there: a sink removes their output, and a file sink needs a "
        "new path."
        if newest > epoch
        else ""
    )
    return (
        f"Call {call}, which brings the location back to epoch {epoch} and needs no such file; "
        f"then start the query again.{again} Or put it back, for example from a backup"
    )


def damaged_output(path: str, damage: Damage) -> CorruptFileError:
    """Return the error of an output path whose log is damaged."""
    return CorruptFileError(
        f"{damage}. Spark could not read the path {path}, or not all of it. Put the file "
        "back, for example from a backup, or give the query a new path: the files of the old one "
        "stay, and have the output of the epochs before"
    )


def lost_metadata(location: Storage) -> Damage | None:
    """Return Spark's file with the id of the query, if checkpoints inside show that there is one.

    Nothing else of Spark's may be left.
    """
    if newest_whole(location.child(CHECKPOINTS_DIRECTORY)) is None:
        return None
    what = "is missing, which has the id of the query, and the location has its checkpoints"
    return Damage(location.url_of(QUERY_ID_NAME), what)


def lost_operator(location: Storage, checkpoints: Storage) -> Damage | None:
    """Return the state of an operator that is gone, as the newest checkpoint shows."""
    if not location.list(STATE):
        return Damage(location.url_of(STATE), "is missing, which has the state of all operators")
    source = newest_whole(checkpoints)
    if source is None:
        return None
    of_spark = (each.operator_id for each in source.metadata.spark_operators)
    ids = {*(each.operator_id for each in source.metadata.operators), *of_spark}
    lost = [each for each in sorted(ids) if not location.list(f"{STATE}/{each}")]
    return Damage(location.url_of(f"{STATE}/{lost[0]}"), "is missing") if lost else None


def explained(
    error: Exception,
    log: SparkLog,
    checkpoints: Storage,
    sources: Sources,
    parallelism: Mapping[int, int | None],
) -> CorruptFileError | None:
    """Return Spark's failure as the error of the file that it could not read.

    The result is ``None`` if no file shows damage and Spark names none.
    """
    location = log.storage
    try:
        damage = damaged_file(log, sources, parallelism)
    except (CkptError, OSError):
        damage = None  # what Spark says counts
    if damage is None:
        otherwise = f"{location.url_of(STATE)} or another file of Spark's there"
        damage = unread_file(error, location.hadoop_url, otherwise)
    return None if damage is None else damaged_location(location, checkpoints, damage)
