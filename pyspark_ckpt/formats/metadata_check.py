"""Checks of a ``_metadata`` file beyond its types, because it may be hostile.

All checks are done before any other file is used. Stored schemas, which are Spark's JSON form of a
StructType, are checked before Spark reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pyspark_ckpt.errors import CorruptFileError, UnsafePathError
from pyspark_ckpt.formats.metadata import ROOTS, CheckpointMetadata
from pyspark_ckpt.storage.base import FileReference, corrupt_file

_OF_USER_TYPES = frozenset({"pyClass", "serializedClass", "class"})


def checked_schema(text: str) -> dict[str, Any]:
    """Return the JSON object of a stored schema."""
    try:
        fields = json.loads(text)
        has_user_type = _names_user_type(fields)
    except (ValueError, RecursionError) as exc:
        raise not_a_schema(text) from exc
    if has_user_type:
        raise CorruptFileError(
            f"a stored schema has a user-defined type ({text[:200]}), and this library never "
            "writes such a type: do not use the file that the schema was read from"
        )
    if not isinstance(fields, dict):
        raise not_a_schema(text)
    return fields


def not_a_schema(text: str) -> CorruptFileError:
    """Return the error for a text that is not a schema."""
    return CorruptFileError(
        f"a stored schema cannot be read ({text[:200]!r}); restore from another checkpoint or "
        "savepoint"
    )


def _names_user_type(part: Any) -> bool:
    if isinstance(part, list):
        return any(map(_names_user_type, part))
    if not isinstance(part, dict):
        return False
    if part.get("type") == "udt" or _OF_USER_TYPES & part.keys():
        return True
    return any(map(_names_user_type, part.values()))


MAX_FILES = 500_000
MAX_OBJECTS = 4_000_000
MAX_BYTES_OF_FILES = 1 << 60

_FILE = b'"sha256":'
_OBJECT = b'{"'
_SAFE_PATH = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+){0,7}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_PATH = 512
_LOG_NAME = re.compile(r"(?:0|[1-9][0-9]{0,17})(?:\.compact)?")
_SPARK_OPERATOR_FILE = re.compile(
    r"(?:_metadata|_stateSchema|[0-9]{1,9})(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}){1,4}"
)
_SPARK_OPERATOR_NAME = re.compile(r"[A-Za-z]{1,64}")
_MAX_OPERATOR_METADATA = 16 << 20


def check_counts(body: bytes, name: str) -> None:
    """Check how many files and objects a JSON text lists, before it is decoded into memory."""
    for what, mark, most in (("files", _FILE, MAX_FILES), ("objects", _OBJECT, MAX_OBJECTS)):
        found = body.count(mark)
        if found > most:
            raise CorruptFileError(
                f"{name} lists {found} {what}, and the limit is {most}: do not use it"
            )


def check_content(metadata: CheckpointMetadata, name: str) -> None:
    """Check paths, sizes, digests and numbers."""
    if metadata.root != ROOTS[metadata.kind]:
        raise UnsafePathError(
            f"{name}: the paths of a {metadata.kind} start from {ROOTS[metadata.kind]!r}, but this "
            f"file's from {metadata.root[:200]!r}: the file is damaged or hostile; do not use it"
        )
    if metadata.epoch < 0:
        raise corrupt_file(name, f"there is no epoch {metadata.epoch}")
    for operator in metadata.operators:
        if not 0 < operator.parallelism <= operator.max_parallelism <= 1 << 15:
            raise corrupt_file(
                name,
                f"operator {operator.uid[:80]!r} has parallelism {operator.parallelism} of "
                f"{operator.max_parallelism}",
            )
    uids = [operator.uid for operator in metadata.operators]
    if len(set(uids)) != len(uids):
        raise corrupt_file(name, "two operators have the same uid")
    _check_source_logs(metadata, name)
    _check_spark_operators(metadata, name)
    _check_files(metadata.files(), name)
    for text in _schemas(metadata):
        checked_schema(text)


def check_path(path: str, name: str) -> None:
    """Check a path that was read from the file `name`."""
    plain = len(path) <= _MAX_PATH and _SAFE_PATH.fullmatch(path)
    if not plain or {".", ".."} & set(path.split("/")):
        raise UnsafePathError(
            f"{name} names the path {path[:200]!r}, but this library writes only relative paths of "
            "plain names: the file is damaged or hostile; do not use it"
        )


def _check_source_logs(metadata: CheckpointMetadata, name: str) -> None:
    """Check the names that source logs will get below ``sources/<index>/``."""
    for log in metadata.source_logs:
        if not 0 <= log.source_index < 1 << 15 or not _LOG_NAME.fullmatch(log.log_name):
            raise corrupt_file(
                name, f"Spark's source {log.source_index} has no log file {log.log_name[:80]!r}"
            )
    names = [(log.source_index, log.log_name) for log in metadata.source_logs]
    if len(set(names)) != len(names):
        raise corrupt_file(name, "a source has a log file twice")


def _check_spark_operators(metadata: CheckpointMetadata, name: str) -> None:
    """Check the names that files of Spark's own operators will get below ``state/<id>/``."""
    ids = [each.operator_id for each in metadata.operators]
    ids += [each.operator_id for each in metadata.spark_operators]
    if len(set(ids)) != len(ids) or any(not 0 <= each < 1 << 15 for each in ids):
        raise corrupt_file(name, f"its operators have the ids {ids[:20]}")
    for operator in metadata.spark_operators:
        if not _SPARK_OPERATOR_NAME.fullmatch(operator.name):
            raise corrupt_file(name, f"Spark has no operator {operator.name[:80]!r}")
        for file in operator.files:
            check_path(file.name, name)
            if not _SPARK_OPERATOR_FILE.fullmatch(file.name):
                raise corrupt_file(name, f"Spark's state stores have no file {file.name[:200]!r}")
        names = [file.name for file in operator.files]
        if len(set(names)) != len(names):
            raise corrupt_file(name, f"operator {operator.operator_id} has a file twice")
        if any(
            file.name.startswith("_metadata/") and file.file.size_bytes > _MAX_OPERATOR_METADATA
            for file in operator.files
        ):
            raise corrupt_file(
                name, f"operator {operator.operator_id} has a description that is too large"
            )


def _schemas(metadata: CheckpointMetadata) -> set[str]:
    """Return every text that will be read as a schema; most subtasks have the same schemas."""
    handles = [handle for operator in metadata.operators for handle in operator.handles]
    states = {state for handle in handles for state in handle.states}
    texts = {operator.key_schema for operator in metadata.operators}
    texts.update(handle.key_schema for handle in handles)
    for state in states:
        texts.update((state.value_schema, *state.earlier_schemas))
        if state.map_key_schema is not None:
            texts.add(state.map_key_schema)
    return texts


def _check_files(files: Iterable[FileReference], name: str) -> None:
    known: dict[str, FileReference] = {}
    for file in files:
        check_path(file.path, name)
        if file.size_bytes < 0 or not _DIGEST.fullmatch(file.sha256):
            raise corrupt_file(name, f"{file.path} has size {file.size_bytes} or no SHA-256")
        if known.setdefault(file.path, file) != file:
            raise corrupt_file(name, f"{file.path} is listed with two sizes or digests")
    total = sum(file.size_bytes for file in known.values())
    if total > MAX_BYTES_OF_FILES:
        raise corrupt_file(name, f"it lists files of {total} bytes in all")
