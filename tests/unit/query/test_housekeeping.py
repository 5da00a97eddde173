"""The coordinator looks for requests as often as the storage allows."""

from __future__ import annotations

import pytest

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.requests import Action, Request, RequestFiles
from pyspark_ckpt.query.housekeeping import Housekeeping
from pyspark_ckpt.query.requests import Actions, RequestHandler, WorkUnderWay
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import Storage


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("the query has no directory for savepoints, so nothing is carried out")


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.mark.parametrize(("poll_ms", "looks_at_ms"), [(0, [0, 1, 2]), (5000, [0, 5000, 10_001])])
def test_a_request_is_found_at_the_next_look(
    storage: Storage, poll_ms: int, looks_at_ms: list[int]
) -> None:
    files = RequestFiles(storage)
    clock = Clock()
    handler = RequestHandler(storage, None, Actions(refuse, refuse), WorkUnderWay())  # type: ignore[arg-type]
    housekeeping = Housekeeping(handler, lambda: None, Settings(), clock, poll_ms)
    for look_ms in looks_at_ms:
        posted = files.post(
            Request(
                action=Action.SAVEPOINT,
                requested_at_ms=now_ms(),
                expires_at_ms=now_ms() + 60_000,
                requested_by="test",
            )
        )
        if look_ms > 0 and poll_ms > 0:
            clock.now_ms = look_ms - 2  # one turn too early
            housekeeping.do(has_won=True)
            assert files.answer_to(posted) is None
        clock.now_ms = look_ms
        housekeeping.do(has_won=True)
        answer = files.answer_to(posted)
        assert answer is not None
        assert "savepoint-dir" in str(answer.error)
