"""The contents of an epoch, and the metadata of a checkpoint or savepoint made of them.

:mod:`metadata_file` writes the metadata.

Paths inside are relative to :attr:`CheckpointMetadata.root`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import operator_mark
from pyspark_ckpt.formats.modes import CheckpointKind, TimeMode
from pyspark_ckpt.settings import ClaimMode
from pyspark_ckpt.storage.base import FileReference

ROOTS = {CheckpointKind.CHECKPOINT: "..", CheckpointKind.SAVEPOINT: "."}
"""The directory that paths start from, relative to that of ``_metadata``."""


class SourceLog(msgspec.Struct, frozen=True):
    """A copy of one of Spark's files in ``sources/<index>/``."""

    source_index: int
    log_name: str
    file: FileReference


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint or savepoint that a query was restored from, as it was then.

    `operators` are the uids whose state was restored. `sha256` is the digest of its ``_metadata``.
    `skipped` has a text for each newer checkpoint that was corrupt: why it was skipped.
    """

    path: str
    kind: CheckpointKind
    checkpoint_id: int | None
    query_id: str
    epoch: int
    operators: tuple[str, ...]
    sha256: str = ""
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    skipped: tuple[str, ...] = ()


class OperatorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One stateful operator; a subtask that never had a row has no handle.

    `processor` is the qualified name of its class; the digests are fingerprints of its code and of
    its key and state schemas.
    """

    operator_id: int
    uid: str
    parallelism: int
    max_parallelism: int
    key_schema: str
    backend: str
    handles: tuple[Handle, ...]
    processor: str = ""
    code_sha256: str = ""
    schema_sha256: str = ""
    time_mode: TimeMode = TimeMode.NONE


class SparkOperatorFile(msgspec.Struct, frozen=True):
    """A copy of one of Spark's files; `name` is its path below ``state/<operator id>/``."""

    name: str
    file: FileReference


class SparkOperatorMetadata(msgspec.Struct, frozen=True):
    """One of Spark's own stateful operators, with the files of its state at the epoch's end."""

    operator_id: int
    name: str
    files: tuple[SparkOperatorFile, ...]


class _Parts:
    """The methods that the contents of an epoch and the metadata made of them share."""

    __slots__ = ()

    epoch: int
    source_logs: tuple[SourceLog, ...]
    operators: tuple[OperatorMetadata, ...]
    spark_operators: tuple[SparkOperatorMetadata, ...]

    def spark_operator_files(self) -> list[SparkOperatorFile]:
        """Return the files of Spark's own stateful operators."""
        return [file for operator in self.spark_operators for file in operator.files]

    def handles(self) -> list[Handle]:
        """Return the handles of all operators."""
        return [handle for operator in self.operators for handle in operator.handles]

    def pending_snapshots(self) -> set[str]:
        """Return the ids of the pending snapshots that later epochs may use as a base."""
        return {snapshot for handle in self.handles() for snapshot in handle.kept_snapshots()}

    def kept_files(self) -> set[str]:
        """Return the paths that handles of other attempts at its epochs may refer to."""
        return {path for handle in self.handles() for path in handle.kept_files()}

    def kept_since(self) -> dict[tuple[str, int], int]:
        """Return, for each subtask, the first epoch whose files another handle may refer to.

        The keys are the operator's mark and the subtask's number, as in names of files.
        """
        since: dict[tuple[str, int], int] = {}
        for handle in self.handles():
            subtask = operator_mark(handle.uid), handle.subtask
            since[subtask] = min(handle.kept_since(), since.get(subtask, handle.epoch))
        return since

    def files(self) -> list[FileReference]:
        """Return every file besides ``_metadata`` that this checkpoint needs."""
        state = [reference for handle in self.handles() for reference in handle.files()]
        logs = [log.file for log in self.source_logs]
        return [*state, *logs, *(each.file for each in self.spark_operator_files())]

    @property
    def size_bytes(self) -> int:
        """Bytes in all files and inline segments, each counted once."""
        files = {reference.path: reference.size_bytes for reference in self.files()}
        segments = (
            segment
            for operator in self.operators
            for handle in operator.handles
            for segment in handle.segments
        )
        return sum(files.values()) + sum(
            segment.size_bytes for segment in segments if segment.inline is not None
        )


class EpochContents(_Parts, msgspec.Struct, frozen=True, kw_only=True):
    """The state and position of a whole query at the end of one epoch, as they were gathered.

    :func:`metadata_of` makes a checkpoint or savepoint of it. `parent` is what the query was
    restored from, or ``None``. `offsets_entry` and `commits_entry` are Spark's own log texts.
    `source_ids` has the id of the source for each offset in them. `source_names` has the names that
    the user gave these sources, by their numbers; it is empty if Spark uses no names. `phases_ms`
    has how long each phase of gathering took: the handles, Spark's offsets and source logs, the
    check of all files. `spark_operators` are Spark's own stateful operators. `location` is the
    ``checkpointLocation`` whose epoch it is, and `location_query_id` the id of the query there,
    which stays if a user edits the state; both are ``None`` if no query has run.
    """

    epoch: int
    query_id: str
    query_name: str | None
    parent: Origin | None
    spark_version: str
    library_version: str
    watermark_ms: int
    offsets_entry: str
    commits_entry: str
    source_logs: tuple[SourceLog, ...]
    operators: tuple[OperatorMetadata, ...]
    source_ids: tuple[int, ...] = ()
    phases_ms: dict[str, int] = {}
    spark_operators: tuple[SparkOperatorMetadata, ...] = ()
    source_names: tuple[str, ...] = ()
    location: str | None = None
    location_query_id: str | None = None


class CheckpointMetadata(_Parts, msgspec.Struct, frozen=True, kw_only=True):
    """The contents of an epoch as a checkpoint or savepoint stores them.

    `root` is the directory that all paths start from, relative to the directory of the
    ``_metadata`` file. The other fields are the fields of :class:`EpochContents`. The order of all
    fields is part of the format.
    """

    checkpoint_id: int | None
    kind: CheckpointKind
    root: str
    epoch: int
    query_id: str
    query_name: str | None
    parent: Origin | None
    spark_version: str
    library_version: str
    triggered_at_ms: int
    completed_at_ms: int
    watermark_ms: int
    offsets_entry: str
    commits_entry: str
    source_logs: tuple[SourceLog, ...]
    operators: tuple[OperatorMetadata, ...]
    source_ids: tuple[int, ...] = ()
    phases_ms: dict[str, int] = {}
    spark_operators: tuple[SparkOperatorMetadata, ...] = ()
    source_names: tuple[str, ...] = ()
    location: str | None = None
    location_query_id: str | None = None

    @property
    def is_savepoint(self) -> bool:
        """Whether it is a savepoint, which the user owns, not a checkpoint of the query."""
        return self.kind is CheckpointKind.SAVEPOINT

    def contents(self) -> EpochContents:
        """Return the contents of the epoch, without id and times."""
        return EpochContents(**_fields_of_contents(self))


def metadata_of(
    contents: EpochContents,
    kind: CheckpointKind,
    *,
    checkpoint_id: int | None,
    triggered_at_ms: int,
    completed_at_ms: int,
) -> CheckpointMetadata:
    """Return the metadata of a checkpoint or savepoint of an epoch.

    For a savepoint, `contents` has the handles of the copies, and `checkpoint_id` is ``None``.
    `completed_at_ms` is when everything except ``_metadata`` was durable.
    """
    return CheckpointMetadata(
        checkpoint_id=checkpoint_id,
        kind=kind,
        root=ROOTS[kind],
        triggered_at_ms=triggered_at_ms,
        completed_at_ms=completed_at_ms,
        **_fields_of_contents(contents),
    )


def _fields_of_contents(parts: EpochContents | CheckpointMetadata) -> dict[str, Any]:
    return {name: getattr(parts, name) for name in EpochContents.__struct_fields__}
