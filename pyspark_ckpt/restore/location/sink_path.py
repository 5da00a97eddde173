"""The output path of a query: whether it is the query's, and takes its next epochs.

Spark's file sink leaves out an epoch whose number is in the path's log. It then does not run the
epoch's plan either, so that Spark commits the epoch without its state. So a query needs a path that
has only its own epochs: two queries with one path would each lose the epochs that the other one has
written, and so would a location that was rolled back.

Therefore each query claims its path in the log's directory, before its first epoch there. A
location notes where its epochs go. An epoch that went elsewhere gets an empty entry in the log,
because Spark reads and compacts only a log without gaps.

:func:`use_of` decides. The other functions collect what it decides by, and do what it says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from pyspark_ckpt.errors import (
    CkptError,
    ConfigurationError,
    CorruptFileError,
    NotBuiltYetError,
    RestoreError,
)
from pyspark_ckpt.formats.location_files import (
    RolledBack,
    UsedPath,
    Writer,
    add_used_path,
    add_writer,
    read_rolled_back,
    read_used_paths,
    read_writers,
)
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.location.way_back import damaged_output, newest_whole, way_back
from pyspark_ckpt.spark.damage import Damage, damaged_sink_log
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.sink import LOG, FileSinkLog, TableSink
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.owner import resolved_path

logger = library_logger(__name__)

_NONE = -1
"""Stands for an epoch before the first."""


@dataclass(frozen=True, slots=True)
class Output:
    """What is at an output path.

    `path` has no links, and `given_path` is the path with which Spark writes the names of its files
    into the log. `oldest` and `newest` are -1 if the log has no entry, and `lacking` begins after
    the newest compaction. `other_location` is the location of the last of the `writers`, if it
    differs from the query's location and still has that query.
    """

    path: str
    given_path: str
    oldest: int = _NONE
    newest: int = _NONE
    is_fresh: bool = True
    lacking: tuple[int, ...] = ()
    has_files: bool = False
    writers: tuple[Writer, ...] = ()
    other_location: str | None = None


@dataclass(frozen=True, slots=True)
class Continued:
    """The query that is to write to a path, as its location has it.

    `query_id` is ``None`` if the query has no id yet. `committed` and `begun` are -1 if there is
    none. `way_back` is what brings back epochs that the location has lost and a checkpoint has.
    """

    query_id: str | None = None
    committed: int = _NONE
    begun: int = _NONE
    rolled_back: tuple[RolledBack, ...] = ()
    used: tuple[UsedPath, ...] = ()
    origin: Origin | None = None
    way_back: str | None = None

    @property
    def valid(self) -> dict[str, float]:
        """The last epoch that counts, by the id of each query whose epochs the query continues."""
        found = {each.query_id: float(each.after) for each in self.rolled_back}
        return found if self.query_id is None else {**found, self.query_id: math.inf}

    @property
    def own_used(self) -> tuple[UsedPath, ...]:
        """The notes of the queries whose epochs the query continues."""
        return tuple(each for each in self.used if each.query_id in self.valid)

    @property
    def is_fork(self) -> bool:
        """Whether the epochs up to its origin's are of a query that may run on elsewhere."""
        return self.origin is not None and self.origin.query_id not in self.valid


def use_of(output: Output, query: Continued) -> CkptError | None:
    """Return why a query cannot write its next epochs to a path, ``None`` if it can."""
    writer = output.writers[-1] if output.writers else None
    if writer is not None and writer.query_id not in query.valid:
        is_left = output.other_location is None
        return None if is_left and output.newest == _NONE else _of_query(output, writer)
    if output.other_location is not None:
        return _of_copy(output, output.other_location)
    if writer is not None and not output.is_fresh and writer.path != output.given_path:
        return _of_another_name(output, writer)
    if writer is None and not output.is_fresh and not _is_own_unclaimed(output, query):
        return _of_another_query(output)
    if output.newest > query.begun and not (output.is_fresh and output.newest <= query.committed):
        return _of_later_epochs(output, query)
    if _has_void_epochs(output, query):
        return _of_void_epochs(output)
    written = _newest_written(output, query)
    if output.newest > written and not output.is_fresh:
        return _of_epochs_run_again(output, written)
    if _has_lost_log(output, query):
        return damaged_output(output.path, Damage(f"{output.path}/{LOG}", "is missing"))
    lost = _lost(output, query)
    return _of_lost_epochs(output, lost) if lost else None


def _is_own_unclaimed(output: Output, query: Continued) -> bool:
    """Return whether a log that nobody has claimed is the query's.

    The library could not see the path when the query wrote there, so it has no claim and no note.
    The epochs before its first note may be in any path. Then the last of them is the log's newest.
    """
    if query.query_id is None or (query.used and not query.own_used):
        return False
    if query.is_fork and query.origin is not None and query.committed == query.origin.epoch:
        return False
    if not query.own_used:
        return output.newest in {query.committed, query.begun}
    first, last = query.own_used[0], query.own_used[-1]
    return output.path == last.path or output.newest == first.after


def _has_void_epochs(output: Output, query: Continued) -> bool:
    """Return whether a path has epochs of its writers that a rollback made void."""
    for number, writer in enumerate(output.writers):
        later = [each.after for each in output.writers[number + 1 :]]
        last = min([*later[:1], output.newest])
        if last > max(writer.after, query.valid.get(writer.query_id, _NONE)):
            return True
    return False


def _newest_written(output: Output, query: Continued) -> float:
    """Return the newest epoch that a path may have, as far as the location has noted it.

    That is a limit only once later epochs went elsewhere.
    """
    notes = query.own_used
    if not notes or notes[-1].path == output.path:
        return math.inf
    here = [last for _, last, path in _epochs_by_path(query) if path == output.path]
    filled = [each.after for each in notes if each.path == output.path]
    return max([*here, *filled, notes[0].after])


def _has_lost_log(output: Output, query: Continued) -> bool:
    """Return whether a path has the output of a location, and no log that lists it.

    Spark would begin a new log, and readers would no longer see the output of the epochs before.
    """
    if not output.has_files or query.query_id is None or query.committed == _NONE:
        return False
    if query.origin is not None and query.origin.epoch == query.committed:
        return False  # it was restored, and has written nothing yet
    wrote = any(
        path == output.path and last >= first for first, last, path in _epochs_by_path(query)
    )
    return wrote or not query.own_used


def _lost(output: Output, query: Continued) -> list[int]:
    """Return the epochs that were written to a path and are not in its log, as far as known."""
    if output.newest == _NONE:  # the user has cleared the output
        return []
    here: set[int] = set()
    known: set[int] = set()
    for first, last, path in _epochs_by_path(query):
        epochs = {epoch for epoch in output.lacking if first <= epoch <= last}
        known |= epochs
        if path == output.path:
            here |= epochs
    unknown = set(output.lacking) - known
    if query.is_fork and query.origin is not None:
        unknown = {epoch for epoch in unknown if epoch > query.origin.epoch}
    if not output.is_fresh:
        # Without a note, the first epochs may have gone to another sink.
        here |= {epoch for epoch in unknown if epoch > output.oldest}
    return sorted(here)


def _epochs_by_path(query: Continued) -> Iterator[tuple[int, float, str | None]]:
    """Yield which epochs the location has written where: the first, the last, the path."""
    notes = query.own_used
    for number, note in enumerate(notes):
        later = [each.after for each in notes[number + 1 :] if each.query_id == note.query_id]
        ends = (query.valid[note.query_id], query.committed, *later[:1])
        yield note.after + 1, min(ends), note.path


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What is at an output path, and the query that is to write there."""

    output: Output
    query: Continued

    @property
    def refusal(self) -> CkptError | None:
        """Why the query cannot write its next epochs to the path, ``None`` if it can."""
        return use_of(self.output, self.query)


def path_facts(
    location: Storage, checkpoints: Storage | None, sink: FileSinkLog
) -> PathFacts | None:
    """Return what a start has to know of the path of a query, ``None`` if nobody sees the path.

    `checkpoints` is ``None`` if the query has no id yet.
    """
    query = continued_at(location, checkpoints)
    if query.origin is None and _cannot_be_seen(sink) is not None:
        return None
    return _looked_at(sink, location, checkpoints, query)


def restored_path_facts(location: Storage, epoch: int, sink: FileSinkLog) -> PathFacts:
    """Return what is at a path to which a query is to be restored at an epoch."""
    query = Continued(committed=epoch)
    return PathFacts(output_at(sink, location, query), query)


def prepare_path(
    location: Storage, checkpoints: Storage, sink: FileSinkLog, table: TableSink | None = None
) -> None:
    """Claim and fill the path of a query, so that the sink takes its next epochs; durable.

    The query must have an id already, and `table` is made if it does not exist. Nothing was written
    if ``RestoreError`` is raised.
    """
    query = continued_at(location, checkpoints)
    assert query.query_id is not None  # it is given before the path is claimed
    unseen = None if query.origin is not None else _cannot_be_seen(sink)
    if unseen is not None:
        logger.warning(
            "%s: pyspark_ckpt cannot see whether another query writes there, so make sure that "
            "none does: %s",
            sink.path,
            unseen,
        )
        return
    if table is not None:
        table.make()
    here = resolved_path(location)
    while True:
        facts = _looked_at(sink, location, checkpoints, query)
        output, refusal = facts.output, facts.refusal
        if refusal is not None:
            raise refusal
        writer = output.writers[-1] if output.writers else None
        claim = Writer(
            query_id=query.query_id, location=here, path=output.given_path, after=output.newest
        )
        if writer is not None and msgspec.structs.replace(writer, after=claim.after) == claim:
            break
        add_writer(sink.log, len(output.writers) + 1, claim)  # another query may be first
    note_path(location, query, output.path)
    if query.committed > _NONE:
        sink.fill(query.committed)
        damage = damaged_sink_log(sink)
        if damage is not None:
            raise damaged_output(sink.path, damage)


def _looked_at(
    sink: FileSinkLog, location: Storage, checkpoints: Storage | None, query: Continued
) -> PathFacts:
    """Return what is at a path, and what can be said of the query if it cannot use the path."""
    output = output_at(sink, location, query)
    if query.query_id is not None and use_of(output, query) is not None:
        # A run of the query that is about to end may have begun an epoch before the second look.
        log = SparkLog(location)
        begun, committed = log.begun_epoch(), log.committed_epoch()
        newest = max(query.begun, *(each for each in (begun, committed) if each is not None), -1)
        query = replace(query, begun=newest)
        source = None if checkpoints is None else newest_whole(checkpoints)
        if source is not None and source.metadata.epoch >= output.newest > newest:
            query = replace(query, way_back=way_back(location, checkpoints))
    return PathFacts(output, query)


def note_path(location: Storage, query: Continued, path: str | None) -> None:
    """Note in a location where its epochs go from now on; durable. ``None``: not a file sink."""
    assert query.query_id is not None  # it is given before
    last = query.used[-1] if query.used else None
    if last is None or (last.query_id, last.path) != (query.query_id, path):
        used = UsedPath(query_id=query.query_id, after=query.committed, path=path)
        add_used_path(location, len(query.used) + 1, used)


def continued_at(location: Storage, checkpoints: Storage | None) -> Continued:
    """Return the query that a location continues."""
    log = SparkLog(location)
    committed, begun = log.committed_epoch(), log.begun_epoch()
    epochs = [_NONE if epoch is None else epoch for epoch in (committed, begun)]
    return Continued(
        query_id=log.query_id(),
        committed=epochs[0],
        begun=max(epochs),
        rolled_back=read_rolled_back(location),
        used=read_used_paths(location),
        origin=None if checkpoints is None else read_origin(RetryingStorage(checkpoints)),
    )


def output_at(sink: FileSinkLog, location: Storage, query: Continued) -> Output:
    """Return what is at an output path, for a query that is to write there."""
    oldest, newest = sink.oldest_epoch(), sink.newest_epoch()
    writers = read_writers(sink.log)
    other = _other_location(writers[-1], location) if writers else None
    paths = resolved_path(sink.output), sink.output.hadoop_url
    if oldest is None or newest is None:
        has_files = query.committed > _NONE and sink.has_files()
        return Output(*paths, has_files=has_files, writers=writers, other_location=other)
    begun = None if query.begun <= query.committed else query.begun
    return Output(
        *paths,
        oldest,
        newest,
        is_fresh=sink.is_fresh(query.committed, begun),
        lacking=sink.lacking(query.committed),
        writers=writers,
        other_location=other,
    )


def _other_location(writer: Writer, here: Storage) -> str | None:
    """Return the path of a writer's location, if it is not `here` and still has the query."""
    path = writer.location
    if path == resolved_path(here):
        return None
    try:
        there = open_storage(path)
        if SparkLog(there).query_id() != writer.query_id:
            return None
        if isinstance(there, LocalStorage) and isinstance(here, LocalStorage):
            return None if Path(path).samefile(here.root) else path
    except FileNotFoundError:
        return None
    except (CkptError, OSError):  # nobody knows what is there
        return path
    return path


def _cannot_be_seen(sink: FileSinkLog) -> Exception | None:
    """Return why the library does not reach a path, which Spark may have on any file system."""
    try:
        sink.log.list()
    except (NotBuiltYetError, ConfigurationError, OSError) as exc:
        return exc
    return None


_SKIPS = "Spark's file sink leaves out epochs whose numbers it has"


def _of_query(output: Output, writer: Writer) -> CkptError:
    return RestoreError(
        f"{output.path} is the output path of another query: query {writer.query_id}, whose "
        f"location is {writer.location}. {_SKIPS}, so two queries with one path lose epochs: give "
        "this query a new path or table. If nobody needs that query and its output, you can "
        "delete the path instead"
    )


def _of_copy(output: Output, other: str) -> CkptError:
    return RestoreError(
        f"{output.path} is the output path of the location {other}, of which this location may be "
        f"a copy. {_SKIPS}, so two locations with one path lose epochs: give this query a new path "
        f"or table. If this location takes the place of {other}, move that one away first"
    )


def _of_another_name(output: Output, writer: Writer) -> CkptError:
    return RestoreError(
        f"{output.given_path} has the output that this query has written as {writer.path}. Spark "
        "finds only files that were written with the name by which a path is read, so readers "
        f"would miss rows: give the query the path {writer.path}, or a new path or table"
    )


def _of_another_query(output: Output) -> CkptError:
    return RestoreError(
        f"{output.path} already has the output of another query, epochs up to {output.newest}. "
        f"{_SKIPS}: give the query a new path or table. If nobody needs that output, you can "
        "delete the path instead"
    )


def _of_later_epochs(output: Output, query: Continued) -> CkptError:
    last = "its first epoch" if query.begun == _NONE else f"epoch {query.begun}"
    restored, to_do = "", "Give the query a new path or table"
    if query.way_back is not None:
        to_do = f"{query.way_back}, or give the query a new path or table"
    if query.origin is not None:
        restored = f" because it was restored from {query.origin.path}, epoch {query.origin.epoch}"
    return RestoreError(
        f"{output.path} already has the output of epochs up to {output.newest}, but this "
        f"location continues from {last}{restored}: {_SKIPS}, and so would leave out the next "
        f"ones. {to_do}"
    )


def _of_void_epochs(output: Output) -> CkptError:
    return RestoreError(
        f"{output.path} has the output of epochs that a rollback of this location made void, so "
        "it would not be the output of this query: give the query the path that it wrote to "
        "before, or a new path or table"
    )


def _of_epochs_run_again(output: Output, written: float) -> CkptError:
    return RestoreError(
        f"{output.path} has the output of epochs up to {output.newest}, of which this location has "
        f"written those up to {written:.0f} there. The others were run again elsewhere, as after "
        "a backup of the location was put back: give the query the path that it wrote to before, "
        "or a new path or table"
    )


def _of_lost_epochs(output: Output, lost: list[int]) -> CkptError:
    shown = ", ".join(map(str, lost[:10])) + (", ..." if len(lost) > 10 else "")
    return CorruptFileError(
        f"the log of {output.path} lacks epochs that this location has written there, or may have: "
        f"{shown}. Spark could not read the path after its next compaction. Put the files back "
        "into its _spark_metadata, or give the query a new path or table"
    )
