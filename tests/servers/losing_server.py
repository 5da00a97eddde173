"""Stands before a server over HTTP, and loses answers or refuses requests of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.servers.s3_front import Answer, Request, s3_front

BUSY: Answer = (503, [("Content-Length", "0")], b"")


class Losses:
    """How many requests that `is_lost` selects the front still answers with 503, and has answered.

    If `carries_out`, the server behind has carried out these requests: their answers are lost.
    """

    def __init__(self, is_lost: Callable[[Request], bool]) -> None:
        self.url = ""
        self.left = 0
        self.answered = 0
        self.carries_out = False
        self._is_lost = is_lost

    def answer(self, request: Request) -> Answer:
        if self.left == 0 or not self._is_lost(request):
            return request.passed_on()
        self.left -= 1
        self.answered += 1
        if self.carries_out:
            status, _, _ = request.passed_on()
            assert status < 300, "it was not carried out"
        return BUSY


@contextmanager
def losing_server(server_url: str, is_lost: Callable[[Request], bool]) -> Iterator[Losses]:
    """Run the front of the server at `server_url`; its own URL is in what is yielded."""
    losses = Losses(is_lost)
    with s3_front(server_url, losses.answer) as losses.url:
        yield losses
