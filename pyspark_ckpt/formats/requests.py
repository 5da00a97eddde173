"""Requests to a running query as files in its checkpoints directory, and the answers to them.

::

    requests/<time>-<random>.request.json    the request; written by the requester
    requests/<time>-<random>.claim.json      who has it: the query, or the requester
    requests/<time>-<random>.answer.json     the result, or an error

Each file is written exclusively and durably. The query writes the claim to take a request; the
requester writes it to withdraw the request. The files of the newest requests stay as an audit
trail. Everybody who may write the directory can post a request, so every file is checked as if it
were hostile.
"""

from __future__ import annotations

import re
import secrets
from enum import Enum
from typing import TypeVar

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import REQUESTS
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.storage.open import Storage

KEPT = 200
"""How many requests stay as the audit trail."""

LOOKED_AT = 1000
"""How many of the newest requests are read."""

MAX_BYTES = 16 << 10

_REQUEST = re.compile(r"([0-9]{15}-[0-9a-f]{16})\.request\.json")
_T = TypeVar("_T", bound=msgspec.Struct)


class Action(str, Enum):
    """The actions that can be requested of a query."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    PROMOTE = "promote"
    PROMOTE_ANYWAY = "promote-anyway"
    """Although the report of the shadow has differences."""

    DISCARD = "discard"

    __str__ = str.__str__


class Claimant(str, Enum):
    """The side that claims a request: the query to answer it, the requester to withdraw it."""

    QUERY = "query"
    REQUESTER = "requester"


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to a query.

    `directory` is the requester's wish; the query decides whether the savepoint may go there.
    """

    action: Action
    requested_at_ms: int
    expires_at_ms: int
    requested_by: str
    directory: str | None = None
    format: SavepointFormat = SavepointFormat.CANONICAL
    drain: bool = False


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The note on who has a request."""

    by: Claimant
    at_ms: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a request: a savepoint, or an error."""

    at_ms: int
    error: str | None = None
    path: str | None = None
    epoch: int | None = None
    size_bytes: int | None = None
    files: int | None = None


class RequestFiles:
    """The requests of one query."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def post(self, request: Request) -> str:
        """Write a request, durable on return; return its id."""
        request_id = f"{request.requested_at_ms:015}-{secrets.token_hex(8)}"
        self._write(request_id, "request", request)
        return request_id

    def open_ids(self) -> list[str]:
        """Return the ids of the requests that are not claimed yet, oldest first."""
        names = self._names()
        return [each for each in _ids(names) if f"{each}.claim.json" not in names]

    def unanswered_ids(self) -> list[str]:
        """Return the ids of the requests that a query has claimed and not answered."""
        names = self._names()
        return [
            each
            for each in _ids(names)
            if f"{each}.claim.json" in names and f"{each}.answer.json" not in names
        ]

    def read(self, request_id: str) -> Request:
        """Read a request."""
        request = self._read(request_id, "request", Request)
        if request.requested_at_ms > request.expires_at_ms:
            raise CorruptFileError(
                f"request {request_id} never was valid, because it expires before it was made: "
                "post another request"
            )
        return request

    def claim(self, request_id: str, by: Claimant) -> bool:
        """Claim a request, durably; return whether it was free."""
        try:
            self._write(request_id, "claim", Claim(by=by, at_ms=now_ms()))
        except FileExistsError:
            return False
        return True

    def claim_of(self, request_id: str) -> Claim | None:
        """Return the claim of a request, ``None`` if it is not claimed yet."""
        if not self._storage.exists(_path(request_id, "claim")):
            return None
        return self._read(request_id, "claim", Claim)

    def answer(self, request_id: str, answer: Answer) -> None:
        """Answer a request, durably."""
        self._write(request_id, "answer", answer)

    def answer_to(self, request_id: str) -> Answer | None:
        """Return the answer to a request, ``None`` if there is none yet."""
        if not self._storage.exists(_path(request_id, "answer")):
            return None
        return self._read(request_id, "answer", Answer)

    def trim(self) -> None:
        """Delete the oldest requests that nobody waits for, with their claims and answers."""
        names = self._names()
        waiting = {*self.open_ids(), *self.unanswered_ids()}
        old = [each for each in _ids(names, most=None)[:-KEPT] if each not in waiting]
        self._storage.delete(
            _path(each, what) for each in old for what in ("answer", "claim", "request")
        )

    def _names(self) -> set[str]:
        return set(self._storage.list(REQUESTS))

    def _write(self, request_id: str, what: str, content: msgspec.Struct) -> None:
        self._storage.write(_path(request_id, what), [msgspec.json.encode(content)])

    def _read(self, request_id: str, what: str, kind: type[_T]) -> _T:
        relative = _path(request_id, what)
        path = self._storage.url_of(relative)
        size_bytes = self._storage.size_bytes(relative)
        if size_bytes is None or size_bytes > MAX_BYTES:
            raise CorruptFileError(
                f"{path} is missing or larger than {MAX_BYTES} bytes: delete it, and post another "
                "request"
            )
        data = self._storage.read(relative)
        try:
            content = msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise CorruptFileError(
                f"{path} is not a file of a request ({exc}): delete it, and post another request"
            ) from exc
        if msgspec.json.encode(content) != data:
            raise CorruptFileError(f"{path} has a field twice: delete it, and post another request")
        return content


def _ids(names: set[str], most: int | None = LOOKED_AT) -> list[str]:
    found = sorted(match[1] for name in names if (match := _REQUEST.fullmatch(name)))
    return found if most is None else found[-most:]


def _path(request_id: str, what: str) -> str:
    return f"{REQUESTS}/{request_id}.{what}.json"
