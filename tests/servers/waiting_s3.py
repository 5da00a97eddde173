"""A front of an S3 server that answers requests of a kind only when enough are under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.servers.s3_front import Answer, Request, s3_front

PATIENCE_S = 30.0


class Waiting:
    """Counts requests; the first ones of a kind wait for each other.

    `came` counts all of the kind, `gave_up` those that had to be answered although fewer than
    `together` were under way.
    """

    def __init__(self, together: int, is_of_kind: Callable[[Request], bool]) -> None:
        self.url = ""
        self.came = self.gave_up = 0
        self._together = together
        self._is_of_kind = is_of_kind
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(together)

    def answer(self, request: Request) -> Answer:
        if not self._is_of_kind(request):
            return request.passed_on()
        with self._lock:
            self.came += 1
            has_to_wait = self.came <= self._together
        if has_to_wait:
            try:
                self._barrier.wait(PATIENCE_S)
            except threading.BrokenBarrierError:
                with self._lock:
                    self.gave_up += 1
        return request.passed_on()


@contextmanager
def waiting_s3(
    server_url: str, together: int, is_of_kind: Callable[[Request], bool]
) -> Iterator[Waiting]:
    """Run the server in front of the one at `server_url`; yield it, with its own URL."""
    waiting = Waiting(together, is_of_kind)
    with s3_front(server_url, waiting.answer) as waiting.url:
        yield waiting
