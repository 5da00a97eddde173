"""The ``_metadata`` file: the commit point of a checkpoint or savepoint.

::

    magic "SPRKCKPT" | format version u32 | JSON length u64 | SHA-256 of the JSON | JSON

Integers are big-endian. The JSON is exactly what this library writes for its content, so nothing
can be in it twice or unknown. Paths inside are relative to :attr:`CheckpointMetadata.root`.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError
from pyspark_ckpt.on_disk.handle import FileReference, Handle
from pyspark_ckpt.on_disk.in_progress import DISPOSED, read_in_progress
from pyspark_ckpt.on_disk.layout import METADATA_NAME
from pyspark_ckpt.on_disk.metadata_check import check_content, check_counts
from pyspark_ckpt.on_disk.storage_views import CoordinatorStorage

MAGIC = b"SPRKCKPT"
METADATA_FORMAT_VERSION = 2
"""What this library reads; it writes 1 as long as there is nothing that format 2 brought."""

MAX_METADATA_BYTES = 1 << 30
_HEADER = struct.Struct(">8sIQ32s")


class SourceLog(msgspec.Struct, frozen=True):
    """A copy of one of Spark's files in ``sources/<index>/``."""

    source_index: int
    log_name: str
    file: FileReference


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a query was restored from: a checkpoint or savepoint as it was then.

    `operators` are the uids whose state was taken, `sha256` is the digest of its ``_metadata``.
    `skipped` says of each newer checkpoint that was corrupt why it was passed over.
    """

    path: str
    kind: str
    checkpoint_id: int | None
    query_id: str
    epoch: int
    operators: tuple[str, ...]
    sha256: str = ""
    claim_mode: str = "NO_CLAIM"
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
    time_mode: str = "None"


class NativeFile(msgspec.Struct, frozen=True):
    """A copy of one of Spark's files; `name` is its path below ``state/<operator id>/``."""

    name: str
    file: FileReference


class NativeOperatorMetadata(msgspec.Struct, frozen=True):
    """A stateful operator of Spark's own, with the files of its state at the epoch's end."""

    operator_id: int
    name: str
    files: tuple[NativeFile, ...]


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A consistent version of a whole query at the end of one epoch.

    `kind` is ``checkpoint`` or ``savepoint``; `root` is the directory, relative to that of the
    ``_metadata`` file, that all paths start from; `parent` is what the query
    was restored from, if it was; the two entries are Spark's own log texts.
    `source_ids` tells of each of the offsets in there which source it is of, `phases_ms` how long
    gathering took: the handles, Spark's offsets and source logs, the check of all files.
    `native_operators` are left out if there are none, as in format 1.
    """

    checkpoint_id: int | None
    kind: str
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
    native_operators: tuple[NativeOperatorMetadata, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def native(self) -> tuple[NativeOperatorMetadata, ...]:
        """Spark's own stateful operators."""
        found = self.native_operators
        return () if found is msgspec.UNSET else found

    def native_files(self) -> list[NativeFile]:
        """Return the files of Spark's own stateful operators."""
        return [file for operator in self.native for file in operator.files]

    def handles(self) -> list[Handle]:
        """Return the handles of all operators."""
        return [handle for operator in self.operators for handle in operator.handles]

    def pending_snapshots(self) -> set[str]:
        """Return the ids of the base snapshots that its epochs' successors may turn to."""
        return {snapshot for handle in self.handles() for snapshot in handle.kept_snapshots()}

    def kept_files(self) -> set[str]:
        """Return the paths that other handles of its epochs may refer to."""
        return {path for handle in self.handles() for path in handle.kept_files()}

    def kept_since(self) -> dict[int, int]:
        """Return by subtask the epoch from which on any file of it may be referred to."""
        since: dict[int, int] = {}
        for handle in self.handles():  # names of files do not tell operators apart
            since[handle.subtask] = min(
                handle.kept_since(), since.get(handle.subtask, handle.epoch)
            )
        return since

    def files(self) -> list[FileReference]:
        """Return every file besides ``_metadata`` that this checkpoint needs."""
        state = [reference for handle in self.handles() for reference in handle.files()]
        logs = [log.file for log in self.source_logs]
        return [*state, *logs, *(each.file for each in self.native_files())]

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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CheckpointMetadata)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the bytes of a ``_metadata`` file.

    Raises
    ------
    CorruptFileError
        If it has more in it than can be read again.
    """
    body = _encoder.encode(metadata)
    name = f"the {METADATA_NAME} of epoch {metadata.epoch}"
    if len(body) > MAX_METADATA_BYTES:
        raise _corrupt(name, f"{len(body)} bytes are more than {MAX_METADATA_BYTES}")
    check_counts(body, name)
    digest = hashlib.sha256(body).digest()
    version = METADATA_FORMAT_VERSION if metadata.native else 1
    return _HEADER.pack(MAGIC, version, len(body), digest) + body


def decode_metadata(data: bytes, name: str) -> CheckpointMetadata:
    """Read the bytes of a ``_metadata`` file called `name`.

    Raises
    ------
    CorruptFileError
        If they are anything but a whole ``_metadata`` of a known format.
    UnsafePathError
        If a path in it is not one that this library writes.
    """
    if len(data) < _HEADER.size:
        raise _corrupt(name, f"{len(data)} bytes are too few")
    magic, version, length, digest = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != MAGIC:
        raise _corrupt(name, "it does not start as a _metadata file")
    if version < 1:
        raise _corrupt(name, f"there is no format {version}")
    if version > METADATA_FORMAT_VERSION:
        raise CorruptFileError(
            f"{name}: format {version} is newer than this library's {METADATA_FORMAT_VERSION}; "
            "upgrade pyspark_ckpt"
        )
    if length != len(body):
        raise _corrupt(name, f"{length} bytes of JSON were written, {len(body)} are there")
    if hashlib.sha256(body).digest() != digest:
        raise _corrupt(name, "its content does not match its checksum")
    check_counts(data, name)
    try:
        metadata = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise _corrupt(name, str(exc)) from exc
    if _encoder.encode(metadata) != body:
        raise _corrupt(name, "it has a field twice, or one that is not known")
    check_content(metadata, name)
    return metadata


def read_metadata(storage: CoordinatorStorage, directory: str | None = None) -> CheckpointMetadata:
    """Read the ``_metadata`` of the checkpoint or savepoint in `directory` of `storage`.

    Raises
    ------
    CheckpointNotFoundError
        If there is none: the directory is missing, or what it holds was never completed.
    CorruptFileError
        If it cannot be trusted.
    """
    relative = METADATA_NAME if directory is None else f"{directory}/{METADATA_NAME}"
    name = storage.url_of(relative)
    size_bytes = storage.size_bytes(relative)
    if size_bytes is None:
        raise _not_complete(storage, directory)
    if size_bytes > MAX_METADATA_BYTES + _HEADER.size:
        raise _corrupt(name, f"it is larger than {MAX_METADATA_BYTES} bytes")
    data = storage.read(relative)
    if data == DISPOSED:
        raise CheckpointNotFoundError(
            f"{storage.url} holds a savepoint that was not complete, and whose disposal was "
            "interrupted: dispose of it again"
        )
    return decode_metadata(data, name)


def _not_complete(storage: CoordinatorStorage, directory: str | None) -> CheckpointNotFoundError:
    begun = read_in_progress(storage) if directory is None else None
    if begun is not None:
        return CheckpointNotFoundError(
            f"{storage.url} holds {begun.told()}, that is not complete (no {METADATA_NAME}): it is "
            "still being taken, or the driver ended before; the next start of the query removes "
            "it, or `pyspark-ckpt dispose`"
        )
    return CheckpointNotFoundError(
        f"{storage.url if directory is None else storage.url_of(directory)} holds no complete "
        f"checkpoint or savepoint (no {METADATA_NAME}): give the path of a savepoint-... or "
        "chk-... directory"
    )


def _corrupt(name: str, what: str) -> CorruptFileError:
    return CorruptFileError(f"{name}: {what}; restore from another checkpoint or savepoint")
