"""Sessions that the library made on Spark Connect servers, without a server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from pyspark_ckpt.sessions import connect

SESSIONS = 5000
"""So many that another thread has a turn while they are gone through."""

ROUNDS = 20


class Ended:
    """A session that was stopped, so that no server is asked for it."""

    is_stopped = True


@pytest.fixture
def sessions() -> Iterator[list[Ended]]:
    """Keep many sessions, and let another thread keep and forget more of them."""
    users = Ended()
    kept = [Ended() for _ in range(SESSIONS)]
    for each in kept:
        connect._clones[each] = users
    is_done = threading.Event()

    def change() -> None:
        while not is_done.is_set():
            session = Ended()
            connect._clones[session] = users
            connect._clones.pop(session)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    changing = threading.Thread(target=change)
    changing.start()
    try:
        yield kept
    finally:
        is_done.set()
        changing.join()
        sys.setswitchinterval(interval)
        for each in kept:
            connect._clones.pop(each, None)


def test_a_query_is_looked_for_while_threads_make_and_end_sessions(sessions: list[Ended]) -> None:
    for _ in range(ROUNDS):
        assert not connect.is_active(sessions[0], "a")


def test_sessions_are_released_while_threads_make_and_end_others(sessions: list[Ended]) -> None:
    assert sessions
    for _ in range(ROUNDS):
        connect.release_ended(Ended())
