"""Requests to promote or discard a shadow reach the shadow of their query, and no other one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.formats.requests import Action, Claimant, Request, RequestFiles
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.query.requests import Actions, RequestHandler, WorkUnderWay
from pyspark_ckpt.restarting.shadow_actions import ShadowActions, forget_shadow, note_shadow
from pyspark_ckpt.storage.open import Storage


class Shadow:
    def __init__(self, storage: Storage, name: str) -> None:
        self.calls: list[Any] = []
        self.name = name
        note_shadow(storage.url, name, ShadowActions(self.discard, self.promote))

    def discard(self) -> None:
        self.calls.append("discard")
        forget_shadow(self.name)

    def promote(self, directory: str, /, *, accept_differences: bool) -> Savepoint:
        self.calls.append((directory, accept_differences))
        if not accept_differences:
            raise ConfigurationError("the candidate differs")
        return Savepoint(f"{directory}/savepoint-1", 5, "q", 1, 2, 100, 3)


@pytest.fixture
def shadow(storage: Storage) -> Iterator[Shadow]:
    made = Shadow(storage, "one")
    yield made
    forget_shadow("one")


def answer_to(storage: Storage, action: Action, savepoints: Path | None) -> Any:
    files, work = RequestFiles(storage), WorkUnderWay()
    now = now_ms()
    request_id = files.post(
        Request(
            action=action, requested_at_ms=now, expires_at_ms=now + 60_000, requested_by="someone"
        )
    )
    directory = None if savepoints is None else str(savepoints)
    handler = RequestHandler(storage, directory, Actions(None, None), work)  # type: ignore[arg-type]
    handler.poll()
    deadline = time.monotonic() + 60
    while (answer := files.answer_to(request_id)) is None:
        assert time.monotonic() < deadline
        work.wait(60)
    return answer


def test_promote(storage: Storage, shadow: Shadow, tmp_path: Path) -> None:
    assert "differs" in answer_to(storage, Action.PROMOTE, tmp_path).error
    answer = answer_to(storage, Action.PROMOTE_ANYWAY, tmp_path)
    assert (answer.error, answer.path, answer.epoch) == (None, f"{tmp_path}/savepoint-1", 5)
    assert shadow.calls == [(str(tmp_path), False), (str(tmp_path), True)]
    assert "savepoint-dir" in answer_to(storage, Action.PROMOTE, None).error


def test_one_of_several_is_not_promoted_and_all_are_discarded(
    storage: Storage, shadow: Shadow, tmp_path: Path
) -> None:
    other, elsewhere = Shadow(storage, "two"), Shadow(storage.child("other"), "three")
    assert "has 2 shadows" in answer_to(storage, Action.PROMOTE_ANYWAY, tmp_path).error
    answer = answer_to(storage, Action.DISCARD, None)  # it needs no directory for savepoints
    assert (answer.error, answer.path) == (None, None)
    assert (shadow.calls, other.calls, elsewhere.calls) == (["discard"], ["discard"], [])
    assert "has no shadow" in answer_to(storage, Action.DISCARD, None).error
    forget_shadow("three")


def test_a_request_that_an_earlier_run_of_this_process_works_on_is_not_refused(
    storage: Storage,
) -> None:
    """The restart in place that a promotion needs gives the query another handler."""
    files, work = RequestFiles(storage), WorkUnderWay()
    now = now_ms()
    request_id = files.post(
        Request(
            action=Action.PROMOTE, requested_at_ms=now, expires_at_ms=now + 9, requested_by="me"
        )
    )
    before, after = (
        RequestHandler(storage, None, Actions(None, None), work)  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert files.claim(request_id, Claimant.QUERY)
    before.taken.add(request_id)
    after.taken |= before.taken
    after.refuse_interrupted()
    assert files.answer_to(request_id) is None
    RequestHandler(storage, None, Actions(None, None), work).refuse_interrupted()  # type: ignore[arg-type]
    assert "driver ended" in str(files.answer_to(request_id))
