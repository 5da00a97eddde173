"""What files of Spark's own state stores may say, before Spark reads them in a restore.

Spark copies files by the names that a RocksDB snapshot gives, to where it says, and makes an
instance of any class that a schema calls a user-defined type.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import Any

from pyspark_ckpt.errors import CorruptFileError

MAX_CHECKED_BYTES = 256 << 20
"""Such files hold names and schemas, and a database's small files; not its data."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_SCHEMA = re.compile(r"(?:^|/)(?:_stateSchema/|_metadata/schema)")
# A text may be cut into parts, with two bytes for the length of each.
_USER_DEFINED = re.compile(rb'"(?:..)?u(?:..)?d(?:..)?t(?:..)?"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:..)?u", re.DOTALL)
_NAMES = "metadata"
"""The entry of a RocksDB snapshot that names the database's other files."""


def is_checked(path: str) -> bool:
    """Tell whether a file below ``state/<operator id>/`` says what Spark will act on."""
    return path.endswith(".zip") or _SCHEMA.search(path) is not None


def checked_content(path: str, content: bytes, name: str) -> bytes:
    """Return the content of such a file as it can be given to Spark.

    Parameters
    ----------
    path
        Its path below ``state/<operator id>/``.
    content
        What is stored.
    name
        What to call it in errors.

    Raises
    ------
    CorruptFileError
        If it names files outside of the state store, or a class.
    """
    if path.endswith(".zip"):
        return _checked_archive(content, name)
    if _USER_DEFINED.search(content) or _ESCAPE.search(content):
        raise _wrong(name, "its schema has a user-defined type, which Spark would load by name")
    return content


def _checked_archive(content: bytes, name: str) -> bytes:
    """Write a RocksDB snapshot anew, so that every reader finds in it what was checked."""
    made = io.BytesIO()
    try:
        with (
            zipfile.ZipFile(io.BytesIO(content)) as archive,
            zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target,
        ):
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > MAX_CHECKED_BYTES:
                raise _wrong(name, f"it expands to more than {MAX_CHECKED_BYTES} bytes")
            if len({entry.filename for entry in entries}) != len(entries):
                raise _wrong(name, "it has an entry twice")
            for entry in entries:
                _check_name(entry.filename, name)
                data = archive.read(entry)
                if entry.filename == _NAMES:
                    _check_names_in(_fields(data, name), name)
                target.writestr(entry.filename, data)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as exc:
        raise _wrong(name, str(exc)) from exc
    return made.getvalue()


def _fields(data: bytes, name: str) -> Any:
    try:
        return json.loads(data.decode().split("\n", 1)[1], object_pairs_hook=_once)
    except (ValueError, IndexError, RecursionError) as exc:
        raise _wrong(name, f"its metadata cannot be read: {exc}") from exc


def _check_names_in(part: Any, name: str) -> None:
    """Check every name of a file, wherever it is."""
    if isinstance(part, list):
        for each in part:
            _check_names_in(each, name)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key.endswith("FileName"):
                _check_name(value, name)
            _check_names_in(value, name)


def _check_name(value: object, name: str) -> None:
    if not isinstance(value, str) or not _PLAIN_NAME.fullmatch(value):
        raise _wrong(name, f"{str(value)[:200]!r} is no plain name of a file")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _wrong(name: str, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{name} is not what Spark's state stores write: {what}; restore from another checkpoint "
        "or savepoint"
    )
