"""Which of the keys that a user gives are keys of an operator in each savepoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pyspark_ckpt.editing.given.columns import in_python
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.spark.program import check_frame

Keys = Mapping[str, DataFrame | Sequence[DataFrame]]


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
                    f"{' or '.join(map(_shown, types.values()))}: give these columns"
                )
            same_types = [each for each in same_names if types[each] == given]
            for schema in same_types or same_names:
                found[schema].append(frame)
        lacking = [
            f"{', '.join(paths[schema])} has keys of {_shown(types[schema])}"
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


def _shown(types: Mapping[str, T.DataType]) -> str:
    return "(" + ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items()) + ")"
