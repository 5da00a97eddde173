"""Stands before a server over HTTP, and loses answers or refuses requests of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pyspark_ckpt.storage.servers import azure, gcs
from tests.servers.azure import ACCOUNT, connection_string
from tests.servers.s3 import ask
from tests.servers.s3_front import Answer, Request, s3_front

BUSY: Answer = (503, [("Content-Length", "0")], b"")


class Losses:
    """How many requests that `is_lost` selects the front still answers with 503, and has answered.

    If `carries_out`, the real server has carried out these requests: their answers are lost.
    """

    def __init__(self, is_lost: Callable[[Request], bool]) -> None:
        self.url = ""
        self.left = 0
        self.answered = 0
        self.carries_out = False
        self._is_lost = is_lost

    def lose(self, number: int) -> None:
        """Lose the answers to the next requests; those before must have come."""
        assert self.left == 0
        self.left, self.carries_out = number, True

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


@contextmanager
def losing_s3(
    environment: dict[str, str], is_lost: Callable[[Request], bool], patch: pytest.MonkeyPatch
) -> Iterator[Losses]:
    """Run the front of an S3 server; every storage asks it."""
    with losing_server(environment["AWS_ENDPOINT_URL"], is_lost) as losses:
        ask(losses.url, patch)
        yield losses


@contextmanager
def losing_gcs(
    environment: dict[str, str], is_lost: Callable[[Request], bool], patch: pytest.MonkeyPatch
) -> Iterator[Losses]:
    """Run the front of a Google Cloud Storage; every storage that is opened asks it."""
    with losing_server(environment["STORAGE_EMULATOR_HOST"], is_lost) as losses:
        patch.setenv("STORAGE_EMULATOR_HOST", losses.url)
        patch.setattr(gcs, "_FIRST_PAUSE_SECONDS", 0)
        yield losses


@contextmanager
def losing_azure(
    environment: dict[str, str], is_lost: Callable[[Request], bool], patch: pytest.MonkeyPatch
) -> Iterator[Losses]:
    """Run the front of an Azure Blob Storage; every storage that is opened asks it."""
    connection = environment["AZURE_STORAGE_CONNECTION_STRING"]
    url = connection.partition("BlobEndpoint=")[2].partition(f"/{ACCOUNT}")[0]
    with losing_server(url, is_lost) as losses:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(losses.url))
        patch.setattr(azure, "_service", azure._service.__wrapped__)
        for pause in ("initial_backoff", "increment_base", "random_jitter_range"):
            patch.setitem(azure._RETRIES, pause, 0)
        yield losses


def is_deletion(request: Request) -> bool:
    return request.method == "DELETE"
