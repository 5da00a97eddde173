"""A codec over all schemas that a state has had: old entries are converted when they are read.

An entry of the first schema is the bare tuple; one of a later schema begins with MessagePack uint8
(``cc``) and the schema's place in the state's history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyspark_ckpt.errors import CorruptFileError

Value = tuple[Any, ...]
"""One value of a state, as users see it."""

_VERSION_MARK = 0xCC
_PREFIX_BYTES = 2
MAX_VERSION = 255


class Codec(Protocol):
    """Encodes and decodes the tuples of a state."""

    def encode(self, values: Any) -> bytes:
        """Encode one tuple."""

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode one tuple."""


class VersionedCodec:
    """Writes the newest schema and reads every one.

    Parameters
    ----------
    newest
        The codec of the schema that the processor asks for.
    earlier
        For each schema before it, oldest first, what turns its bytes into a tuple of the newest.
    what
        The state, for errors.
    """

    def __init__(
        self, newest: Codec, earlier: Sequence[Callable[[bytes], tuple[Any, ...]]], what: str
    ) -> None:
        self._newest = newest
        self._readers = [*earlier, newest.decode]
        self._prefix = bytes([_VERSION_MARK, len(earlier)]) if earlier else b""
        self._what = what

    def encode(self, values: Any) -> bytes:
        """Encode one tuple in the newest schema."""
        return self._prefix + self._newest.encode(values)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Decode one tuple of any schema.

        Raises
        ------
        CorruptFileError
            If it has a schema that the handle does not know.
        """
        if data[0] != _VERSION_MARK:
            return self._readers[0](data)
        version = data[1]
        if version >= len(self._readers):
            raise CorruptFileError(
                f"{self._what}: a stored entry has schema {version}, the handle knows "
                f"{len(self._readers)}; restore from another checkpoint"
            )
        return self._readers[version](data[_PREFIX_BYTES:])


def version_of(data: bytes) -> int:
    """Return the place of an entry's schema in the state's history."""
    return data[1] if data[0] == _VERSION_MARK else 0
