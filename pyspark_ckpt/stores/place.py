"""Where the checkpoints of a location are, and whether a query may start with another directory.

A location records where its checkpoints are. The record is written before Spark's query starts.
:func:`inspect` collects what is there, :func:`decide` returns whether a start may go on, and
neither writes anything that stays (docs/design/locations.md).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, RestoreError, UnsafePathError
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    DRIVERS,
    IDENTITY_NAME,
    OWNERS,
    PLACES,
    SHARED,
    TASK_OWNED,
    checkpoint_id_of,
    checkpoint_name,
    owner_path,
)
from pyspark_ckpt.formats.location_files import PlaceRecord, read_place
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.open import find_store
from pyspark_ckpt.stores.owner import check_owner, resolved_path

SETTING = "spark.ckpt.execution.checkpointing.dir"
_OF_A_QUERY = frozenset({DRIVERS, OWNERS, SHARED, TASK_OWNED})
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")

_NAMED = 3
"""How many missing files an error names."""

RUN_AGAIN = 2
"""So many epochs that a power loss took from Spark's logs run again, if checkpoints are inside."""


@dataclass(frozen=True, slots=True)
class CheckpointsPlace:
    """Where a location has its checkpoints.

    `root` is ``spark.ckpt.execution.checkpointing.dir``; ``None`` if they are inside the location,
    as they are without the setting.
    """

    location: Storage
    root: Storage | None

    @classmethod
    def of_setting(cls, location: Storage, directory: str | None) -> CheckpointsPlace:
        """Return the place that a setting means."""
        return cls(location, None if directory is None else open_storage(directory))

    @classmethod
    def of_record(cls, location: Storage, record: PlaceRecord) -> CheckpointsPlace:
        """Return the place that a location's record means."""
        if record.inside is not None:
            return cls(location, location.child(record.inside) if record.inside else location)
        if record.directory is not None and not _ABSOLUTE.match(record.directory):
            raise UnsafePathError(
                f"{location.url_of(PLACES)} names the path {record.directory!r}, which depends on "
                "the working directory: the file is damaged or hostile, do not use it"
            )
        return cls.of_setting(location, record.directory)

    def record(self) -> PlaceRecord:
        """Return the location's record of this place."""
        if self.root is None:
            return PlaceRecord()
        if self.inside is not None:
            return PlaceRecord(inside=self.inside)
        return PlaceRecord(directory=self.root.url)

    @property
    def inside(self) -> str | None:
        """The path of the setting's directory in the location, ``None`` if it lies elsewhere."""
        if self.root is None:
            return None
        root, location = resolved_path(self.root), resolved_path(self.location)
        is_inside = f"{root}/".startswith(f"{location}/")
        return root[len(location) + 1 :] if is_inside else None

    def checkpoints(self, query_id: str) -> Storage:
        """Return the checkpoints directory of a query."""
        if self.root is None:
            return open_storage(self.location.url_of(CHECKPOINTS_DIRECTORY))
        return self.root.child(query_id)

    def how_to_set(self) -> str:
        """Return in words how a query is started with this place."""
        if self.root is None:
            return f"without {SETTING} (spark.conf.unset removes it from a session)"
        return f"with {SETTING}={self.root.url}"

    def has_content(self, query_id: str) -> bool:
        """Return whether something of a query is there, as far as that can be read."""
        return _directory(self, query_id).has_content


@dataclass(frozen=True, slots=True)
class Directory:
    """What is known of a directory in which a query may have its checkpoints."""

    url: str
    how_to_set: str
    is_elsewhere: bool
    has_content: bool
    has_checkpoints: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a location, and of the directory that a start has for its checkpoints.

    `recorded` is what the location's record says, ``None`` without one; `record_number` is the
    record's number. `is_same` says whether it is the requested directory, perhaps by another path.

    The others are looked at only if nothing else shows where the checkpoints are. `default` is the
    directory inside of the location. `has_token` says that the checkpoints, or their store, were
    elsewhere. `missing` are files that the state of the newest epoch needs and the requested
    directory lacks.
    """

    location: str
    has_epochs: bool
    requested: Directory
    recorded: Directory | None = None
    is_same: bool = False
    record_number: int = 0
    default: Directory | None = None
    has_token: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a query may start: why not, and whether its directory has to be recorded."""

    refusal: str | None = None
    is_new: bool = False


def decide(facts: Facts) -> Decision:
    """Return whether a query may start with its directory of checkpoints.

    It may if the state of its newest epoch is there, and nothing says that it is elsewhere.
    """
    recorded, requested = facts.recorded, facts.requested
    if recorded is None:
        refusal = _refusal_of_unrecorded(facts) if facts.has_epochs else None
        return Decision(refusal, is_new=refusal is None)
    if facts.is_same:
        # A driver may be killed before it has written anything into the default directory.
        is_there = requested.has_content or not (requested.is_elsewhere or facts.missing)
        is_there = is_there or not facts.has_epochs
        return Decision(None if is_there else _gone(facts, recorded))
    if not (facts.has_epochs or recorded.has_checkpoints):
        return Decision(is_new=True)  # such as after a start that Spark has refused
    if recorded.has_content:
        return Decision(_other(facts, recorded))
    if requested.has_content and not facts.missing:
        return Decision(is_new=True)  # it was moved there
    return Decision(_gone(facts, recorded))


def _refusal_of_unrecorded(facts: Facts) -> str | None:
    """Return why a location without a record, as a user may delete it, may not start."""
    requested, default = facts.requested, facts.default
    has_default = default is not None and default.has_content and requested.is_elsewhere
    if requested.has_content or not (has_default or facts.has_token):
        return _lacks(facts, other=default if has_default else None) if facts.missing else None
    if default is not None and has_default:
        return _other(facts, default)
    return (
        f"{facts.location}: the checkpoints of this location are outside of it, and "
        f"{requested.url} has none of them. Start it with the {SETTING} that it had. "
        f"{_if_lost(facts)}"
    )


def _other(facts: Facts, there: Directory) -> str:
    requested = facts.requested
    if there.problem is not None:
        return (
            f"{facts.location}: the checkpoints of this location are in {there.url}, which cannot "
            f"be read ({there.problem}), and this start has them in {requested.url}. Make it "
            f"readable, and start the query {there.how_to_set}. If it is gone for good and "
            f"{requested.url} has its content, delete {PLACES} in the location, and start it again"
        )
    first = f"move away what is in {requested.url}, then " if requested.has_content else ""
    return (
        f"{facts.location}: the checkpoints of this location are in {there.url}, and this start "
        f"has them in {requested.url}. Start it {there.how_to_set}. To have them in the new "
        f"directory, stop every driver of the query, {first}move {there.url} to {requested.url}, "
        "and start it again"
    )


def _gone(facts: Facts, there: Directory) -> str:
    to = facts.requested
    lacks = ""
    if to.has_content and facts.missing:
        lacks = f" {to.url} lacks {_files(facts.missing)} of its newest epoch."
    to_do = "Mount it or put it back, and start the query again"
    if not facts.is_same:
        to_do = (
            f"Mount it or put it back, and start the query {there.how_to_set}; or move it to "
            f"{to.url}, and start the query {to.how_to_set}"
        )
    return (
        f"{facts.location}: the checkpoints of this location are in {there.url}, which is gone: "
        f"its disk may not be mounted, or it was moved or deleted.{lacks} {to_do}. "
        f"{_if_lost(facts)}"
    )


def _lacks(facts: Facts, other: Directory | None) -> str:
    requested = facts.requested
    had = f"are in the {SETTING} that it had before" if other is None else f"may be in {other.url}"
    source = "that directory" if other is None else other.url
    return (
        f"{facts.location}: {requested.url} lacks {_files(facts.missing)} of its newest epoch. "
        f"They {had}: start the query with that directory. If a move was interrupted, copy "
        f"{SHARED} and {TASK_OWNED} of {source} into {requested.url}, and start it again. "
        f"{_if_lost(facts)}"
    )


def _if_lost(facts: Facts) -> str:
    if facts.missing or facts.requested.has_content:
        return (
            "If they are lost, start at a fresh checkpointLocation with restoreFrom(path) of a "
            "savepoint, or of a chk-N that has its files"
        )
    return (
        f"If they are lost: the newest epoch needs no file of them, so delete {PLACES} and "
        f"{IDENTITY_NAME} in the location, and start it again"
    )


def _files(missing: Collection[str]) -> str:
    named = ", ".join(sorted(missing)[:_NAMED])
    return f"{len(missing)} files of state ({named}{', ...' if len(missing) > _NAMED else ''})"


def inspect(
    requested: CheckpointsPlace,
    query_id: str,
    needed: Callable[[], Collection[str]],
    *,
    has_epochs: bool,
) -> Facts:
    """Return what is known of a location and of the directory that a start has for its checkpoints.

    `needed` returns the files that the state of the newest committed epoch needs. It is called only
    if nothing shows that the directory belongs to the location. ``RestoreError`` is raised if the
    directory belongs to another location.
    """
    location = requested.location
    number, record = read_place(RetryingStorage(location))
    recorded = None if record is None else CheckpointsPlace.of_record(location, record)
    is_same = recorded is not None and is_same_place(requested, recorded, query_id)
    used = requested if recorded is None or is_same else recorded
    if used.root is not None:
        check_owner(location, used.checkpoints(query_id))
    there = _directory(used, query_id)
    wanted = there if used is requested else _directory(requested, query_id)
    facts = Facts(
        location.url,
        has_epochs,
        requested=wanted,
        recorded=None if recorded is None else there,
        is_same=is_same,
        record_number=number,
    )
    if not has_epochs or (recorded is not None and there.has_content):
        return facts
    files = {*needed()}
    if files:
        checkpoints = requested.checkpoints(query_id)
        files -= {f"{top}/{name}" for top in (SHARED, TASK_OWNED) for name in checkpoints.list(top)}
    return replace(
        facts,
        has_token=location.exists(IDENTITY_NAME),
        default=_directory(CheckpointsPlace(location, None), query_id),
        missing=tuple(sorted(files)),
    )


def recorded_place(location: Storage) -> CheckpointsPlace | None:
    """Return where a location has its checkpoints by its record, ``None`` without a record."""
    _, record = read_place(location)
    return None if record is None else CheckpointsPlace.of_record(location, record)


def recorded_checkpoints(location: Storage) -> Storage | None:
    """Return the checkpoints directory that a location records, if it is outside of the default.

    The location may be a stranger's. So a directory counts only if it names the location as its
    owner in turn.

    The result is ``None`` if nothing is recorded, or if the record names the default.
    ``CheckpointNotFoundError`` is raised if the directory is gone, or belongs to another location.
    """
    place = recorded_place(location)
    query_id = None if place is None or place.root is None else SparkLog(location).query_id()
    if place is None or query_id is None:
        return None
    checkpoints = place.checkpoints(query_id)
    if not checkpoints.exists(owner_path(1)):
        raise CheckpointNotFoundError(
            f"{location.url} has its checkpoints in {checkpoints.url}, which is gone: its disk may "
            "not be mounted here, or it was moved or deleted. Mount it or put it back, or give the "
            "directory that has the checkpoints now"
        )
    try:
        check_owner(location, checkpoints)
    except RestoreError as exc:
        raise CheckpointNotFoundError(
            f"{location.url} says that its checkpoints are in {checkpoints.url}, but they belong "
            f"to another location, of which this one may be a copy. To read them, give "
            f"{checkpoints.url} itself"
        ) from exc
    return checkpoints


def is_same_place(one: CheckpointsPlace, other: CheckpointsPlace, query_id: str) -> bool:
    """Return whether two places are one directory, perhaps by two paths."""
    if one.root is None and other.root is None:
        return True
    first, second = one.checkpoints(query_id), other.checkpoints(query_id)
    if resolved_path(first) == resolved_path(second):
        return True
    if not (first.exists(owner_path(1)) and second.exists(owner_path(1))):
        return False
    try:  # nothing is written into a directory of another location
        check_owner(one.location, first)
        check_owner(one.location, second)
    except RestoreError:
        return False
    if isinstance(first, LocalStorage) and isinstance(second, LocalStorage):
        with suppress(OSError):
            if Path(first.root).samefile(second.root):
                return True
    return _is_seen_in(first, second)


def _is_seen_in(first: Storage, second: Storage) -> bool:
    """Return whether a file that is written into a directory is in another one too.

    Names and attributes of files do not show it: a server may have two names, and a copy may have
    all attributes of the original.
    """
    probe = f"{OWNERS}/same-{secrets.token_hex(8)}"
    try:
        first.write(probe, [b"is this the same directory?\n"])
        try:
            return second.exists(probe)
        finally:
            first.delete([probe])
    except OSError:  # the caller then refuses it, and says what to do
        return False


def _directory(place: CheckpointsPlace, query_id: str) -> Directory:
    checkpoints = place.checkpoints(query_id)
    names, problem = [], None
    try:
        names = checkpoints.list()
    except OSError as exc:
        problem = str(exc)
    has_checkpoints = any(checkpoint_id_of(name) is not None for name in names)
    return Directory(
        checkpoints.url,
        place.how_to_set(),
        is_elsewhere=place.root is not None,
        # What cannot be read may be there.
        has_content=has_checkpoints or problem is not None or not _OF_A_QUERY.isdisjoint(names),
        has_checkpoints=has_checkpoints,
        problem=problem,
    )


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The newest checkpoint of a directory that can be read."""

    epoch: int
    url: str
    rollback_call: str


def newest_checkpoint(location: Storage, checkpoints: Storage) -> NewestCheckpoint | None:
    """Return the newest checkpoint of a location that can be read, ``None`` if there is none."""
    with closing(find_store(checkpoints)) as store:
        for number in sorted(store.ids(), reverse=True):
            with suppress(CkptError):
                name, epoch = checkpoint_name(number), store.read(number).epoch
                call = rollback_call(location, checkpoints, name)
                return NewestCheckpoint(epoch, checkpoints.url_of(name), call)
    return None


def behind(
    location: str, committed: int | None, newest: NewestCheckpoint | None, run_again: int = 0
) -> RestoreError | None:
    """Return why a location cannot start whose checkpoints are of epochs that it has not committed.

    The next checkpoints would replace such a checkpoint, and delete its files.

    `committed` is ``None`` before the first epoch is committed. `run_again` is the number of epochs
    that the location may lack.
    """
    if newest is None or newest.epoch <= (-1 if committed is None else committed) + run_again:
        return None
    has = "no epoch" if committed is None else f"epochs up to {committed}"
    return RestoreError(
        f"{location} is behind its checkpoints: {newest.url} is of epoch "
        f"{newest.epoch}, but the location has committed {has}. Files of it may be lost, or it may "
        f"have been restored from a backup. Call {newest.rollback_call} to continue from that "
        f"checkpoint, or start at a fresh checkpointLocation with restoreFrom({newest.url!r})"
    )


def rollback_call(location: Storage, checkpoints: Storage, name: str) -> str:
    """Return the call that rolls a location back to a checkpoint, as a user writes it."""
    elsewhere = ""
    if checkpoints.url != location.url_of(CHECKPOINTS_DIRECTORY):
        elsewhere = f", checkpoints_directory={checkpoints.parent().url!r}"
    return f"pyspark_ckpt.location({location.url!r}).rollback({name!r}{elsewhere})"
