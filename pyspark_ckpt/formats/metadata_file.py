"""The ``_metadata`` file: the commit point of a checkpoint or savepoint.

::

    magic "SPRKCKPT" | format version u32 | JSON length u64 | SHA-256 of the JSON | JSON

Integers are big-endian. A reader refuses JSON with a duplicate field, or with a field that it does
not know. So a new field needs a new format version.
"""

from __future__ import annotations

import hashlib
import struct
from contextlib import suppress

import msgspec

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, CorruptFileError
from pyspark_ckpt.formats.in_progress import DISPOSED, read_in_progress
from pyspark_ckpt.formats.layout import (
    CHECKPOINTS_DIRECTORY,
    METADATA_NAME,
    PLACES,
    checkpoint_id_of,
    checkpoint_name,
    is_savepoint_name,
)
from pyspark_ckpt.formats.location_files import read_place
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_check import check_content, check_counts
from pyspark_ckpt.storage.base import CoordinatorStorage, corrupt_file

MAGIC = b"SPRKCKPT"
METADATA_FORMAT_VERSION = 1
MAX_METADATA_BYTES = 1 << 30
_MOST_NAMED = 5
"""How many savepoints an error names."""

_HEADER = struct.Struct(">8sIQ32s")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CheckpointMetadata)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the bytes of a ``_metadata`` file, which :func:`decode_metadata` accepts."""
    body = _encoder.encode(_without_slow_epochs(metadata))
    name = f"the {METADATA_NAME} of epoch {metadata.epoch}"
    if len(body) > MAX_METADATA_BYTES:
        raise corrupt_file(name, f"{len(body)} bytes are more than {MAX_METADATA_BYTES}")
    check_counts(body, name)
    check_content(metadata, name)
    digest = hashlib.sha256(body).digest()
    return _HEADER.pack(MAGIC, METADATA_FORMAT_VERSION, len(body), digest) + body


def decode_metadata(data: bytes, name: str) -> CheckpointMetadata:
    """Read the bytes of a ``_metadata`` file called `name`."""
    if len(data) < _HEADER.size:
        raise corrupt_file(name, f"{len(data)} bytes are too few")
    magic, version, length, digest = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != MAGIC:
        raise corrupt_file(name, "it does not start as a _metadata file")
    if version < 1:
        raise corrupt_file(name, f"there is no format {version}")
    if version > METADATA_FORMAT_VERSION:
        raise CorruptFileError(
            f"{name}: format {version} is newer than this library's {METADATA_FORMAT_VERSION}; "
            "upgrade pyspark_ckpt"
        )
    if length != len(body):
        raise corrupt_file(name, f"{length} bytes of JSON were written, but {len(body)} were read")
    if hashlib.sha256(body).digest() != digest:
        raise corrupt_file(name, "its content does not match its checksum")
    check_counts(data, name)
    try:
        metadata = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise corrupt_file(name, str(exc)[:200]) from exc
    if _encoder.encode(metadata) != body:
        raise corrupt_file(name, "it has a field twice, or an unknown field")
    check_content(metadata, name)
    return metadata


def read_metadata(storage: CoordinatorStorage, directory: str | None = None) -> CheckpointMetadata:
    """Read the ``_metadata`` of the checkpoint or savepoint in `directory` of `storage`.

    It raises ``CheckpointNotFoundError`` if the directory is missing or was never completed, and
    ``CorruptFileError`` if the file is damaged.
    """
    return read_metadata_and_digest(storage, directory)[0]


def read_metadata_and_digest(
    storage: CoordinatorStorage, directory: str | None = None
) -> tuple[CheckpointMetadata, str]:
    """Read a ``_metadata`` as :func:`read_metadata` does; return it with the file's SHA-256."""
    relative = METADATA_NAME if directory is None else f"{directory}/{METADATA_NAME}"
    name = storage.url_of(relative)
    size_bytes = storage.size_bytes(relative)
    if size_bytes is None:
        raise _not_complete(storage, directory)
    if size_bytes > MAX_METADATA_BYTES + _HEADER.size:
        raise corrupt_file(name, f"it is larger than {MAX_METADATA_BYTES} bytes")
    try:
        data = storage.read(relative)
    except FileNotFoundError:  # it was deleted just now
        raise _not_complete(storage, directory) from None
    if data == DISPOSED:
        raise CheckpointNotFoundError(
            f"{storage.url} holds an incomplete savepoint, and its disposal was interrupted: "
            "dispose of it again"
        )
    return decode_metadata(data, name), hashlib.sha256(data).hexdigest()


def _without_slow_epochs(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return `metadata` without the phases and slow keys of its handles.

    They are of the query's run, not of its state, and a handle in Spark's state store has them. In
    a savepoint they would take space, and name keys that a user has erased.
    """
    return msgspec.structs.replace(
        metadata,
        operators=tuple(
            msgspec.structs.replace(
                operator,
                handles=tuple(
                    msgspec.structs.replace(handle, phases=(), slow_keys=None)
                    for handle in operator.handles
                ),
            )
            for operator in metadata.operators
        ),
    )


def _not_complete(storage: CoordinatorStorage, directory: str | None) -> CheckpointNotFoundError:
    begun = read_in_progress(storage) if directory is None else None
    if begun is not None:
        return CheckpointNotFoundError(
            f"{storage.url} holds {begun.description()}, that is not complete "
            f"(no {METADATA_NAME}): it is still being taken, or the driver ended first. The next "
            "start of the query removes it, or use `pyspark-ckpt dispose`"
        )
    url = storage.url if directory is None else storage.url_of(directory)
    found = None
    if directory is None:  # what a user gives; other callers look at a name that they listed
        with suppress(OSError, CkptError):
            found = _what_it_is(storage)
    return CheckpointNotFoundError(
        f"{url} {found}"
        if found is not None
        else f"{url} holds no complete checkpoint or savepoint (no {METADATA_NAME}): give the path "
        "of a savepoint-... or chk-... directory"
    )


def _what_it_is(storage: CoordinatorStorage) -> str | None:
    """Return what a directory without a ``_metadata`` is, and what to give in place of it."""
    names = storage.list()
    if not names:
        return (
            "does not exist, is empty or is a file: give the path of a savepoint-... or chk-... "
            "directory"
        )
    if savepoints := sorted(filter(is_savepoint_name, names)):
        more = f" and {len(savepoints) - _MOST_NAMED} more" if savepoints[_MOST_NAMED:] else ""
        named = ", ".join(map(storage.url_of, savepoints[:_MOST_NAMED]))
        return f"is a directory of savepoints: give one of them, {named}{more}"
    place = read_place(storage)[1] if PLACES in names else None
    if place is not None and place.directory is not None:
        return (
            f"is a checkpointLocation whose checkpoints are below {place.directory}: give a chk-N "
            "of its query there, which `pyspark-ckpt list` shows for the location"
        )
    is_location = CHECKPOINTS_DIRECTORY in names
    where = f"{CHECKPOINTS_DIRECTORY}/" if is_location else ""
    inside = storage.list(CHECKPOINTS_DIRECTORY) if is_location else names
    numbers = sorted(number for name in inside if (number := checkpoint_id_of(name)) is not None)
    what = "checkpointLocation" if is_location else "directory of checkpoints"
    for number in reversed(numbers):
        newest = f"{where}{checkpoint_name(number)}"
        if storage.exists(f"{newest}/{METADATA_NAME}"):
            return f"is a {what}: give {storage.url_of(newest)}, its newest checkpoint"
    if is_location or numbers:
        return f"is a {what} without a complete checkpoint: wait for one, or trigger one"
    return None
