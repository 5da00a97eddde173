"""Requests to a running query as files in its checkpoints directory, and the answers to them.

::

    requests/<time>-<random>.request.json    the request; written by the requester
    requests/<time>-<random>.claim.json      who has it: the query, or the requester
    requests/<time>-<random>.answer.json     the result, or an error

The query writes the claim to take a request; the requester writes it to withdraw the request. The
files of the newest requests stay as an audit trail.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import REQUESTS
from pyspark_ckpt.formats.mailbox import Mailbox, file_name
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.storage.open import Storage

KEPT = 200
"""How many requests stay as the audit trail."""

LOOKED_AT = 1000
"""How many of the newest requests are read."""

MAX_BYTES = 16 << 10

_REQUEST, _CLAIM, _ANSWER = "request", "claim", "answer"


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
        self._mailbox = Mailbox(storage, REQUESTS, "post another request", MAX_BYTES)

    def post(self, request: Request) -> str:
        """Write a request, durable on return; return its id."""
        return self._mailbox.post(request, request.requested_at_ms)

    def open_ids(self) -> list[str]:
        """Return the ids of the requests that are not claimed yet, oldest first."""
        names = {*self._mailbox.names()}
        return [each for each in self._newest(names) if file_name(each, _CLAIM) not in names]

    def unanswered_ids(self) -> list[str]:
        """Return the ids of the requests that a query has claimed and not answered."""
        names = {*self._mailbox.names()}
        return [
            each
            for each in self._newest(names)
            if file_name(each, _CLAIM) in names and file_name(each, _ANSWER) not in names
        ]

    def read(self, request_id: str) -> Request:
        """Read a request."""
        request = self._mailbox.read(request_id, Request)
        if request.requested_at_ms > request.expires_at_ms:
            raise CorruptFileError(
                f"request {request_id} never was valid, because it expires before it was made: "
                "post another request"
            )
        return request

    def claim(self, request_id: str, by: Claimant) -> bool:
        """Claim a request, durably; return whether it was free."""
        try:
            self._mailbox.write(request_id, _CLAIM, Claim(by=by, at_ms=now_ms()))
        except FileExistsError:
            return False
        return True

    def claim_of(self, request_id: str) -> Claim | None:
        """Return the claim of a request, ``None`` if it is not claimed yet."""
        if not self._mailbox.has(request_id, _CLAIM):
            return None
        return self._mailbox.read(request_id, Claim, _CLAIM)

    def answer(self, request_id: str, answer: Answer) -> None:
        """Answer a request, durably."""
        self._mailbox.write(request_id, _ANSWER, answer)

    def answer_to(self, request_id: str) -> Answer | None:
        """Return the answer to a request, ``None`` if there is none yet."""
        if not self._mailbox.has(request_id, _ANSWER):
            return None
        return self._mailbox.read(request_id, Answer, _ANSWER)

    def trim(self) -> None:
        """Delete the oldest requests that nobody waits for, with their claims and answers."""
        names = self._mailbox.names()
        waiting = {*self.open_ids(), *self.unanswered_ids()}
        old = [each for each in self._mailbox.ids(names)[:-KEPT] if each not in waiting]
        self._mailbox.delete(
            file_name(each, what) for each in old for what in (_ANSWER, _CLAIM, _REQUEST)
        )

    def _newest(self, names: set[str]) -> list[str]:
        return self._mailbox.ids(names)[-LOOKED_AT:]
