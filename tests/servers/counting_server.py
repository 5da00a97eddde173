"""Stands before an S3 server and counts requests by the kinds that S3 charges for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from tests.servers.s3_front import Answer, Request, s3_front

_KINDS = {"PUT": "put", "POST": "put", "HEAD": "head", "DELETE": "delete"}


class Counting:
    """The requests of each kind so far."""

    def __init__(self) -> None:
        self.url = ""
        self._guard = threading.Lock()
        self._counts: Counter[str] = Counter()

    def answer(self, request: Request) -> Answer:
        with self._guard:
            self._counts[_kind(request)] += 1
        return request.passed_on()

    def so_far(self) -> dict[str, int]:
        with self._guard:
            return dict(self._counts)


def _kind(request: Request) -> str:
    asked = parse_qs(urlsplit(request.path).query, keep_blank_values=True)
    if request.method == "GET":
        return "list" if {"list-type", "uploads"} & asked.keys() else "get"
    return "delete" if "delete" in asked else _KINDS[request.method]


@contextmanager
def counting_server(server_url: str) -> Iterator[Counting]:
    """Run the front of the server at `server_url`; its own URL is in what is yielded."""
    counting = Counting()
    with s3_front(server_url, counting.answer) as counting.url:
        yield counting
