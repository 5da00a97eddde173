"""Requests to a query as files in a directory of its checkpoints.

::

    <directory>/<time>-<random>.request.json    the request
    <directory>/<time>-<random>.<what>.json     what belongs to it, such as a claim or an answer

Each file is written exclusively and durably. Everybody who may write the directory can post a
request, so every file is checked as if it were hostile.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.storage.base import JSON_ERRORS, Storage

_REQUEST = "request"
_NAME = re.compile(r"([0-9]{15}-[0-9a-f]{16})\.request\.json")
_T = TypeVar("_T", bound=msgspec.Struct)


class Mailbox:
    """The requests of one kind to one query.

    `to_do` is what an error about a file says after "delete it, and".
    """

    def __init__(self, storage: Storage, directory: str, to_do: str, most_bytes: int) -> None:
        self._storage = storage
        self._directory = directory
        self._to_do = to_do
        self._most_bytes = most_bytes

    def post(self, request: msgspec.Struct, at_ms: int) -> str:
        """Write a request, durable on return; return its id."""
        request_id = f"{at_ms:015}-{secrets.token_hex(8)}"
        self.write(request_id, _REQUEST, request)
        return request_id

    def names(self) -> list[str]:
        """Return the names of all files in the directory."""
        return self._storage.list(self._directory)

    def ids(self, names: Iterable[str]) -> list[str]:
        """Return the ids of the requests among names, oldest first."""
        return sorted(match[1] for name in names if (match := _NAME.fullmatch(name)))

    def read(self, request_id: str, kind: type[_T], what: str = _REQUEST) -> _T:
        """Return a request, or what belongs to it.

        ``CorruptFileError`` means that it is not what the library writes, or does not exist.
        """
        return self.read_file(file_name(request_id, what), kind, self._most_bytes)

    def read_file(self, name: str, kind: type[_T], most_bytes: int) -> _T:
        """Return the content of a file of the directory, as :meth:`read`."""
        path = f"{self._directory}/{name}"
        size_bytes = self._storage.size_bytes(path)
        try:
            if size_bytes is None:  # to read something else might never end
                raise msgspec.DecodeError("it is missing, or no file")
            if size_bytes > most_bytes:
                raise msgspec.DecodeError(f"it has {size_bytes} bytes")
            data = self._storage.read(path)
            content = msgspec.json.decode(data, type=kind)
            if msgspec.json.encode(content) != data:
                raise msgspec.DecodeError("it has a field twice, or another form")
        except JSON_ERRORS as exc:
            raise CorruptFileError(
                f"{self._storage.url_of(path)} is not what the library writes ({exc}): delete it, "
                f"and {self._to_do}"
            ) from exc
        return content

    def has(self, request_id: str, what: str) -> bool:
        """Return whether something of a request exists."""
        return self._storage.exists(f"{self._directory}/{file_name(request_id, what)}")

    def write(self, request_id: str, what: str, content: msgspec.Struct) -> None:
        """Write what belongs to a request; durable on return.

        ``FileExistsError`` means that somebody was first.
        """
        self.write_file(file_name(request_id, what), content)

    def write_file(self, name: str, content: msgspec.Struct) -> None:
        """Write a file of the directory, as :meth:`write`."""
        self._storage.write(f"{self._directory}/{name}", [msgspec.json.encode(content)])

    def delete(self, names: Iterable[str]) -> None:
        """Delete files of the directory, in their order."""
        self._storage.delete(f"{self._directory}/{name}" for name in names)


def file_name(request_id: str, what: str = _REQUEST) -> str:
    """Return the name of a file of a request."""
    return f"{request_id}.{what}.json"
