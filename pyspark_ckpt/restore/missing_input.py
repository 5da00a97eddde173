"""Input that is gone, and that a query would read again from a checkpoint on: its rows would lack.

The epochs after a checkpoint are void for a query that starts from it: it reads their input again.
The logs of the sources name the files of those epochs. A file that no longer exists is refused, or
left out if the user allows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import CkptError, CorruptFileError, RestoreError
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    KEPT_BY_ROLLBACK,
    checkpoint_id_of,
)
from pyspark_ckpt.formats.location_files import read_rolled_back
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.schema.verdict import StateOutcome
from pyspark_ckpt.restore.planned import PlannedPart, planned_state, refused_part
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.log import Sources, SparkLog
from pyspark_ckpt.spark.source_files import (
    CannotLookError,
    ReadFile,
    differing,
    files_in_log,
    files_read,
    gone,
)
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.owner import owner_location

logger = library_logger(__name__)

_QUERY = "(query)"
_INPUT = "(input)"
_MOST_NAMED = 10
_ALLOWED = "so their rows are left out, which is allowed"
_ALLOW = (
    "leave their rows out with allowMissingInput=True of restoreFrom, allow_missing_input=True of "
    "rollback, or --allow-missing-input of a command"
)
_ADVICE = (
    "Put these files back, if they were archived (cleanSource) or there is a copy; or take a "
    f"later checkpoint; or {_ALLOW}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput(PlannedPart):
    """Whether all input of the void epochs is still there; `files` are gone, by their URLs."""

    files: tuple[str, ...] = ()


def plan_input(source: RestoreSource, spark: SparkSession | None, *, allows: bool) -> PlannedInput:
    """Look for the input that later epochs of the same query have read.

    `spark` is ``None`` if nothing is to be looked for. If the location of the query cannot be
    reached, such as on another machine, it is unknown what later epochs have read.
    """
    if spark is None:
        return PlannedInput()
    read: dict[str, set[ReadFile]] = {}
    for content in _contents_after(source):
        for name, files in files_read(content).items():
            read.setdefault(name, set()).update(files)
    return planned_input(
        spark, source.path, read, files_seen(source) if read else {}, allows=allows
    )


def planned_input(
    spark: SparkSession,
    path: str,
    read: Mapping[str, set[ReadFile]],
    seen: Mapping[str, set[ReadFile]],
    *,
    allows: bool,
) -> PlannedInput:
    """Return which files were read, are not in the state that is gone back to, and are gone.

    `read` is what was read before, and `seen` is what the state at `path` contains, both by the
    name of the source.
    """
    void = differing(read, seen)
    if not void:
        return PlannedInput()
    try:
        files = tuple(gone(spark, void))
    except CannotLookError as exc:
        text = (
            f"{path}: {_number(void)} that later epochs have read would be read again, and nobody "
            f"knows whether they are there, because {exc}"
        )
        advice = f"Give the session the settings that reach them (--conf), or {_ALLOW}"
        return _part(text, f"{text}. {advice}", (), allows=allows)
    if not files:
        return PlannedInput()
    text = (
        f"{path}: {_number(files)} that later epochs have read are gone and cannot be read again: "
        f"{_first_names(files)}"
    )
    return _part(text, f"{text}. {_ADVICE}", files, allows=allows)


def _part(text: str, refusal: str, files: tuple[str, ...], *, allows: bool) -> PlannedInput:
    if allows:
        logger.warning("%s: %s", text, _ALLOWED)
        row = planned_state(_QUERY, _INPUT, StateOutcome.DROPPED, f"{text}: {_ALLOWED}")
        return PlannedInput(rows=(row,), files=files)
    part = refused_part(_QUERY, _INPUT, RestoreError(refusal))
    return PlannedInput(rows=part.rows, errors=part.errors, files=files)


def files_seen(source: RestoreSource) -> dict[str, set[ReadFile]]:
    """Return the files whose rows the state of a checkpoint contains, by the name of the source."""
    metadata = source.metadata
    sources = Sources(metadata.source_ids, metadata.source_names)
    found: dict[str, set[ReadFile]] = {}
    with source.reading():
        for log in metadata.source_logs:
            with source.storage.open_verified(log.file) as file:
                files, _ = files_in_log(file.read())
            found.setdefault(sources.log_name(log.source_index), set()).update(files)
    return found


def _contents_after(source: RestoreSource) -> list[Storage]:
    """Return the directories that have logs of epochs after a checkpoint: location, and kept ones.

    What was there before a rollback counts: it may be of the query, and the location not.
    """
    query_id, places = source.of_query, _places(source)
    for place in places:
        try:
            location = open_storage(place)
            kept = [name for name in location.list() if name.startswith(KEPT_BY_ROLLBACK)]
            contents = [location, *map(location.child, kept)]
            found = [content for content in contents if _follows(content, query_id)]
        except (OSError, CkptError) as exc:
            logger.warning(
                "%s: it is not known whether input of later epochs is gone, because their location "
                "%s cannot be read: %s",
                source.path,
                place,
                exc,
            )
            continue
        if found:
            return found
    return []


def _follows(content: Storage, query_id: str) -> bool:
    """Return whether epochs there are of a query, or of one that went back to its checkpoints.

    If the file with the id is damaged, they may be.
    """
    void = {each.query_id for each in read_rolled_back(content)}
    found = None
    with suppress(CorruptFileError):
        found = SparkLog(content).query_id()
    return query_id in void or found in (None, query_id)


def _places(source: RestoreSource) -> list[str]:
    """Return where the location of a checkpoint's query may be, the likeliest first."""
    directory = open_storage(source.path)
    found = []
    if checkpoint_id_of(directory.name) is not None:
        checkpoints = directory.parent()
        if checkpoints.name == CHECKPOINTS_DIRECTORY:
            found.append(checkpoints.parent().url)
        elif (owner := owner_location(checkpoints)) is not None:
            found.append(owner)
    if source.metadata.location is not None:
        found.append(source.metadata.location)
    return list(dict.fromkeys(found))


def _number(files: Collection[str]) -> str:
    return "1 input file" if len(files) == 1 else f"{len(files)} input files"


def _first_names(files: tuple[str, ...]) -> str:
    named = ", ".join(map(unquote, files[:_MOST_NAMED]))
    return f"{named} and {len(files) - _MOST_NAMED} more" if files[_MOST_NAMED:] else named
