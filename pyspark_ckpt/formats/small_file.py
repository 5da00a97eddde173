"""Small JSON files of a checkpoints directory or a location, checked when they are read."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pyspark_ckpt.storage.base import CoordinatorStorage
from pyspark_ckpt.storage.corrupt_file import JSON_ERRORS, corrupt_file

_MAX_BYTES = 1 << 20
"""A larger file was not written by this library, and is refused as changed."""

_Content = TypeVar("_Content")


def read_small_file(
    storage: CoordinatorStorage, path: str, kind: type[_Content], holds: str, to_do: str
) -> _Content:
    """Return the content of a small JSON file.

    It raises ``FileNotFoundError`` if the file does not exist, and ``CorruptFileError``, with
    `holds` and `to_do` in its text, if the file was changed.
    """
    try:
        return msgspec.json.decode(storage.read_start(path, _MAX_BYTES), type=kind)
    except JSON_ERRORS as exc:
        raise corrupt_file(
            storage.url_of(path), f"it was changed, and should hold {holds} ({exc})", to_do
        ) from exc
