"""A front of an S3 server that answers some requests as S3 does during concurrent requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.s3_front import Answer, Request, s3_front

_CONFLICT = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>ConditionalRequestConflict</Code>'
    b"<Message>The conditional request cannot succeed due to a conflicting operation against this "
    b"resource.</Message></Error>"
)


class Conflicts:
    """Counts the conditional requests that are answered with 409: those to come, and those done.

    `does_it_all_the_same`: the server carries out requests that are answered so.
    """

    def __init__(self) -> None:
        self.url = ""
        self.left = 0
        self.answered = 0
        self.does_it_all_the_same = False

    def answer(self, request: Request) -> Answer:
        if "If-None-Match" not in request.headers or self.left == 0:
            return request.passed_on()
        self.left -= 1
        self.answered += 1
        if self.does_it_all_the_same:
            request.passed_on()
        return 409, [("Content-Length", str(len(_CONFLICT)))], _CONFLICT


@contextmanager
def conflicting_s3(server_url: str) -> Iterator[Conflicts]:
    """Run the server in front of the one at `server_url`; yield it, with its own URL."""
    conflicts = Conflicts()
    with s3_front(server_url, conflicts.answer) as conflicts.url:
        yield conflicts
