"""Erases keys from every savepoint of a directory, and says where their bytes still are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pyspark_ckpt.editing.key_search import KeyBytes, KeySearch
from pyspark_ckpt.editing.operator_job import OperatorJob
from pyspark_ckpt.editing.state_edit import StateEdit, stored_operator
from pyspark_ckpt.errors import CheckpointNotFoundError, PlanError, RestoreError
from pyspark_ckpt.formats.layout import (
    IN_PROGRESS_NAME,
    METADATA_NAME,
    checkpoint_id_of,
    is_savepoint_name,
)
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint, format_of
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.dispose import dispose_savepoint, files_of_others, own_files
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.spark.program import check_frame
from pyspark_ckpt.spark.session import session_in_use
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.values.types import in_python

_MOST_LEVELS = 10
_OF_SAVEPOINTS = {METADATA_NAME, IN_PROGRESS_NAME}
Keys = Mapping[str, DataFrame | Sequence[DataFrame]]


@dataclass(frozen=True, slots=True)
class Erasure:
    """What became of one savepoint; returned by :meth:`Location.erase_keys`.

    Parameters
    ----------
    replaced : str, optional
        The savepoint that had the keys, or might have had them; it was disposed of. ``None`` if the
        savepoint has none of the keys, and stays.
    savepoint : Savepoint
        The savepoint that replaces it, or that stays.
    mentions : int
        Entries of other keys or operators in `savepoint` that contain the bytes of a column of an
        erased key: in a key or map key, in a list, in a nested value, in a longer text. They are
        kept.
    not_scanned : tuple of str
        Files of `savepoint` that were not searched: Spark's, which are the state of its own
        operators and the logs of sources, and those of a ``NATIVE`` savepoint that stays, which may
        have what was deleted.
    too_short : int
        Erased keys with a column of fewer than four bytes. So few bytes are in other entries by
        chance, so `mentions` leaves them out, except where they are a whole text of three.
    left : tuple of str
        What is in the directory of `replaced`, or of a `savepoint` that stays, and is not part of
        it: files that somebody put there, or that a task left. They are kept, and not searched.

    Examples
    --------
    >>> erasure = ckpt.results.Erasure("/savepoints/savepoint-1", savepoint, 0, ())
    >>> erasure.mentions
    0
    """

    replaced: str | None
    savepoint: Savepoint
    mentions: int
    not_scanned: tuple[str, ...]
    too_short: int = 0
    left: tuple[str, ...] = ()


def erase_keys(
    directory: str,
    keys: Mapping[str, DataFrame | Sequence[DataFrame]],
    *,
    spark: SparkSession | None = None,
) -> list[Erasure]:
    """Erase keys from every savepoint in a directory."""
    session = session_in_use("erase_keys", PlanError, spark, *frames_of(keys))
    place = open_storage(qualified_path(session, str(directory)))
    found = list(_savepoints_below(place, _MOST_LEVELS))
    if not found:
        raise CheckpointNotFoundError(
            f"{place.url} has no savepoint: give the directory in which savepoint-... directories "
            "are, not one of them and not a checkpointLocation"
        )
    sources = [RestoreSource(savepoint.url) for savepoint in found]
    for source in sources:
        _check_can_be_disposed_of(source)
    given = GivenKeys(keys, sources, place.url)
    wanted = [_encoded(session, source, given) for source in sources]
    # Of all savepoints, because the operators of one may mention the keys of another.
    key_bytes = KeyBytes.of([key for each in wanted for of in each.values() for key in of.items()])
    erasures = []
    for savepoint, source, encoded in zip(found, sources, wanted, strict=True):
        stored = {uid: frozenset(of) for uid, of in encoded.items()}
        search = KeySearch(session, stored, key_bytes)
        if (kept := _erasure_without_keys(source, search)) is not None:
            erasures.append(kept)
            continue
        edit = StateEdit(session, source)
        for uid in stored:
            for rows in given.of(source)[uid]:
                edit.erase(uid, rows)
        erasures.append(_check_erased(source, edit.save(savepoint.parent().url), search))
    return [_dispose(erasure) for erasure in erasures]


def _check_can_be_disposed_of(source: RestoreSource) -> None:
    if not source.metadata.is_savepoint:
        raise CheckpointNotFoundError(
            f"{source.path} holds a checkpoint, not a savepoint, though it is not named so: move "
            "it elsewhere, or delete it"
        )
    own_files(source.storage, source.metadata)


def _dispose(erasure: Erasure) -> Erasure:
    if erasure.replaced is None:
        return erasure
    return replace(erasure, left=dispose_savepoint(erasure.replaced).left)


def _encoded(
    spark: SparkSession, source: RestoreSource, given: GivenKeys
) -> dict[str, dict[bytes, bytes]]:
    """Return the keys of each operator that a savepoint has, as ``OperatorJob.erased_keys``."""
    found, keys = {}, given.of(source)
    for stored in source.metadata.operators:
        if stored.uid in keys:
            operator = stored_operator(source, stored)
            for rows in keys[stored.uid]:
                operator.erase(rows)
            found[stored.uid] = OperatorJob(spark, operator).erased_keys()
    return {uid: encoded for uid, encoded in found.items() if encoded}


def _erasure_without_keys(source: RestoreSource, search: KeySearch) -> Erasure | None:
    """Return a savepoint that stays, ``None`` for one that has a key, or may have a deleted one.

    A native savepoint has files of the backend and of the changelog, which keep what was
    overwritten.
    """
    is_native = format_of(source.metadata) is not SavepointFormat.CANONICAL
    if is_native and search.keys:
        return None
    found = search.found_in(source)
    if found.own:
        return None
    size_bytes = source.storage.size_bytes(METADATA_NAME) or 0
    savepoint = Savepoint.of(source.path, source.metadata, size_bytes)
    handles = source.metadata.handles() if is_native else ()
    files = {file.path for handle in handles for file in handle.files()}
    left = files_of_others(source.storage, source.metadata)
    not_scanned = _of_spark(source, files)
    return Erasure(None, savepoint, found.mentions, not_scanned, search.too_short, left)


def _check_erased(source: RestoreSource, made: Savepoint, search: KeySearch) -> Erasure:
    """Return what became of a savepoint, after the new one was read back."""
    new = RestoreSource(made.path)
    found = search.found_in(new)
    if found.own:
        raise RestoreError(
            f"{made.path} still has {found.own} entries of erased keys, so {source.path} was kept: "
            "this is a bug of the library, report it; and dispose of both savepoints by hand"
        )
    return Erasure(source.path, made, found.mentions, _of_spark(new), search.too_short)


def _of_spark(source: RestoreSource, others: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the files of Spark in a savepoint, and others."""
    logs = [log.file.path for log in source.metadata.source_logs]
    files = [each.file.path for each in source.metadata.spark_operator_files()]
    return tuple(sorted({*logs, *files, *others}))


def _savepoints_below(place: Storage, levels: int) -> Iterator[Storage]:
    """Return the directories of savepoints below a directory, whatever their names."""
    names = place.list()
    if any(checkpoint_id_of(name) is not None for name in names):
        raise PlanError(
            f"{place.url} has checkpoints of a query, which only the query's retention deletes: "
            "start the query from an edited savepoint at a fresh checkpointLocation, then delete "
            "the old location"
        )
    for name in names:
        _check_no_link(place, name)
        below = place.child(name)
        inside = below.list()  # nothing in a file
        nested = sorted(filter(is_savepoint_name, inside))
        is_archive = bool(nested) and _OF_SAVEPOINTS.isdisjoint(inside)
        may_be_incomplete = name.startswith("savepoint-") and not is_archive
        if may_be_incomplete or not _OF_SAVEPOINTS.isdisjoint(inside):
            if nested:
                raise PlanError(
                    f"{below.url} is a savepoint and has {', '.join(nested)} inside: move that "
                    "next to it, or it would stay with the keys when this one is replaced"
                )
            yield below
        elif inside and not levels:
            raise PlanError(
                f"{below.url} is more than {_MOST_LEVELS} levels below the directory, and may have "
                "savepoints: give a directory nearer to them"
            )
        elif inside:
            yield from _savepoints_below(below, levels - 1)


def _check_no_link(place: Storage, name: str) -> None:
    """Refuse a link to a directory: one savepoint would be there twice."""
    if not isinstance(place, LocalStorage):
        return
    path = place.root / name
    if path.is_symlink() and path.is_dir():
        raise PlanError(
            f"{path} is a link, so one savepoint may be there twice: give the directory to which "
            "it leads, or remove it"
        )


def frames_of(keys: Keys) -> list[DataFrame]:
    """Return all frames of keys that a user gives."""
    return [frame for uid, of in keys.items() for frame in _as_list(uid, of)]


def _as_list(uid: str, of: DataFrame | Sequence[DataFrame]) -> list[DataFrame]:
    frames = list(of) if isinstance(of, Sequence) else [of]
    for frame in frames:
        check_frame(frame, "erase_keys", f"the keys of operator {uid!r}", PlanError)
    return frames


class GivenKeys:
    """The keys of several savepoints, whose operators may have other key columns after a rekey.

    A frame has the keys of those savepoints whose key columns have its names, and, if some of them
    have its types too, of these only.

    `keys` has one or several frames for each operator's uid. ``PlanError`` is raised if no
    savepoint has the operator or the key columns of a frame, or if no frame has the key columns of
    a savepoint.
    """

    def __init__(self, keys: Keys, sources: Sequence[RestoreSource], where: str) -> None:
        self._where = where
        frames = {uid: _as_list(uid, of) for uid, of in keys.items()}
        paths: dict[str, dict[str, list[str]]] = {}
        for source in sources:
            for operator in source.metadata.operators:
                of_operator = paths.setdefault(operator.uid, {})
                of_operator.setdefault(operator.key_schema, []).append(source.path)
        if unknown := keys.keys() - paths.keys():
            raise PlanError(
                f"no savepoint in {where} has an operator {', '.join(map(repr, sorted(unknown)))}: "
                f"they have {', '.join(map(repr, sorted(paths)))}"
            )
        self._frames = {uid: self._by_schema(uid, of, paths[uid]) for uid, of in frames.items()}

    def of(self, source: RestoreSource) -> dict[str, list[DataFrame]]:
        """Return the keys of each operator that a savepoint has, by its uid."""
        return {
            operator.uid: self._frames[operator.uid][operator.key_schema]
            for operator in source.metadata.operators
            if operator.uid in self._frames
        }

    def _by_schema(
        self, uid: str, frames: Sequence[DataFrame], paths: Mapping[str, Sequence[str]]
    ) -> dict[str, list[DataFrame]]:
        """Return the frames of each key schema; `paths` are the savepoints that have it."""
        found: dict[str, list[DataFrame]] = {schema: [] for schema in paths}
        types = {schema: _types(struct_type(schema)) for schema in paths}
        for frame in frames:
            given = _types(frame.schema)
            same_names = [each for each in paths if sorted(types[each]) == sorted(frame.columns)]
            if not same_names:
                raise PlanError(
                    f"{self._where}, operator {uid!r}: the keys have the columns "
                    f"{', '.join(frame.columns)}, and its savepoints have keys of "
                    f"{' or '.join(map(_types_text, types.values()))}: give these columns"
                )
            same_types = [each for each in same_names if types[each] == given]
            for schema in same_types or same_names:
                found[schema].append(frame)
        lacking = [
            f"{', '.join(paths[schema])} has keys of {_types_text(types[schema])}"
            for schema, of_schema in found.items()
            if not of_schema
        ]
        if lacking:
            raise PlanError(
                f"{self._where}, operator {uid!r}: {'; '.join(lacking)}; and no such keys are "
                f"given: give {uid!r} a list that has a DataFrame of these columns too, without "
                "rows if there is no such key"
            )
        return found


def _types(schema: T.StructType) -> dict[str, T.DataType]:
    return {field.name: in_python(field.dataType) for field in schema.fields}


def _types_text(types: Mapping[str, T.DataType]) -> str:
    return "(" + ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items()) + ")"
